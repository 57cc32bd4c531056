"""From a distribution to a token: penalty, temperature, top-k, top-p, min-p, and the draw, summed in float64.

Filters act on the last dimension with any leading shape. What may not come out is removed before anything else.

Shapes: V vocabulary, … any leading shape.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

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
    min_p: float | None = None
    """Keep what is at least this share as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Above 1: what already stands on the canvas becomes less likely: its probability is divided by this."""

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but a temperature for which float32 is good enough."""
        no_filter = self.top_k is None and self.top_p is None and self.min_p is None
        return self.temperature >= 0.01 and no_filter and self.repetition_penalty == 1

    def choices(self) -> dict[str, Any]:
        """What differs from plain draws from the model's own distribution."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def __str__(self) -> str:
        chosen = [f"{name.replace('_', ' ')} {value:g}" for name, value in self.choices().items()]
        return ", ".join(chosen) or "temperature 1"

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p must be in [0, 1], got {self.min_p}")
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise ConfigError(f"repetition_penalty must be positive, got {self.repetition_penalty}")


PLAIN = Sampling()
"""Draws from the model's own distribution."""


def sampling_logp(logp: Tensor, allowed: Tensor, sampling: Sampling, present: Tensor | None = None) -> Tensor:
    """[..., V] the sampler's own log-probabilities, normalised, float64; minus infinity where nothing may come out.

    `present` marks the ids that the repetition penalty falls on.
    """
    x = logp.double()
    if present is not None:
        x = x - present * math.log(sampling.repetition_penalty)
    x = x.masked_fill(~allowed, -torch.inf)
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
    if sampling.min_p is not None:
        least = x.max(-1, keepdim=True).values + math.log(max(sampling.min_p, 1e-300))
        x = x.masked_fill(x < least, -torch.inf)
    return x.log_softmax(-1)


def draw_tokens(
    logp_MV: Tensor, allowed_MV: Tensor, sampling: Sampling, uniform_M: Tensor, present_MV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """([M] ids, [M] the sampler's log-probabilities of them) from a number in [0, 1) for each; summed in float64."""
    if sampling.is_plain:
        x_MV = logp_MV.masked_fill(~allowed_MV, -torch.inf)
        x_MV -= x_MV.max(-1, keepdim=True).values
        weight_MV = (x_MV if sampling.temperature == 1 else x_MV.div_(sampling.temperature)).exp_()
    else:
        weight_MV = sampling_logp(logp_MV, allowed_MV, sampling, present_MV).exp_()
    token_M, total_M = draw_weighted(weight_MV, uniform_M)
    return token_M, (weight_MV.gather(1, token_M[:, None])[:, 0].double() / total_M).log()


def draw_weighted(weight_MV: Tensor, uniform_M: Tensor) -> tuple[Tensor, Tensor]:
    """([M] ids drawn by weight, [M] the sums of the weights)."""
    sum_MV = weight_MV.cumsum(-1, dtype=torch.float64)
    total_M = sum_MV[:, -1].clone()
    at_M = torch.minimum(uniform_M * total_M, total_M.nextafter(torch.zeros_like(total_M)))
    return torch.searchsorted(sum_MV, at_M[:, None], right=True)[:, 0], total_M
