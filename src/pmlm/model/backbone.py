"""The one Transformer under every model here; who sees whom is an argument.

Given ids, positions and visibility it returns hidden states. It does not know what a tokenizer, a masking prior or
an order is. Where only some slots are wanted, the last layer's output projection and feed-forward run there alone.

Shapes: B batch, L slots, D width, M wanted slots, Q of them in a row.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmlm.model.attention import Attention, Scene
from pmlm.model.cache import LayerCache
from pmlm.model.config import Activation, ModelConfig
from pmlm.model.linear import Linear
from pmlm.model.positions import Geometry, Rotary


@dataclass(frozen=True)
class Inputs:
    """What the network reads."""

    ids_BL: Tensor
    positions_BL: Tensor
    """[B or 1, L] the place of each slot on the canvas."""
    visible_BQK: Tensor | None = None
    """[B or 1, L, L] True where query slot q may look at key slot k; None: everybody sees everybody."""
    streams: int = 1
    """1: within what is visible, slots are one contiguous run of positions. 2: such a run of tokens, then a query for
    each, which nobody sees but itself. 0: neither is promised."""
    num_tokens: int | None = None
    """streams 2, where only some tokens have a query: how many slots are tokens."""
    token_types_BL: Tensor | None = None

    def to(self, device: torch.device) -> "Inputs":
        if self.ids_BL.device == device:
            return self
        return replace(
            self,
            ids_BL=self.ids_BL.to(device),
            positions_BL=self.positions_BL.to(device),
            visible_BQK=None if self.visible_BQK is None else self.visible_BQK.to(device),
            token_types_BL=None if self.token_types_BL is None else self.token_types_BL.to(device),
        )


@dataclass(frozen=True)
class Slots:
    """M slots of a batch, by row and slot number."""

    rows_M: Tensor
    slots_M: Tensor

    @staticmethod
    def where(flag_BL: Tensor) -> "Slots":
        rows_M, slots_M = flag_BL.nonzero(as_tuple=True)
        return Slots(rows_M, slots_M)

    def by_row(self, rows: int) -> tuple[Tensor, Tensor]:
        """(the slots of each row padded with -1 to [B, Q], each one's place in its row)."""
        count_B = torch.bincount(self.rows_M, minlength=rows)
        start_B = count_B.cumsum(0) - count_B
        by_row = self.rows_M.argsort(stable=True)
        place_M = torch.zeros_like(self.rows_M)
        place_M[by_row] = torch.arange(len(by_row), device=self.rows_M.device) - start_B[self.rows_M[by_row]]
        slots_BQ = torch.full((rows, int(count_B.max()) if len(self) else 0), -1, device=self.rows_M.device)
        slots_BQ[self.rows_M, place_M] = self.slots_M
        return slots_BQ, place_M

    def to(self, device: torch.device) -> "Slots":
        return Slots(self.rows_M.to(device), self.slots_M.to(device))

    def __len__(self) -> int:
        return len(self.rows_M)


def activation(name: Activation) -> Callable[[Tensor], Tensor]:
    match name:
        case "gelu":
            return F.gelu
        case "gelu-tanh":
            return functools.partial(F.gelu, approximate="tanh")
        case "relu":
            return F.relu


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.activation = activation(config.activation)
        self.attention = Attention(config)
        self.project = Linear(config.width, config.width)
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = Linear(config.width, config.ff_width)
        self.down = Linear(config.ff_width, config.width)
        self.ff_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, scene: Scene, wanted: Slots | None = None, cache: LayerCache | None = None) -> Tensor:
        """[B, L, D], or [M, D] where slots are wanted."""
        mixed = self.attention(self.attention_norm(x) if self.pre_norm else x, scene, cache)
        if wanted is not None:
            x, mixed = x[wanted.rows_M, wanted.slots_M], mixed[wanted.rows_M, wanted.slots_M]
        x = x + self.dropout(self.project(mixed))
        if self.pre_norm:
            return x + self.dropout(self._feed_forward(self.ff_norm(x)))
        x = self.attention_norm(x)
        return self.ff_norm(x + self.dropout(self._feed_forward(x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Backbone(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.places = nn.Embedding(config.max_length, config.width) if config.positions == "absolute" else None
        self.types = nn.Embedding(config.num_token_types, config.width) if config.num_token_types else None
        self.rotary = Rotary(config.head_width) if config.positions == "rotary" else None
        has_input_norm = config.norm == "post" and config.norm_input
        self.input_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if has_input_norm else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.output_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.norm == "pre" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, inputs: Inputs, wanted: Slots | None = None) -> Tensor:
        """Hidden states: [B, L, D], or [M, D] at the wanted slots."""
        geometry = Geometry(inputs.positions_BL, inputs.positions_BL, inputs.streams, inputs.num_tokens)
        return self._run(inputs, geometry, wanted, [None] * len(self.layers))

    def step(self, inputs: Inputs, key_positions_BK: Tensor, wanted: Slots, layers: list[LayerCache]) -> Tensor:
        """[M, D] as `forward`, for a few slots that see the columns of a cache; `visible_BQK` is over those columns."""
        geometry = Geometry(inputs.positions_BL, key_positions_BK, 0)
        bias_BQK = None
        if inputs.visible_BQK is not None:
            bias_BQK = self.tokens.weight.new_zeros(inputs.visible_BQK.shape)
            bias_BQK.masked_fill_(~inputs.visible_BQK, -torch.inf)
        return self._run(inputs, geometry, wanted, layers, bias_BQK)

    def _run(
        self,
        inputs: Inputs,
        geometry: Geometry,
        wanted: Slots | None,
        caches: Sequence[LayerCache | None],
        bias_BQK: Tensor | None = None,
    ) -> Tensor:
        x = self.embed(inputs)
        rotation = None if self.rotary is None else self.rotary.angles(inputs.positions_BL)
        scene = Scene(geometry, inputs.visible_BQK, rotation, bias_BQK)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, scene, wanted if layer is self.layers[-1] else None, cache)
        return x if self.output_norm is None else self.output_norm(x)

    def embed(self, inputs: Inputs) -> Tensor:
        x = self.tokens(inputs.ids_BL)
        if self.places is not None:
            x = x + self.places(inputs.positions_BL)
        if self.types is not None:
            types = inputs.token_types_BL
            x = x + (self.types.weight[0] if types is None else self.types(types))
        if self.input_norm is not None:
            x = self.input_norm(x)
        return self.dropout(x)
