"""Which way a canvas is filled: exactly, token by token, or by one of the shortcuts that can be asked for.

`speculative` is exact in distribution. `parallel` and `approximate_cache` are not, and say so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pmlm.batch import Batch
from pmlm.errors import ConfigError
from pmlm.generation.decode import Allowed, Reveal, decode
from pmlm.generation.parallel import Parallel
from pmlm.generation.sampling import Sampling
from pmlm.generation.speculative import decode_speculative
from pmlm.generation.steppers import OrderCached, StaleCached, make_stepper
from pmlm.model import LanguageModel, Visibility
from pmlm.orders import Order
from pmlm.visibility import is_ordered


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Shortcuts; none by default."""

    parallel: Parallel | None = None
    """Several tokens a pass, as if each knew nothing of the others."""
    approximate_cache: int | None = None
    """Bidirectional: keys and values are kept, and made anew every so many passes."""
    speculative: int | None = None
    """Order-causal: draft so many tokens together and verify them along the order."""

    def __post_init__(self) -> None:
        for name, value in (("approximate_cache", self.approximate_cache), ("speculative", self.speculative)):
            if value is not None and value < 2:
                raise ConfigError(f"{name} must be at least 2, got {value}; leave it out to compute every token anew")
        if self.speculative is not None and self.parallel is not None:
            raise ConfigError("speculative is exact and parallel is not: ask for one of them")

    @property
    def approximations(self) -> tuple[str, ...]:
        """What keeps a text from following the model's own distribution."""
        found = [] if self.parallel is None else [f"parallel {self.parallel}"]
        return (*found, *([] if self.approximate_cache is None else [f"approximate_cache {self.approximate_cache}"]))

    def check(self, order: Order, visibility: Visibility) -> None:
        """ConfigError for what does not go together."""
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
