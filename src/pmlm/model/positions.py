"""How a network knows where a token stands: the paper's A and R variants, XLNet's distances, and rotary.

Absolute (A) is an embedding added at the input and needs nothing here beyond its table. Relative (R) follows Shaw
et al. (2018): an offset-dependent vector is added to keys *and* to values. The tables are shared by the heads of a
layer, and no L x L x E tensor is built: queries meet the table of offsets once, and the products are laid out by
offset. Where slots are contiguous runs of positions, that layout is a view ("skew"); otherwise it is a gather.
XLNet's (Dai et al. 2019) acts on keys alone; it has the same layouts and so the same interface.

Shapes: B batch, H heads, Q query slots, K key slots, E head width, D width, R offsets in the table, N run length.
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
    num_tokens: int | None = None
    """streams 2, where some tokens have no query: how many slots are tokens. The queries stand anywhere then."""


def wave_rates(width: int) -> Tensor:
    """[width / 2] radians per place, from 1 down to nearly 1 / 10000."""
    return torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)


def wave_columns(num: int) -> Tensor:
    """[2 num] where `sinusoids` has the sines, then the cosines, of the first rates."""
    return torch.cat([torch.arange(0, 2 * num, 2), torch.arange(1, 2 * num, 2)])


def sinusoids(places: Tensor, width: int) -> Tensor:
    """[places, width] sines (even columns) and cosines (odd) of wavelengths up to 2 pi 10000."""
    angle = places.double()[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class RelativeTables(nn.Module):
    """One layer's vectors for the offsets -clip … clip, for keys and for values."""

    def __init__(self, clip: int, width: int, *, learned: bool) -> None:
        super().__init__()
        self.clip, self.learned = clip, learned
        num = 2 * clip + 1
        if learned:
            self.keys = nn.Parameter(torch.empty(num, width))
            self.values = nn.Parameter(torch.empty(num, width))
        else:
            self.register_buffer("keys", sinusoids(torch.arange(num), width), persistent=False)
            self.register_buffer("values", sinusoids(torch.arange(num), width), persistent=False)

    def meet(self, q_BHQE: Tensor) -> Tensor:
        """What of a query meets the keys."""
        return q_BHQE

    def scores(self, q_BHQE: Tensor, geometry: Geometry) -> Tensor:
        """[B, H, Q, K] the product of each query with the key vector of its offset to each key."""
        if geometry.streams == 1:
            return _skew(q_BHQE @ _run_table(self.keys, q_BHQE.shape[2]).T)
        return _to_keys(q_BHQE @ self.keys.T, geometry)

    def scores_itself(self, q_BHQE: Tensor) -> Tensor:
        """[B, H, Q, 1] the same product for the offset of a slot to itself."""
        return (q_BHQE * self.keys[self.clip]).sum(-1, keepdim=True)

    def mix(self, p_BHQK: Tensor, geometry: Geometry) -> Tensor:
        """[B, H, Q, E] the value vectors of the offsets, mixed by attention probabilities."""
        if geometry.streams == 1:
            return _unskew(p_BHQK) @ _run_table(self.values, p_BHQK.shape[2])
        index = _index(geometry, self.clip)[:, None].expand_as(p_BHQK)
        by_offset = p_BHQK.new_zeros(*p_BHQK.shape[:3], 2 * self.clip + 1).scatter_add(-1, index, p_BHQK)
        return by_offset @ self.values

    def mix_itself(self, p_BHQ1: Tensor) -> Tensor:
        """[B, H, Q, E] the value vector of the offset of a slot to itself."""
        return p_BHQ1 * self.values[self.clip]


class Distances(nn.Module):
    """One layer's keys for the distances -clip … clip: sinusoids of the model's width through a learned matrix.

    A query meets the keys of tokens with one bias and the keys of distances with another. Values know no distance.
    """

    def __init__(self, clip: int, num_heads: int, head_width: int, scale: float) -> None:
        super().__init__()
        width = num_heads * head_width
        self.clip, self.num_heads, self.scale = clip, num_heads, scale
        self.project = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, head_width))
        self.distance_bias = nn.Parameter(torch.zeros(num_heads, head_width))
        distance = torch.arange(clip, -clip - 1, -1)  # a key to the left, of negative offset, is at a positive distance
        self.register_buffer("waves_RD", sinusoids(distance, width), persistent=False)

    def meet(self, q_BHQE: Tensor) -> Tensor:
        """Queries come scaled, so the biases have to be."""
        return q_BHQE + self.scale * self.content_bias[:, None]

    def scores(self, q_BHQE: Tensor, geometry: Geometry) -> Tensor:
        waves_RD = self.get_buffer("waves_RD")
        if geometry.streams == 1:
            return _skew(self._by_offset(q_BHQE, _run_table(waves_RD, q_BHQE.shape[2])))
        return _to_keys(self._by_offset(q_BHQE, waves_RD), geometry)

    def scores_itself(self, q_BHQE: Tensor) -> Tensor:
        return self._by_offset(q_BHQE, self.get_buffer("waves_RD")[self.clip : self.clip + 1])

    def mix(self, p_BHQK: Tensor, geometry: Geometry) -> Tensor:
        del geometry
        return p_BHQK.new_zeros(())

    def mix_itself(self, p_BHQ1: Tensor) -> Tensor:
        return p_BHQ1.new_zeros(())

    def _by_offset(self, q_BHQE: Tensor, waves_RD: Tensor) -> Tensor:
        """[B, H, Q, R] each query with the key of each distance."""
        keys_HER = self.project(waves_RD).unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0)
        return (q_BHQE + self.scale * self.distance_bias[:, None]) @ keys_HER


def _run_table(table: Tensor, run: int) -> Tensor:
    """The rows of a table of offsets -clip … clip for the offsets -(N-1) … N-1."""
    clip = len(table) // 2
    return table[torch.arange(1 - run, run, device=table.device).clamp(-clip, clip) + clip]


def _index(geometry: Geometry, clip: int) -> Tensor:
    """[B or 1, Q, K] rows of such a table."""
    offset = geometry.key_positions[:, None, :] - geometry.query_positions[:, :, None]
    return offset.clamp(-clip, clip) + clip


def _to_keys(by_offset: Tensor, geometry: Geometry) -> Tensor:
    """[B, H, Q, R] by offset to [B, H, Q, K] by key."""
    index = _index(geometry, by_offset.shape[-1] // 2)[:, None].expand(*by_offset.shape[:3], -1)
    return by_offset.gather(-1, index)


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

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.register_buffer("rate_F", wave_rates(head_width), persistent=False)

    def angles(self, positions_BL: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each [B or 1, 1, L, E/2]."""
        angle = positions_BL[:, None, :, None] * self.get_buffer("rate_F")
        return angle.cos(), angle.sin()

    @staticmethod
    def rotate(x_BHLE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x_BHLE.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
