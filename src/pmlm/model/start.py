"""The first weights of a network: normal ones and, where wanted, heads that begin by looking at a neighbour.

Masked models begin slowly. A guess at why: a head that looks everywhere mixes the neighbours of a hidden token with all
else, and so learns nothing that would make it look at them. With `near_start`, half of the heads look one place to the
left or right (then two, …) before training begins. These are weights like any others: what the network can become is
the same, and nothing is kept where it began.

In all position schemes such a head scores an offset d by a sum over quick waves of cos(rate (d - neighbour)), which is
largest at the neighbour. Absolute positions know no offset: they are left out (see docs/log.md for what was tried).

Shapes: E head width, F rates, W = 2F their sines and cosines, O offsets.
"""

import math

import torch
from torch import Tensor, nn

from pmlm.model.attention import Attention
from pmlm.model.config import ModelConfig
from pmlm.model.positions import Distances, RelativeTables, sinusoids, wave_columns, wave_rates

SLOWEST = 0.1
"""Radians per place: slower waves hardly tell a neighbour from the one beside it."""


@torch.no_grad()
def initialise(module: nn.Module, std: float, rng: torch.Generator) -> None:
    """Normal weights of the given deviation, zero biases, unit norms, in the order of the parameters' names."""
    norms = {f"{name}.weight" for name, part in module.named_modules() if isinstance(part, nn.LayerNorm)}
    for name, parameter in sorted(module.named_parameters()):
        if name in norms:
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=rng))


@torch.no_grad()
def look_near(module: nn.Module, config: ModelConfig) -> None:
    """Let half of each layer's heads begin by looking at a neighbour."""
    width = config.width if config.positions == "transformer-xl" else config.head_width
    rates_F = wave_rates(width)
    rates_F = rates_F[rates_F >= SLOWEST][: config.head_width // 2]
    for part in module.modules():
        if isinstance(part, Attention):
            for head, neighbour in enumerate(neighbours(config.num_heads)):
                _turn_to(part, config, head, neighbour, rates_F)


def neighbours(num_heads: int) -> list[int]:
    """Where the first half of the heads begin to look: -1, 1, -2, 2, …"""
    return [(n // 2 + 1) * (1 if n % 2 else -1) for n in range(max(1, num_heads // 2))]


def _turn_to(attention: Attention, config: ModelConfig, head: int, neighbour: int, rates_F: Tensor) -> None:
    """The neighbour scores `near_start` nats above the slots beside it, whatever the content."""
    strength = config.near_start / (attention.scale * float((1 - rates_F.cos()).sum()))
    each, num = math.sqrt(strength), len(rates_F)
    q_bias_E, k_bias_E, _ = attention.qkv.bias.view(3, config.num_heads, -1)[:, head]
    target_W = _waves(torch.tensor([neighbour]), rates_F)[0]
    match attention.tables:
        case None:  # rotary: a query of angle 0 meets a key turned back by the neighbour's angle
            half = config.head_width // 2
            sin_F, cos_F = target_W.chunk(2)
            q_bias_E[:num], k_bias_E[:num], k_bias_E[half : half + num] = each, each * cos_F, -each * sin_F
        case Distances() as tables:
            rows = head * config.head_width + torch.arange(2 * num)
            tables.project.weight[rows] = 0.0
            tables.project.weight[rows, wave_columns(num)] = each
            tables.distance_bias[head, : 2 * num] = each * _waves(torch.tensor([-neighbour]), rates_F)[0]
        case RelativeTables(learned=True) as tables:
            tables.keys[:, : 2 * num] = each * _waves(torch.arange(-tables.clip, tables.clip + 1), rates_F)
            q_bias_E[: 2 * num] = each * target_W
        case RelativeTables() as tables:  # fixed
            columns_W = wave_columns(num)
            place = torch.tensor([tables.clip + neighbour])  # which a short table need not have
            q_bias_E[columns_W] = strength * sinusoids(place, config.head_width)[0, columns_W]


def _waves(places_O: Tensor, rates_F: Tensor) -> Tensor:
    """[O, W] sines, then cosines. The product of two places is the sum of cos(rate (one - other))."""
    angle = places_O[:, None] * rates_F
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
