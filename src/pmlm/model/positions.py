"""How a network knows where a token stands: the paper's A and R variants, and rotary.

Absolute (A) is an embedding added at the input and needs nothing here beyond its table. Relative (R) follows Shaw
et al. (2018): an offset-dependent vector is added to keys *and* to values. The tables are shared by the heads of a
layer, and no L x L x E tensor is built: queries meet the table of offsets once, and the products are laid out by
offset. Where slots are contiguous runs of positions, that layout is a view ("skew"); otherwise it is a gather.

Shapes: B batch, H heads, Q query slots, K key slots, E head width, R offsets in the table, N run length.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Geometry(NamedTuple):
    """Where queries and keys stand, computed once per forward pass and shared by all layers."""

    query_positions: Tensor
    """[B or 1, Q]"""
    key_positions: Tensor
    """[B or 1, K]"""
    streams: int
    """1: the slots are one contiguous run of positions. 2: such a run of tokens, then a query for each, which nobody
    sees but itself. 0: neither is promised."""


def sinusoids(num: int, width: int) -> Tensor:
    """[num, width] sines (even columns) and cosines (odd) of wavelengths up to 2 pi 10000."""
    angle = torch.arange(num, dtype=torch.float64)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class RelativeTables(nn.Module):
    """One layer's vectors for the offsets -clip … clip, for keys and for values."""

    def __init__(self, clip: int, width: int, *, learned: bool) -> None:
        super().__init__()
        self.clip = clip
        num = 2 * clip + 1
        if learned:
            self.keys = nn.Parameter(torch.empty(num, width))
            self.values = nn.Parameter(torch.empty(num, width))
        else:
            self.register_buffer("keys", sinusoids(num, width), persistent=False)
            self.register_buffer("values", sinusoids(num, width), persistent=False)

    def scores(self, q_BHQE: Tensor, geometry: Geometry) -> Tensor:
        """[B, H, Q, K] the product of each query with the key vector of its offset to each key."""
        if geometry.streams == 1:
            return _skew(q_BHQE @ self._run_table(self.keys, q_BHQE.shape[2]).T)
        by_offset = q_BHQE @ self.keys.T
        index = self._index(geometry)[:, None].expand(*q_BHQE.shape[:3], -1)
        return by_offset.gather(-1, index)

    def mix(self, p_BHQK: Tensor, geometry: Geometry) -> Tensor:
        """[B, H, Q, E] the value vectors of the offsets, mixed by attention probabilities."""
        if geometry.streams == 1:
            return _unskew(p_BHQK) @ self._run_table(self.values, p_BHQK.shape[2])
        index = self._index(geometry)[:, None].expand_as(p_BHQK)
        by_offset = p_BHQK.new_zeros(*p_BHQK.shape[:3], 2 * self.clip + 1).scatter_add(-1, index, p_BHQK)
        return by_offset @ self.values

    def _run_table(self, table: Tensor, run: int) -> Tensor:
        """[2N-1, E] the vectors of the offsets -(N-1) … N-1."""
        offsets = torch.arange(1 - run, run, device=table.device).clamp(-self.clip, self.clip)
        return table[offsets + self.clip]

    def _index(self, geometry: Geometry) -> Tensor:
        """[B or 1, Q, K] rows of the table."""
        offset = geometry.key_positions[:, None, :] - geometry.query_positions[:, :, None]
        return offset.clamp(-self.clip, self.clip) + self.clip


def _skew(by_offset: Tensor) -> Tensor:
    """[..., N, 2N-1] indexed by (i, j-i+N-1) to [..., N, N] indexed by (i, j), by padding and reshaping alone."""
    n = by_offset.shape[-2]
    flat = F.pad(by_offset, (0, 1)).flatten(-2)  # row i of width 2N; entry (i, j) sits at 2N i + j - i + N - 1
    return flat[..., n - 1 : n - 1 + n * (2 * n - 1)].unflatten(-1, (n, 2 * n - 1))[..., :n]


def _unskew(by_key: Tensor) -> Tensor:
    """The inverse of `_skew`: [..., N, N] to [..., N, 2N-1], zero where no key has the offset."""
    n = by_key.shape[-1]
    flat = F.pad(by_key, (0, n - 1)).flatten(-2)
    return F.pad(flat, (n - 1, 1))[..., : 2 * n * n].unflatten(-1, (n, 2 * n))[..., : 2 * n - 1]


class Rotary(nn.Module):
    """Rotates pairs of a query's or key's components by an angle proportional to its position."""

    def __init__(self, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        rate = torch.exp(-math.log(base) * torch.arange(0, head_width, 2) / head_width)
        self.register_buffer("rate_F", rate, persistent=False)

    def angles(self, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each [B or 1, 1, L, E/2]."""
        angle = positions_BL[:, None, :, None] * self.get_buffer("rate_F")
        return angle.cos(), angle.sin()

    @staticmethod
    def rotate(x_BHLE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x_BHLE.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
