"""The first weights of a network: normal ones and, where wanted, heads that begin by looking at a neighbour.

Masked models begin slowly. A guess at why: a head that looks everywhere mixes the neighbours of a hidden token with all
else, and so learns nothing that would make it look at them. With `near_start`, half of the heads look one place to the
left or right (then two, …) before training begins. These are weights like any others: what the network can become is
the same, and nothing is kept where it began.

In all position schemes such a head scores an offset d by a sum over quick waves of cos(rate (d - neighbour)), which is
largest at the neighbour. Absolute positions know no offset, but the product of two places' waves does: their table
begins with such waves, taller than what tokens have there, and queries and keys read them.

Shapes: D width, E head width, F rates, W = 2F their sines and cosines, O offsets, L places.
"""

import math

import torch
from torch import Tensor, nn

from pmlm.model.attention import Attention
from pmlm.model.backbone import Backbone
from pmlm.model.config import ModelConfig
from pmlm.model.positions import Distances, RelativeTables, sinusoids, wave_columns, wave_rates

SLOWEST = 0.1
"""Radians per place: slower waves hardly tell a neighbour from the one beside it."""
HEIGHT = 0.2
"""Of the waves in a table of absolute positions: several times what tokens have in the first hundred steps. From 0.04
to 0.3 served alike in a trial, 1 less well (docs/log.md)."""


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
    if config.positions == "absolute":
        rates_F = rates_F[: config.width // 4]
        for part in module.modules():
            if isinstance(part, Backbone):
                _begin_with_waves(part, rates_F)
        return
    for part in module.modules():
        if isinstance(part, Attention):
            for head, neighbour in enumerate(neighbours(config.num_heads)):
                _turn_to(part, config, head, neighbour, rates_F)


def neighbours(num_heads: int) -> list[int]:
    """Where the first half of the heads begin to look: -1, 1, -2, 2, …"""
    return [(n // 2 + 1) * (1 if n % 2 else -1) for n in range(max(1, num_heads // 2))]


def _turn_to(attention: Attention, config: ModelConfig, head: int, neighbour: int, rates_F: Tensor) -> None:
    """The neighbour scores `near_start` nats above the slots beside it, whatever the content."""
    strength = _strength(attention, config, rates_F)
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


def _begin_with_waves(backbone: Backbone, rates_F: Tensor) -> None:
    """Absolute positions: waves in the table, and half of the heads turned to a neighbour by them.

    The waves stand there twice, with either sign, so that norms leave them as they are.
    """
    assert backbone.places is not None
    config, num = backbone.config, len(rates_F)
    waves_LW = HEIGHT * _waves(torch.arange(config.max_length), rates_F)
    backbone.places.weight[:, : 4 * num] = torch.cat([waves_LW, -waves_LW], dim=-1)
    backbone.tokens.weight[:, : 4 * num] = 0.0
    content = (2 + (backbone.types is not None)) * config.init_std**2  # the other columns, roughly
    height = HEIGHT / math.sqrt(2 * num * HEIGHT**2 / config.width + content)
    attentions = [part for part in backbone.modules() if isinstance(part, Attention)]
    for n, attention in enumerate(attentions):
        is_plain = n == 0 and config.norm == "post" and backbone.input_norm is None
        for head, neighbour in enumerate(neighbours(config.num_heads)):
            _turn_by_waves(attention, config, head, neighbour, rates_F, HEIGHT if is_plain else height)


def _turn_by_waves(
    attention: Attention, config: ModelConfig, head: int, neighbour: int, rates_F: Tensor, height: float
) -> None:
    """A query copies the waves of its place, a key those of the place that has it for a neighbour."""
    strength = _strength(attention, config, rates_F)
    each, num = math.sqrt(strength) / height, len(rates_F)
    query_ED, key_ED, _ = attention.qkv.weight.view(3, config.num_heads, config.head_width, -1)[:, head]
    sine_F, cosine_F = torch.arange(num), torch.arange(num, 2 * num)
    cos_F, sin_F = (rates_F * neighbour).cos(), (rates_F * neighbour).sin()
    query_ED[: 2 * num], key_ED[: 2 * num] = 0.0, 0.0
    query_ED[sine_F, sine_F], query_ED[cosine_F, cosine_F] = each, each
    key_ED[sine_F, sine_F], key_ED[sine_F, cosine_F] = each * cos_F, -each * sin_F
    key_ED[cosine_F, cosine_F], key_ED[cosine_F, sine_F] = each * cos_F, each * sin_F


def _strength(attention: Attention, config: ModelConfig, rates_F: Tensor) -> float:
    """How high the waves of a score are, for the neighbour to be `near_start` nats above the slots beside it."""
    return config.near_start / (attention.scale * float((1 - rates_F.cos()).sum()))


def _waves(places_O: Tensor, rates_F: Tensor) -> Tensor:
    """[O, W] sines, then cosines. The product of two places is the sum of cos(rate (one - other))."""
    angle = places_O[:, None] * rates_F
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
