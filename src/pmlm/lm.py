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
from pmlm.generation.canvas import Canvas, allowed_pieces, canvas_text, make_canvas
from pmlm.generation.decode import Allowed, Reveal, decode
from pmlm.generation.sampling import Sampling
from pmlm.generation.steppers import make_stepper
from pmlm.generation.template import FilledPart, Template, encode_parts, filled_spans, fit, parse_template
from pmlm.likelihood import MAX_SLOTS, check_order, check_visibility, order_logp, order_ranks, policy_logp
from pmlm.model import LanguageModel, Visibility
from pmlm.model.checkpoint import Checkpoint, load_checkpoint, read_config, save_checkpoint
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
    """UTF-8 bytes of the text that was scored; of blanks, with the space that belongs to each."""
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
        return self.nll / (math.log(2) * max(self.num_bytes, 1))

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "order": self.order,
            "logp": self.logp,
            "nll": self.nll,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "bytes": self.num_bytes,
            "seed": self.seed,
            "visibility": self.visibility,
        }


@dataclass(frozen=True)
class Ranked:
    """A filling of a template's blanks with its exact joint probability."""

    fillings: list[str]
    score: Score
    share: float
    """Its probability among the candidates alone, each taken given its own number of tokens."""

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

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "tokens": self.tokens,
            "order": self.order,
            "logp": self.logp,
            "sampled_logp": self.sampled_logp,
            "nll": self.nll,
            "seed": self.seed,
            "visibility": self.visibility,
        }

    def states(self) -> list[list[str | None]]:
        """The canvas before the first token and after each: None where nothing is written yet."""
        state: list[str | None] = [None if i in self.order else token for i, token in enumerate(self.tokens)]
        states = [list(state)]
        for i in self.order:
            state[i] = self.tokens[i]
            states.append(list(state))
        return states


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
        order: str | Sequence[int] | Order = "l2r",
        seed: int = 0,
        visibility: str | None = None,
        given: str | Template | None = None,
        max_slots: int = MAX_SLOTS,
    ) -> Score:
        """The exact log-probability of `text` along an order.

        With `given`, a template that the text fits, only what stands in its blanks is scored, jointly; a list order
        then names the tokens of the blanks by their place among all tokens.
        """
        parts = self._parts(text, given)
        return self._score_parts(parts, to_order(order), seed, visibility, max_slots)

    def _score_parts(
        self, parts: list[FilledPart], order: Order, seed: int, visibility: str | None, max_slots: int = MAX_SLOTS
    ) -> Score:
        kind = check_visibility(visibility, self.model.config)
        check_order(order, kind)
        ids = [i for part in parts for i in part.ids]
        hidden = [part.is_blank for part in parts for _ in part.ids]
        if kind == "causal" and False in hidden[hidden.index(True) :]:
            raise OrderError("a left-to-right model cannot look at what stands after a blank")
        row = frame(ids, self.tokenizer, hidden=hidden)
        self.check_length(row)
        ranks, logp = self._score_row(row, order, seed, kind, max_slots)
        scored = [i for i, flag in enumerate(hidden) if flag]
        return Score(
            text="".join(part.text for part in parts),
            tokens=[self.tokenizer.show(i) for i in ids],
            order=sorted(scored, key=lambda i: ranks[i]),
            logp=[logp[i] if flag else None for i, flag in enumerate(hidden)],
            num_bytes=sum(len(part.text.encode()) for part in parts if part.is_blank),
            seed=seed,
            visibility=kind,
        )

    def rank(
        self,
        template: str,
        candidates: Sequence[str | Sequence[str]],
        *,
        order: str | Sequence[int] | Order = "l2r",
        seed: int = 0,
        visibility: str | None = None,
    ) -> list[Ranked]:
        """Fillings of a template's blanks, most probable first, by their exact joint probability along the order.

        A candidate is a text for each blank (one text alone where there is one blank). A filling of n tokens is scored
        given that there are n: candidates with different numbers of tokens are compared without a prior on them.
        """
        parsed = parse_template(template)
        if not candidates:
            raise DataError("no candidates were given")
        lists = [[c] if isinstance(c, str) else list(c) for c in candidates]
        parts = [encode_parts(parsed, filled_spans(parsed, c), self.tokenizer) for c in lists]
        scores = [self._score_parts(p, to_order(order), seed, visibility) for p in parts]
        least = min(score.nll for score in scores)
        weights = [math.exp(least - score.nll) for score in scores]
        ranked = [
            Ranked(c, score, weight / math.fsum(weights))
            for c, score, weight in zip(lists, scores, weights, strict=True)
        ]
        return sorted(ranked, key=lambda r: r.score.nll)

    def fill(self, template: str, *, seed: int | None = None, **options: Any) -> Filled:
        """Write what stands in a template's blanks, in any order, around what is given.

        Options are those of `fill_batch`. Without a seed one is drawn; the result names it.
        """
        return self.fill_batch([template], seeds=None if seed is None else [seed], **options)[0]

    def fill_batch(
        self,
        templates: Sequence[str],
        *,
        seeds: Sequence[int] | None = None,
        order: str | Sequence[int] | Order = "random",
        visibility: str | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
    ) -> list[Filled]:
        """Several templates at once; each is written as if it were alone, from its own seed."""
        order = to_order(order)
        kind = check_visibility(visibility, self.model.config)
        check_order(order, kind)
        sampling = Sampling(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
        )
        seeds = [draw_seed() for _ in templates] if seeds is None else list(seeds)
        canvases = [self._canvas(template, kind, order) for template in templates]
        batch = row_batch([canvas.row for canvas in canvases], self.tokenizer).to(self.model.device)
        role_BL = torch.zeros_like(batch.ids_BL)
        for b, canvas in enumerate(canvases):
            role_BL[b, : len(canvas.role)] = torch.tensor(canvas.role)
        turns = decode(
            make_stepper(self.model, batch, kind),
            batch,
            Allowed(role_BL, allowed_pieces(self.tokenizer)),
            [replace(order, positions=tuple(p + 1 for p in order.positions))] * len(canvases),  # after the start marker
            sampling,
            [generator(seed, "decode", 0) for seed in seeds],
        )
        reveals = [reveal for turn in turns for reveal in turn]
        return [
            self._filled(canvas, [r for r in reveals if r.row == b], seeds[b], kind)
            for b, canvas in enumerate(canvases)
        ]

    def _canvas(self, template: str, visibility: Visibility, order: Order) -> Canvas:
        canvas = make_canvas(parse_template(_checked(template)), self.tokenizer, self.model.config.max_length)
        if not canvas.hidden:
            raise TemplateError(_NO_BLANK)
        if visibility == "causal" and not all(canvas.row.maskable[canvas.hidden[0] : -1]):
            raise OrderError("a left-to-right model cannot look at what stands after a blank")
        if order.kind == "list":
            arrange(order, [i - 1 for i in canvas.hidden], [], generator(0))  # refuses what is no permutation
        return canvas

    def _filled(self, canvas: Canvas, reveals: list[Reveal], seed: int, visibility: Visibility) -> Filled:
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
            visibility=visibility,
        )

    def save(self, folder: str | Path, *, card: str = "", storage: str = "float32") -> None:
        """Write a checkpoint folder that `pmlm.load` reads."""
        save_checkpoint(
            Path(folder),
            Checkpoint(self.model, self.about),
            card=card or f"# {self.about.get('name', 'A pmlm model')}\n",
            add_files=self.tokenizer.save,
            vocabulary=self.tokenizer.fingerprint,
            storage=storage,  # type: ignore[arg-type]
        )

    def check_length(self, row: Row) -> None:
        most = self.model.config.max_length
        if len(row.ids) > most:
            raise DataError(
                f"the text needs {len(row.ids)} slots (markers included) but the model reads {most}. Shorten it, or "
                "use `pmlm evaluate`, which cuts a text into windows."
            )

    def _parts(self, text: str, given: str | Template | None) -> list[FilledPart]:
        """The text cut into what is given and what is scored."""
        text = _checked(text)
        if given is None:
            ids = self.tokenizer.encode(text)
            if not ids:
                raise DataError("there is no text to score")
            return [FilledPart(True, text, tuple(ids))]
        template = parse_template(_checked(given)) if isinstance(given, str) else given
        if not template.blanks:
            raise TemplateError(_NO_BLANK)
        return fit(template, text, self.tokenizer)

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


_NO_BLANK = "the template has no blank: write [MASK], [MASK:3] or ___ where a token is wanted"


def _checked(text: str) -> str:
    """Text that can be written as UTF-8; a lone half of a character pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the text is not Unicode: character {error.start} cannot be read") from None
    return text


def to_order(order: str | Sequence[int] | Order) -> Order:
    """An order by name, as a list of positions, or as it is."""
    if isinstance(order, Order):
        return order
    return parse_order(order if isinstance(order, str) else ",".join(map(str, order)))


def default_model_folder() -> Path:
    """The model inside the package."""
    return Path(str(resources.files("pmlm"))) / "models" / "default"


def load(folder: str | Path | None = None, *, device: str = "auto") -> LM:
    """A model from a checkpoint folder; without one, the model inside the package."""
    path = default_model_folder() if folder is None else Path(folder)
    read_config(path)  # says what is wrong before the tokenizer is looked for
    tokenizer = load_tokenizer(path)
    checkpoint = load_checkpoint(
        path, vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.fingerprint, mask_id=tokenizer.mask_id
    )
    checkpoint.model.to(pick_device(device))
    return LM(checkpoint.model, tokenizer, dict(checkpoint.about), path)
