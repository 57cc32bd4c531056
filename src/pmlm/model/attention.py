"""Multi-head self-attention whose visibility is an argument.

Nothing here knows why somebody may not be seen: `visible_BQK` says so. Everybody sees somebody, if only itself.

Shapes: B batch, L slots, D width, H heads, E head width, Q/K query and key slots.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmlm.model.cache import LayerCache
from pmlm.model.config import ModelConfig
from pmlm.model.linear import Linear
from pmlm.model.positions import Distances, Geometry, RelativeTables, Rotary


class Scene(NamedTuple):
    """What all layers of one forward pass share."""

    geometry: Geometry
    visible_BQK: Tensor | None
    """None: everybody sees everybody."""
    rotation: tuple[Tensor, Tensor] | None
    bias_BQK: Tensor | None = None
    """What is visible as numbers to add to scores, where somebody has made them for all layers at once."""


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.scale = 1 / math.sqrt(config.head_width) if config.scale_attention else 1.0
        self.dropout = config.dropout
        self.qkv = Linear(config.width, 3 * config.width)
        self.tables: RelativeTables | Distances | None = None
        if config.positions in ("relative", "relative-sinusoidal"):
            learned = config.positions == "relative"
            self.tables = RelativeTables(config.relative_clip, config.head_width, learned=learned)
        elif config.positions == "transformer-xl":
            self.tables = Distances(config.relative_clip, config.num_heads, config.head_width, self.scale)

    def forward(self, x_BLD: Tensor, scene: Scene, cache: LayerCache | None = None) -> Tensor:
        """The mixed values, [B, L, D]; the output projection is the caller's, who may want it at few slots only.

        With a cache, the keys and values are those of all its columns, ours written among them.
        """
        q, k, v = self.qkv(x_BLD).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if scene.rotation is not None:
            q, k = Rotary.rotate(q, *scene.rotation), Rotary.rotate(k, *scene.rotation)
        if cache is not None:
            k, v = cache.exchange(k, v)
        return self.attend(q, k, v, scene).transpose(1, 2).flatten(2)

    def attend(self, q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, scene: Scene) -> Tensor:
        if scene.geometry.streams == 2 and scene.visible_BQK is not None:
            return self._attend_two_streams(q_BHQE, k_BHKE, v_BHKE, scene, scene.visible_BQK)
        return self._attend_one(q_BHQE, k_BHKE, v_BHKE, scene)

    def _attend_one(self, q_BHQE: Tensor, k_BHKE: Tensor, v_BHKE: Tensor, scene: Scene) -> Tensor:
        visible = None if scene.visible_BQK is None else scene.visible_BQK[:, None]
        dropout = self.dropout if self.training else 0.0
        if self.tables is None:
            if scene.bias_BQK is not None:
                visible = scene.bias_BQK[:, None]
            return F.scaled_dot_product_attention(
                q_BHQE, k_BHKE, v_BHKE, attn_mask=visible, dropout_p=dropout, scale=self.scale
            )
        q_BHQE = q_BHQE * self.scale
        scores = self.tables.meet(q_BHQE) @ k_BHKE.mT + self.tables.scores(q_BHQE, scene.geometry)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        p_BHQK = F.dropout(scores.softmax(-1), dropout, training=self.training)
        return p_BHQK @ v_BHKE + self.tables.mix(p_BHQK, scene.geometry)

    def _attend_two_streams(self, q: Tensor, k: Tensor, v: Tensor, scene: Scene, visible_BQK: Tensor) -> Tensor:
        """Tokens and queries: both look at the tokens, a query also at itself.

        Half the work of treating the row as one: no score of a query as a key is ever made but its own.
        """
        places = scene.geometry
        n = q.shape[2] // 2 if places.num_tokens is None else places.num_tokens
        run = Geometry(places.query_positions[:, :n], places.key_positions[:, :n], 1)
        is_run = int(places.num_tokens is None)
        geometry = Geometry(places.query_positions[:, n:], places.key_positions[:, :n], is_run)
        k_token, v_token, k_query, v_query = k[:, :, :n], v[:, :, :n], k[:, :, n:], v[:, :, n:]
        tokens = self._attend_one(q[:, :, :n], k_token, v_token, Scene(run, visible_BQK[:, :n, :n], None))

        q = q[:, :, n:] * self.scale
        met = q if self.tables is None else self.tables.meet(q)
        scores, itself = met @ k_token.mT, (met * k_query).sum(-1, keepdim=True)
        if self.tables is not None:
            scores = scores + self.tables.scores(q, geometry)
            itself = itself + self.tables.scores_itself(q)
        sees_itself = visible_BQK[:, n:, n:].diagonal(dim1=1, dim2=2)[..., None]
        visible = torch.cat([visible_BQK[:, n:, :n], sees_itself], dim=-1)[:, None]
        scores = torch.cat([scores, itself], dim=-1).masked_fill(~visible, -torch.inf)
        p = F.dropout(scores.softmax(-1), self.dropout, training=self.training)
        p_token, p_query = p[..., :n], p[..., n:]
        queries = p_token @ v_token + p_query * v_query
        if self.tables is not None:
            queries = queries + self.tables.mix(p_token, geometry) + self.tables.mix_itself(p_query)
        return torch.cat([tokens, queries], dim=2)
