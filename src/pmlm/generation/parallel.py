"""Several tokens of a text in one pass: how many may be written before the model is asked again. Approximate.

What is written in one pass is drawn as if each token knew nothing of the others, so the text no longer follows the
model's own distribution. Three bounds keep that in check; all go along the order and stop at the first slot that is too
uncertain, and one token is always written.

- `confidence:P`: every token's likeliest piece has at least probability P (Fast-dLLM's threshold);
- `entropy:G`: the sum of the entropies without the largest stays within G nats, a bound on what the tokens know of each
  other (the entropy-bounded sampler);
- `count:N`: N tokens, whatever the model thinks.

Shapes: H slots in the order in which they are due, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from pmlm.errors import ConfigError
from pmlm.orders import priority

Bound = Literal["confidence", "entropy", "count"]
LOOK_AHEAD = 32
"""Slots of a fixed order that are asked for in one pass, where no count asks for more."""


@dataclass(frozen=True)
class Parallel:
    kind: Bound
    value: float

    def __post_init__(self) -> None:
        if self.kind == "confidence" and not 0 < self.value < 1:
            raise ConfigError(f"parallel: a confidence lies between 0 and 1, got {self.value:g}")
        if self.kind == "entropy" and not 0 < self.value < float("inf"):
            raise ConfigError(f"parallel: an entropy bound is a positive number of nats, got {self.value:g}")
        if self.kind == "count" and not (self.value >= 2 and self.value == int(self.value)):
            raise ConfigError(f"parallel: a count is a whole number from 2 on, got {self.value:g}")

    def __str__(self) -> str:
        return f"{self.kind}:{self.value:g}"

    @property
    def look_ahead(self) -> int:
        """How many slots of a fixed order are asked for in one pass."""
        return max(LOOK_AHEAD, int(self.value)) if self.kind == "count" else LOOK_AHEAD

    def num(self, logp_HV: Tensor) -> int:
        """How many of the slots, from the first on, are written together; at least one."""
        match self.kind:
            case "count":
                return min(int(self.value), len(logp_HV))
            case "confidence":
                fits_H = logp_HV.max(-1).values.exp() >= self.value
            case "entropy":
                entropy_H = -priority("entropy", logp_HV).double()
                fits_H = entropy_H.cumsum(0) - entropy_H.cummax(0).values <= self.value
        return max(1, int(fits_H.long().cumprod(0).sum()))


def parse_parallel(text: str) -> Parallel:
    """`confidence:0.9`, `entropy:0.5` or `count:4`."""
    kind, _, value = text.strip().partition(":")
    for known in get_args(Bound):
        if kind == known:
            try:
                return Parallel(known, float(value))
            except ValueError:
                break
    raise ConfigError(f"parallel takes confidence:0.9, entropy:0.5 or count:4 (with numbers of your own), got {text!r}")
