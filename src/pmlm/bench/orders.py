"""Which order is best? By the exact NLL of real text along each order, and by what is written along it.

Real text: windows of held-out documents, every order on the same ones; an order that the model chooses itself
(confidence, margin, entropy) has an exact likelihood too, since the choice never looks at the true token.

The same for a share of the words of passages, given the others, which is what the model is used for.

Written text: passages in which a share of the words is hidden (at 100 %: everything but the length), filled along each
order from the same seeds, then judged as a whole and counted. The passages themselves, with nothing rewritten, are the
last line of each table.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pmlm.bench.judge import Judge, appraise
from pmlm.bench.material import (
    Passage,
    document_rows,
    draw_documents,
    draw_hidden_units,
    draw_passages,
    hide_words,
    write_texts,
)
from pmlm.bench.study import Advance, Notes, exact_in_parts
from pmlm.corpus.framing import Row, frame
from pmlm.errors import ConfigError
from pmlm.evaluation import Scorer, draw_part
from pmlm.likelihood import check_order, check_visibility
from pmlm.lm import LM
from pmlm.options import FillOptions
from pmlm.orders import NAMED_ORDERS, parse_order
from pmlm.runtime import generator

REAL = "real text"


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    orders: tuple[str, ...] = NAMED_ORDERS
    shares: tuple[float, ...] = (0.15, 0.5, 0.85, 1.0)
    """Of the words hidden."""
    rows: int = 48
    """Windows of real text for the exact NLL."""
    texts: int = 50
    """Texts written for each order and share."""
    context: int | None = None
    """Slots of a window and of a written text; None: the model's."""
    visibility: str | None = None
    temperature: float = 1.0
    top_p: float = 0.9
    beginnings: bool = False
    """Passages are beginnings of documents that are too long, and not whole short ones first."""
    seed: int = 0
    chunk: int = 8
    """Windows scored, and texts written, between two notes."""

    def __post_init__(self) -> None:
        for name, count in {"--rows": self.rows, "--texts": self.texts, "chunk": self.chunk}.items():
            if count < 1:
                raise ConfigError(f"{name} must be at least 1, got {count}")
        if bad := [share for share in self.shares if not 0 < share <= 1]:
            raise ConfigError(f"a share of hidden words is above 0 and at most 1, got {bad[0]:g}")
        if any(parse_order(name).kind == "list" for name in self.orders):
            raise ConfigError(f"orders are compared by name: {', '.join(NAMED_ORDERS)}")


def study_orders(
    lm: LM, documents: Sequence[str], judge: Judge | None, settings: OrderSettings, notes: Notes, advance: Advance
) -> dict[str, Any]:
    visibility = check_visibility(settings.visibility, lm.model.config)
    orders = [parse_order(name) for name in settings.orders]
    for order in orders:
        check_order(order, visibility)
    context = settings.context or lm.model.config.max_length
    rows = _rows(documents, lm, context, settings)
    scorer = Scorer(lm.model, lm.tokenizer, visibility, settings.seed)
    exact = {
        str(order): exact_in_parts(scorer, rows, order, notes, f"exact/{order}", advance, settings.chunk)
        for order in orders
    }
    rng = generator(settings.seed, "passages")
    passages = draw_passages(
        documents, lm.tokenizer, room=context - 2, count=settings.texts, rng=rng, beginnings=settings.beginnings
    )
    infilling = {
        f"{share:g}": {
            str(order): exact_in_parts(
                scorer, _hidden_rows(lm, passages, share, settings), order, notes, f"infilling/{share:g}/{order}",
                advance, settings.chunk,
            )
            for order in orders
        }
        for share in settings.shares
        if share < 1
    }  # fmt: skip
    written = {
        f"{share:g}": _written(lm, passages, judge, share, settings, notes, advance) for share in settings.shares
    }
    return {
        "visibility": visibility,
        "settings": asdict(settings),
        "context": context,
        "whole_passages": sum(passage.is_whole for passage in passages),
        "exact": exact,
        "infilling": infilling,
        "written": written,
    }


def planned(settings: OrderSettings) -> int:
    """How many windows and texts there are to go through."""
    partly = sum(share < 1 for share in settings.shares)
    return len(settings.orders) * (settings.rows + settings.texts * (len(settings.shares) + partly))


def _rows(documents: Sequence[str], lm: LM, context: int, settings: OrderSettings) -> list[Row]:
    """Windows of enough documents to draw from: cutting up a whole Wikipedia for a few of them would take long."""
    part = draw_documents(documents, 4 * settings.rows, settings.seed)
    return draw_part(document_rows(part, lm.tokenizer, context), settings.rows, settings.seed)


def _hidden_rows(lm: LM, passages: Sequence[Passage], share: float, settings: OrderSettings) -> list[Row]:
    """The passages with the words hidden that are hidden in the templates too."""
    rows = []
    for i, passage in enumerate(passages):
        chosen = draw_hidden_units(passage, share, generator(settings.seed, "hide", share, i))
        flags = [k in set(chosen) for k, unit in enumerate(passage.units) for _ in range(unit.num_tokens)]
        ids = lm.tokenizer.encode(passage.text)
        rows.append(frame(ids, lm.tokenizer, hidden=flags, at_end=passage.is_whole, document=i))
    return rows


def _written(
    lm: LM,
    passages: Sequence[Passage],
    judge: Judge | None,
    share: float,
    settings: OrderSettings,
    notes: Notes,
    advance: Advance,
) -> dict[str, Any]:
    """The same templates and seeds for every order."""
    templates = [hide_words(p, share, generator(settings.seed, "hide", share, i)) for i, p in enumerate(passages)]
    table: dict[str, Any] = {}
    for name in settings.orders:
        options = FillOptions(
            order=name, visibility=settings.visibility, temperature=settings.temperature, top_p=settings.top_p
        )
        texts = write_texts(
            lm, templates, options, notes, f"written/{share:g}/{name}",
            first_seed=settings.seed, chunk=settings.chunk, progress=advance,
        )  # fmt: skip
        table[name] = notes.get(f"judged/{share:g}/{name}", _appraised, texts, judge)
    table[REAL] = notes.get("judged/real", _appraised, [passage.text for passage in passages], judge)
    return table


def _appraised(texts: Sequence[str | None], judge: Judge | None) -> dict[str, Any]:
    """Of the texts that were found, with how many were not; the texts themselves, to look at and to compare."""
    found = [text for text in texts if text is not None]
    judged = appraise(found, judge) if found else {"judge": None}
    return {"failed": len(texts) - len(found), **judged, "all": list(texts)}
