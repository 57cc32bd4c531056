"""Which way a canvas is filled: exactly, token by token, or by one of the other ways that can be asked for.

Shortcuts cost less: `speculative` is exact in distribution, `parallel` and `approximate_cache` are not, and say so.
`particles` cost more, for another distribution: that of the model as a GPT, given the words that stand there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pmlm.batch import Batch
from pmlm.errors import ConfigError
from pmlm.generation.decode import Allowed, Reveal, decode
from pmlm.generation.parallel import Parallel
from pmlm.generation.particles import decode_particles
from pmlm.generation.sampling import PLAIN, Sampling
from pmlm.generation.speculative import decode_speculative
from pmlm.generation.steppers import OrderCached, StaleCached, make_stepper
from pmlm.model import LanguageModel, Visibility
from pmlm.orders import Order
from pmlm.visibility import is_ordered

MOST_PARTICLES = 64


@dataclass(frozen=True, kw_only=True)
class Speed:
    """None of them by default."""

    parallel: Parallel | None = None
    """Several tokens a pass, as if each knew nothing of the others."""
    approximate_cache: int | None = None
    """Bidirectional: keys and values are kept, and made anew every so many passes."""
    speculative: int | None = None
    """Order-causal: draft so many tokens together and verify them along the order."""
    particles: int | None = None
    """Order-causal, left to right: so many texts side by side, weighed by how they read with what is given."""

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("approximate_cache", "speculative", "particles")}
        for name, value in numbers.items():
            if value is not None and value < 2:
                raise ConfigError(f"{name} must be at least 2, got {value}; leave it out to write token by token")
        if self.particles is not None and self.particles > MOST_PARTICLES:
            raise ConfigError(f"particles can be at most {MOST_PARTICLES}, got {self.particles}")
        others = [name for name in ("parallel", "speculative", "approximate_cache") if getattr(self, name) is not None]
        if self.particles is not None and others:
            raise ConfigError(f"particles go token by token: leave {others[0]} out")
        if self.speculative is not None and self.parallel is not None:
            raise ConfigError("speculative is exact and parallel is not: ask for one of them")

    @property
    def approximations(self) -> tuple[str, ...]:
        """What keeps a text from following the model's own distribution."""
        named = {name: getattr(self, name) for name in ("parallel", "approximate_cache", "particles")}
        return tuple(f"{name} {value}" for name, value in named.items() if value is not None)

    def check(
        self,
        order: Order,
        visibility: Visibility,
        trained_for: Sequence[Visibility] = (),
        sampling: Sampling = PLAIN,
        *,
        has_written: bool = False,
    ) -> None:
        """ConfigError for what does not go together, or not with a model."""
        if self.parallel is not None and visibility == "causal":
            raise ConfigError("parallel: a left-to-right model knows one position at a time")
        if self.approximate_cache is not None and visibility != "bidirectional":
            raise ConfigError(
                f"approximate_cache is for bidirectional visibility: with {visibility} "
                f"{'every pass is made anew' if visibility == 'known-only' else 'the cache is exact'}"
            )
        if self.speculative is not None and not is_ordered(visibility):
            raise ConfigError(f"speculative needs order-causal or two-stream visibility, not {visibility}")
        if self.speculative is not None and order.is_policy:
            raise ConfigError(f"speculative needs an order that is known beforehand, not {order}")
        if self.particles is not None:
            _check_particles(order, visibility, trained_for, sampling, has_written=has_written)


def _check_particles(
    order: Order, visibility: Visibility, trained_for: Sequence[Visibility], sampling: Sampling, *, has_written: bool
) -> None:
    if visibility != "order-causal" or order.kind != "l2r":
        raise ConfigError(
            f"particles go from left to right with order-causal visibility, not {order} with {visibility}"
        )
    if "causal" not in trained_for:
        raise ConfigError("particles are weighed by the model as a GPT: this one was not trained for causal visibility")
    if sampling.temperature == 0:
        raise ConfigError("particles are drawn: they need a temperature above 0")
    neutral = {"top_k": (None,), "top_p": (None, 1), "min_p": (None, 0), "repetition_penalty": (1,)}
    for name, values in neutral.items():
        if getattr(sampling, name) not in values:
            raise ConfigError(
                f"particles are weighed by how likely they are, which {name} would undo: "
                f"{'set it to 1' if name == 'repetition_penalty' else 'leave it out'}"
            )
    if has_written:
        raise ConfigError("particles begin at the beginning: leave written out")


def fill_batch(
    model: LanguageModel,
    batch: Batch,
    allowed: Allowed,
    orders: Sequence[Order],
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
    written: Sequence[Sequence[tuple[int, int]]],
    visibility: Visibility,
    speed: Speed,
) -> Iterator[list[Reveal]]:
    """Fill the maskable slots of each row; yields what was revealed at each turn."""
    if speed.particles is not None:
        return _crowds(model, batch, allowed, sampling, rngs, visibility, speed.particles)
    if speed.speculative is not None:
        model.pack(2 * batch.num_rows, batch.num_rows)
        reader = OrderCached(model, batch, visibility, num_queries=2 * speed.speculative)
        return decode_speculative(reader, batch, allowed, orders, sampling, rngs, written, speed.speculative)
    stepper = (
        make_stepper(model, batch, visibility)
        if speed.approximate_cache is None
        else StaleCached(model, batch, speed.approximate_cache)
    )
    return decode(stepper, batch, allowed, orders, sampling, rngs, written, speed.parallel)


def _crowds(
    model: LanguageModel,
    batch: Batch,
    allowed: Allowed,
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
    visibility: Visibility,
    num: int,
) -> Iterator[list[Reveal]]:
    """One row after the other, each by particles of its own."""
    for row, rng in enumerate(rngs):
        canvas = batch.rows(torch.tensor([row], device=batch.ids_BL.device))
        yield from decode_particles(model, canvas, allowed.copies(row, num), sampling, rng, visibility, row)
