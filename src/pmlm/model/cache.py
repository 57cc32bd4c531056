"""Keys and values kept between forward passes, in columns that the caller assigns.

Exact wherever a token's state does not depend on tokens that come after it: for causal visibility, and for order-causal
visibility along any order. Buffers are made once; a pass writes the columns it was given and reads a run of them.

Shapes: B batch, H heads, S slots of this pass, K columns of the cache, E head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.model.config import ModelConfig


@dataclass(frozen=True)
class LayerCache:
    """One layer's buffers, where this pass writes, and what it reads."""

    keys_BHKE: Tensor
    values_BHKE: Tensor
    write: Tensor | slice
    """[B, S] columns, or a run of S columns that is the same in all rows."""
    read: slice

    def exchange(self, k_BHSE: Tensor, v_BHSE: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values of this pass; returns those of all columns to be read."""
        if isinstance(self.write, slice):
            self.keys_BHKE[:, :, self.write] = k_BHSE
            self.values_BHKE[:, :, self.write] = v_BHSE
        else:
            rows_B1 = torch.arange(k_BHSE.shape[0], device=k_BHSE.device)[:, None]
            self.keys_BHKE[rows_B1, :, self.write] = k_BHSE.transpose(1, 2)
            self.values_BHKE[rows_B1, :, self.write] = v_BHSE.transpose(1, 2)
        return self.keys_BHKE[:, :, self.read], self.values_BHKE[:, :, self.read]


class Cache:
    """Buffers of all layers: columns for the slots of the canvas, and some more for what only one pass may see."""

    def __init__(self, config: ModelConfig, batch: int, columns: int, device: torch.device) -> None:
        shape = (config.num_layers, batch, config.num_heads, columns, config.head_width)
        self.keys, self.values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.batch, self.columns = batch, columns

    def layers(self, write: Tensor | slice, read: slice, first: int = 0, rows: int | None = None) -> list[LayerCache]:
        """For one pass over `rows` rows from `first` on (all of them, where no number is said)."""
        keys, values = self.keys, self.values
        if rows is not None and rows < self.batch:
            keys, values = keys[:, first : first + rows], values[:, first : first + rows]
        return [LayerCache(k, v, write, read) for k, v in zip(keys.unbind(), values.unbind(), strict=True)]

    def copy_columns(self, other: "Cache", columns: int) -> None:
        """The first columns of another cache with as many rows."""
        self.keys[..., :columns, :] = other.keys[..., :columns, :]
        self.values[..., :columns, :] = other.values[..., :columns, :]

    def move(self, source: int, target: int, columns: int) -> None:
        """The first columns of one row to another."""
        for buffer in (self.keys, self.values):
            buffer[:, target, :, :columns] = buffer[:, source, :, :columns]

    def take(self, rows: Tensor, columns: slice) -> None:
        """Each row goes on with these columns of another."""
        for buffer in (self.keys, self.values):
            buffer[..., columns, :] = buffer[:, rows, :, columns]
