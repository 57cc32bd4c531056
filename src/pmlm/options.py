"""How to write, as people say it: one table of options for the library, the command line and the server."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypedDict

from pmlm.generation.parallel import parse_parallel
from pmlm.generation.sampling import Sampling
from pmlm.generation.speed import Speed
from pmlm.likelihood import check_visibility
from pmlm.model import ModelConfig
from pmlm.orders import DEFAULT_ORDER, Order, parse_order
from pmlm.writer import WriteSettings


class FillOptions(TypedDict, total=False):
    """How to write; see `pmlm generate --help`."""

    order: str | Sequence[int] | Order
    visibility: str | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    parallel: str | None
    """Several tokens a pass: confidence:0.9, entropy:0.5 or count:4. Approximate."""
    approximate_cache: int | None
    """Bidirectional: keys and values are kept, and made anew every so many passes. Approximate."""
    speculative: int | None
    """Order-causal, along an order known beforehand: draft so many tokens and verify them. Exact in distribution."""
    particles: int | None
    """Left to right: so many texts side by side, weighed by how they read together with what is given."""
    whole_words: bool
    """No word is left half-written (the default, for models that come with a table of words)."""
    ban: str | Sequence[str]
    """Words that must not be written."""
    must: str | Sequence[str]
    """Words that must appear; the model chooses where."""
    num_words: int | None
    """How many words the whole text has."""
    num_tokens: int | None
    """How many tokens the whole text has, what is given included: for templates that leave a length open."""
    written: Sequence[tuple[int, str]]
    """Positions and tokens that come first, in this order: the text goes on from there."""


_SAMPLING = tuple(f.name for f in fields(Sampling))


def write_settings(options: FillOptions, config: ModelConfig, sampling: Sampling) -> WriteSettings:
    """The options as the writer takes them; what is not given is as the model (`sampling`) or the library has it."""
    known = FillOptions.__annotations__
    if unknown := sorted(options.keys() - known.keys()):
        raise TypeError(f"unknown option {unknown[0]!r}. Known: {', '.join(known)}.")
    drawn = {name: options[name] for name in _SAMPLING if name in options}  # type: ignore[literal-required]
    return WriteSettings(
        order=to_order(options.get("order", DEFAULT_ORDER)),
        visibility=check_visibility(options.get("visibility"), config),
        sampling=replace(sampling, **drawn),
        speed=Speed(
            parallel=None if (bound := options.get("parallel")) is None else parse_parallel(bound),
            approximate_cache=options.get("approximate_cache"),
            speculative=options.get("speculative"),
            particles=options.get("particles"),
        ),
        whole_words=options.get("whole_words", True),
        ban=listed(options.get("ban", ())),
        must=listed(options.get("must", ())),
        num_words=options.get("num_words"),
        num_tokens=options.get("num_tokens"),
        written=tuple((position, token) for position, token in options.get("written", ())),
    )


def to_order(order: str | Sequence[int] | Order) -> Order:
    """An order by name, as a list of positions, or as it is."""
    if isinstance(order, Order):
        return order
    return parse_order(order if isinstance(order, str) else ",".join(map(str, order)))


def listed(words: str | Sequence[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)
