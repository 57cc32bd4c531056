"""What the library hands out: scores, rankings, written texts and the steps of writing them. Plain data.

Positions are indices into `tokens`, the content tokens in text order.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Protocol

from pmlm.errors import ConfigError
from pmlm.model import Visibility


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


class Wishes(NamedTuple):
    """What was asked of a whole text."""

    ban: tuple[str, ...] = ()
    num_words: int | None = None
    whole_words: bool = True


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
    template: str
    """As it was filled: words scattered by the seed stand where they were put."""
    passes: int = 0
    """Passes of the model that it took: one for each token, without shortcuts."""
    approximate: tuple[str, ...] = ()
    """The shortcuts for whose sake the text does not follow the model's own distribution; `logp` is then what each
    token was drawn from, and `pmlm score` has the exact figures."""
    ids: tuple[int, ...] = ()
    """The framed row: start marker, tokens, end marker."""
    sizes: tuple[int, ...] = ()
    """How many tokens each segment of the template has."""
    attempts: int = 1
    """How often the text was begun: anew where constraints had driven it into a corner."""
    wishes: Wishes = Wishes()
    """They hold in a rewriting too."""
    best_of: int = 1
    """Of how many texts it is the likeliest."""

    @property
    def nll(self) -> float:
        return -math.fsum(self.logp)

    @property
    def mean_logp(self) -> float:
        """The model's log-probability per token written: texts of several lengths can be compared by it.

        0 where words that must appear have left nothing to write.
        """
        return -self.nll / len(self.order) if self.order else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "template": self.template,
            "tokens": self.tokens,
            "order": self.order,
            "logp": self.logp,
            "sampled_logp": self.sampled_logp,
            "nll": self.nll,
            "seed": self.seed,
            "visibility": self.visibility,
            "passes": self.passes,
            "approximate": list(self.approximate),
            "attempts": self.attempts,
            "best_of": self.best_of,
        }

    def states(self) -> list[list[str | None]]:
        """The canvas before the first token and after each: None where nothing is written yet."""
        state: list[str | None] = [None if i in self.order else token for i, token in enumerate(self.tokens)]
        states = [list(state)]
        for i in self.order:
            state[i] = self.tokens[i]
            states.append(list(state))
        return states

    def _repr_html_(self) -> str:
        """For Jupyter: each written token with its number in the order, the surer the darker."""
        return tokens_html(self.tokens, self.order, self.logp)


def candidate_seeds(first: int, texts: int, best_of: int) -> list[int]:
    """The seeds to write from, where each of `texts`, from seed `first` on, is to be the likeliest of `best_of`.

    Each has seeds of its own, so that what two neighbouring seeds choose from has nothing in common.
    """
    if best_of < 1:
        raise ConfigError(f"best_of must be at least 1, got {best_of}")
    return [first * best_of + i for i in range(texts * best_of)]


def likeliest(written: Sequence[Filled], best_of: int) -> list[Filled]:
    """Of each `best_of` texts in a row the one with the highest log-probability per token; its own seed writes it."""
    groups = [written[i : i + best_of] for i in range(0, len(written), best_of)]
    return [replace(max(group, key=lambda text: text.mean_logp), best_of=best_of) for group in groups]


def filled_document(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is printed and sent: one text's document, or the documents of several."""
    return documents[0] if len(documents) == 1 else {"results": list(documents)}


@dataclass(frozen=True)
class Refined:
    """A text after passes of rewriting."""

    text: str
    tokens: list[str]
    changed: list[int]
    """Indices into tokens of what became another token."""
    nll_before: float
    """Exact, in nats, of what was written given the rest, from left to right; before the first pass."""
    nll_after: float
    seed: int
    visibility: Visibility

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """One token written."""

    number: int
    """1, 2, … of `total`."""
    total: int
    position: int
    token: str
    logp: float
    sampled_logp: float
    canvas: tuple[str | None, ...]
    """The tokens after this step; None where nothing is written yet."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "of": self.total,
            "position": self.position,
            "token": self.token,
            "logp": self.logp,
            "sampled_logp": self.sampled_logp,
        }


class Streamer(Protocol):
    """Is told of every step while a text is written, as transformers' streamers are."""

    def put_draft(self, canvas: Sequence[str | None], /) -> None:
        """The canvas before the first token: None where something will be written."""
        ...

    def put(self, step: Step, /) -> None: ...

    def end(self) -> None: ...


def tokens_html(tokens: Sequence[str], order: Sequence[int], logp: Sequence[float]) -> str:
    """Tokens as HTML; those in `order` carry their number and are shaded by their probability."""
    step_of = {position: step for step, position in enumerate(order)}
    parts = []
    for position, token in enumerate(tokens):
        text = html.escape(token).replace("\n", "<br>")
        if position not in step_of:
            parts.append(f"<span>{text}</span>")
            continue
        step = step_of[position]
        probability = math.exp(logp[step])
        parts.append(
            f'<span style="background:rgba(38,110,220,{0.08 + 0.42 * probability:.2f});border-radius:3px" '
            f'title="step {step + 1}, p = {probability:.3g}">{text}<sub style="opacity:.6">{step + 1}</sub></span>'
        )
    return f'<div style="line-height:1.9;white-space:pre-wrap">{"".join(parts)}</div>'
