"""From a distribution to a token: temperature, top-k, top-p, and the draw, in float64.

Filters act on the last dimension with any leading shape. What may not come out is removed before anything else.

Shapes: V vocabulary, … any leading shape.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    temperature: float = 1.0
    """0 takes the likeliest."""
    top_k: int | None = None
    """Keep this many of the likeliest."""
    top_p: float | None = None
    """Keep the likeliest until they hold this much probability."""

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], got {self.top_p}")


def sampling_logp(logp: Tensor, allowed: Tensor, sampling: Sampling) -> Tensor:
    """[..., V] the sampler's own log-probabilities, normalised, float64; minus infinity where nothing may come out."""
    x = logp.double().masked_fill(~allowed, -torch.inf)
    if sampling.temperature == 0:
        best = x.argmax(-1, keepdim=True)
        return torch.full_like(x, -torch.inf).scatter(-1, best, 0.0)
    x = (x - x.max(-1, keepdim=True).values) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < x.shape[-1]:
        least = x.topk(sampling.top_k, dim=-1).values[..., -1:]
        x = x.masked_fill(x < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, index = x.log_softmax(-1).sort(dim=-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        drop = torch.zeros_like(x, dtype=torch.bool).scatter(-1, index, before >= sampling.top_p)
        x = x.masked_fill(drop, -torch.inf)
    return x.log_softmax(-1)


def draw_token(logp_V: Tensor, rng: torch.Generator) -> int:
    """One id from normalised log-probabilities."""
    return int(torch.multinomial(logp_V.exp(), 1, generator=rng))
