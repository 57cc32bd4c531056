"""A loaded model for people: text in, text and figures out.

The thin edge between text and the core, which knows ids alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from pmlm.corpus.framing import Row, frame, row_batch
from pmlm.errors import DataError, OrderError, TemplateError
from pmlm.generation.canvas import allowed_pieces, canvas_text, make_canvas
from pmlm.generation.decode import decode
from pmlm.generation.sampling import Sampling
from pmlm.generation.steppers import make_stepper
from pmlm.generation.template import Template, filled_text, fit, parse_template
from pmlm.likelihood import MAX_SLOTS, check_order, check_visibility, order_logp, order_ranks, policy_logp
from pmlm.model import LanguageModel, Visibility
from pmlm.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pmlm.orders import Order, arrange, parse_order
from pmlm.runtime import draw_seed, generator, pick_device
from pmlm.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Score:
    """The exact log-probability of a text along an order."""

    text: str
    tokens: list[str]
    """Content tokens in text order."""
    order: list[int]
    """Indices into tokens, in the order of prediction."""
    logp: list[float | None]
    """logp[i] belongs to tokens[i]; None where the token was given."""
    num_bytes: int
    """UTF-8 bytes of the text that was scored."""
    seed: int
    visibility: Visibility

    @property
    def nll(self) -> float:
        """Nats, in total."""
        return -math.fsum(x for x in self.logp if x is not None)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll / len(self.order), 700.0))

    @property
    def bits_per_byte(self) -> float:
        return self.nll / (math.log(2) * self.num_bytes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "order": self.order,
            "logp": self.logp,
            "nll": self.nll,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "seed": self.seed,
            "visibility": self.visibility,
        }


@dataclass(frozen=True)
class Ranked:
    """A filling of a template's blanks with its exact joint probability."""

    fillings: list[str]
    score: Score
    share: float
    """Its probability among the candidates alone."""

    def to_dict(self) -> dict[str, Any]:
        return {"fillings": self.fillings, "share": self.share, **self.score.to_dict()}


@dataclass(frozen=True)
class Filled:
    """A template with its blanks written."""

    text: str
    tokens: list[str]
    order: list[int]
    """Indices into tokens of what was written, in the order of writing."""
    logp: list[float]
    """logp[t] is the model's log-probability of the token written t-th."""
    sampled_logp: list[float]
    """The same under the sampler's own distribution."""
    seed: int
    visibility: Visibility

    @property
    def nll(self) -> float:
        return -math.fsum(self.logp)


class LM:
    """An any-order language model with its tokenizer."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, about: dict[str, Any], folder: Path | None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.about = about
        self.folder = folder

    def score(
        self,
        text: str,
        *,
        order: str | Order = "l2r",
        seed: int = 0,
        visibility: str | None = None,
        given: str | Template | None = None,
        max_slots: int = MAX_SLOTS,
    ) -> Score:
        """The exact log-probability of `text` along an order.

        With `given`, a template that the text fits, only what stands in its blanks is scored, jointly; a list order
        then names the tokens of the blanks by their place among all tokens.
        """
        order = parse_order(order) if isinstance(order, str) else order
        kind = check_visibility(visibility, self.model.config)
        check_order(order, kind)
        ids, hidden, num_bytes = self._content(text, given)
        row = frame(ids, self.tokenizer, hidden=hidden)
        self.check_length(row)
        ranks, logp = self._score_row(row, order, seed, kind, max_slots)
        scored = [i for i, flag in enumerate(hidden) if flag]
        return Score(
            text=text,
            tokens=[self.tokenizer.show(i) for i in ids],
            order=sorted(scored, key=lambda i: ranks[i]),
            logp=[logp[i] if flag else None for i, flag in enumerate(hidden)],
            num_bytes=num_bytes,
            seed=seed,
            visibility=kind,
        )

    def rank(self, template: str, candidates: Sequence[Sequence[str]], **options: Any) -> list[Ranked]:
        """Fillings of a template's blanks, most probable first, by their exact joint probability."""
        parsed = parse_template(template)
        if not candidates:
            raise DataError("no candidates were given")
        scores = [self.score(filled_text(parsed, list(c)), given=parsed, **options) for c in candidates]
        least = min(score.nll for score in scores)
        weights = [math.exp(least - score.nll) for score in scores]
        ranked = [
            Ranked(list(c), score, weight / math.fsum(weights))
            for c, score, weight in zip(candidates, scores, weights, strict=True)
        ]
        return sorted(ranked, key=lambda r: r.score.nll)

    def fill(
        self,
        template: str,
        *,
        order: str | Order = "random",
        seed: int | None = None,
        visibility: str | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Filled:
        """Write what stands in a template's blanks, in any order, around what is given."""
        order = parse_order(order) if isinstance(order, str) else order
        kind = check_visibility(visibility, self.model.config)
        check_order(order, kind)
        if kind == "causal":
            raise OrderError("a left-to-right model cannot look at what stands after a blank")
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        seed = draw_seed() if seed is None else seed
        canvas = make_canvas(parse_template(template), self.tokenizer, self.model.config.max_length)
        batch = row_batch([canvas.row], self.tokenizer).to(self.model.device)
        shifted = replace(order, positions=tuple(p + 1 for p in order.positions))  # after the start marker
        allowed = allowed_pieces(self.tokenizer)[torch.tensor(canvas.role)][None]
        stepper = make_stepper(self.model, batch, kind)
        turns = decode(stepper, batch, allowed, shifted, sampling, [generator(seed, "decode", 0)])
        reveals = [reveal for turn in turns for reveal in turn]
        ids = list(canvas.row.ids)
        for reveal in reveals:
            ids[reveal.slot] = reveal.token
        return Filled(
            text=canvas_text(canvas, ids, self.tokenizer),
            tokens=[self.tokenizer.show(i) for i in ids[1:-1]],
            order=[reveal.slot - 1 for reveal in reveals],
            logp=[reveal.logp for reveal in reveals],
            sampled_logp=[reveal.sampled_logp for reveal in reveals],
            seed=seed,
            visibility=kind,
        )

    def save(self, folder: str | Path, *, card: str = "", storage: str = "float32") -> None:
        """Write a checkpoint folder that `pmlm.load` reads."""
        save_checkpoint(
            Path(folder),
            Checkpoint(self.model, self.about),
            card=card or f"# {self.about.get('name', 'A pmlm model')}\n",
            add_files=self.tokenizer.save,
            storage=storage,  # type: ignore[arg-type]
        )

    def check_length(self, row: Row) -> None:
        most = self.model.config.max_length
        if len(row.ids) > most:
            raise DataError(
                f"the text needs {len(row.ids)} slots (markers included) but the model reads {most}. Shorten it, or "
                "use `pmlm evaluate`, which cuts a text into windows."
            )

    def _content(self, text: str, given: str | Template | None) -> tuple[list[int], list[bool], int]:
        """Content ids, which of them are scored, and the bytes that those stand for."""
        if given is None:
            ids = self.tokenizer.encode(text)
            if not ids:
                raise DataError("there is no text to score")
            return ids, [True] * len(ids), len(text.encode())
        template = parse_template(given) if isinstance(given, str) else given
        if not template.blanks:
            raise TemplateError(
                "the template has no blank: write [MASK], [MASK:3] or ___ where a token is to be scored"
            )
        parts = fit(template, text, self.tokenizer)
        ids = [i for part in parts for i in part.ids]
        hidden = [part.is_blank for part in parts for _ in part.ids]
        return ids, hidden, sum(len(part.text.strip().encode()) for part in parts if part.is_blank)

    def _score_row(
        self, row: Row, order: Order, seed: int, visibility: Visibility, max_slots: int
    ) -> tuple[list[int], list[float]]:
        """Rank and log-probability of each content token."""
        lead = 1  # the start marker: content token i stands at slot i + 1
        batch = row_batch([row], self.tokenizer).to(self.model.device)
        if order.is_policy:
            logp, rank = policy_logp(self.model, batch, order.kind, visibility, max_slots=max_slots)
        else:
            places = {flag: [i - lead for i, f in enumerate(row.maskable) if f == flag] for flag in (True, False)}
            arranged = arrange(order, places[True], places[False], generator(seed, "order-0", 0))
            rank = order_ranks(batch, [[i + lead for i in arranged]])
            logp = order_logp(self.model, batch, rank, visibility, max_slots=max_slots)
        return rank[0, lead:-1].tolist(), logp[0, lead:-1].tolist()


def default_model_folder() -> Path:
    """The model inside the package."""
    return Path(str(resources.files("pmlm"))) / "models" / "default"


def load(folder: str | Path | None = None, *, device: str = "auto") -> LM:
    """A model from a checkpoint folder; without one, the model inside the package."""
    path = default_model_folder() if folder is None else Path(folder)
    tokenizer = load_tokenizer(path) if (path / "config.json").is_file() else None
    checkpoint = load_checkpoint(path, expected_vocab=None if tokenizer is None else tokenizer.vocab_size)
    assert tokenizer is not None, "load_checkpoint refuses a folder without config.json"
    checkpoint.model.to(pick_device(device))
    return LM(checkpoint.model, tokenizer, dict(checkpoint.about), path)
