"""Keys and values kept between forward passes, by place on the canvas.

Exact wherever a token's state does not depend on tokens that come after it: for causal visibility, and for order-causal
visibility along any order. Buffers are made once; a pass writes the slots it was given and reads all that it may see.

Shapes: B batch, H heads, S slots of this pass, K columns of the cache, E head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.model.config import ModelConfig


@dataclass(frozen=True)
class LayerCache:
    """One layer's buffers, and where this pass writes."""

    keys_BHKE: Tensor
    values_BHKE: Tensor
    columns_BS: Tensor

    def exchange(self, k_BHSE: Tensor, v_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of this pass; returns those of all columns."""
        rows_B1 = torch.arange(k_BHSE.shape[0], device=k_BHSE.device)[:, None]
        self.keys_BHKE[rows_B1, :, self.columns_BS] = k_BHSE.transpose(1, 2)
        self.values_BHKE[rows_B1, :, self.columns_BS] = v_BHSE.transpose(1, 2)
        return self.keys_BHKE, self.values_BHKE


class Cache:
    """Buffers of all layers: a column for each slot of the canvas, and some more for what only one pass may see."""

    def __init__(self, config: ModelConfig, batch: int, columns: int, device: torch.device) -> None:
        shape = (2, config.num_layers, batch, config.num_heads, columns, config.head_width)
        self.buffers = torch.zeros(shape, device=device)
        self.columns = columns

    def layers(self, columns_BS: Tensor, used: int, first: int = 0) -> list[LayerCache]:
        """For one pass over rows from `first` on that writes at `columns_BS` and reads the first `used` columns."""
        keys, values = self.buffers[:, :, first : first + len(columns_BS), :, :used]
        return [LayerCache(k, v, columns_BS) for k, v in zip(keys, values, strict=True)]
