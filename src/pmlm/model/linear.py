"""A linear map that may keep a second copy of its weights, laid out for products with few rows.

Decoding multiplies one row or a few with each matrix, and a general product is up to twice as slow there as one over
weights laid out for it. The copy is made by `pack`, used only where no gradient is asked for, and left as soon as the
weights have changed. It is no part of the state, of copies or of pickles.

Shapes: M rows.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_ROWS = 32
"""With more rows than this a plain product is as fast."""


def _has_onednn() -> bool:
    # private, but what torch's own compiler emits; without it the plain product is used
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Packed:
    """One matrix laid out for one row (transposed), or for 2 to MOST_ROWS (oneDNN's blocks)."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        self.is_single = rows == 1
        self.stamp = stamp(weight)
        data = weight.detach()
        self.weight = data.T.contiguous() if self.is_single else torch.ops.mkldnn._reorder_linear_weight(data, rows)

    def fits(self, weight: Tensor, rows: int) -> bool:
        """Whether it is for this many rows, and of the weights as they are now."""
        return (rows == 1 if self.is_single else 2 <= rows <= MOST_ROWS) and self.stamp == stamp(weight)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.is_single:
            row = x.reshape(1, -1)
            out = row @ self.weight if bias is None else torch.addmm(bias, row, self.weight)
            return out.view(*x.shape[:-1], -1)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, bias, "none", [], "")
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())


def stamp(weight: Tensor) -> tuple[object, ...]:
    """Changes whenever the weights are written to, moved or replaced."""
    return weight.data_ptr(), weight._version, weight.device


def pack_for(weight: Tensor, rows: int, old: Packed | None) -> Packed | None:
    """A layout for products of `rows` rows; the old one where it still serves, or where none would help."""
    can = weight.device.type == "cpu" and weight.dtype == torch.float32 and rows <= MOST_ROWS
    if not can or (rows > 1 and not _has_onednn()):
        return old
    return old if old is not None and old.fits(weight, rows) else Packed(weight, rows)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed | None) -> Tensor:
    """F.linear, from the packed copy where it serves."""
    if packed is None or torch.is_grad_enabled() or not packed.fits(weight, x.numel() // x.shape[-1]):
        return F.linear(x, weight, bias)
    return packed(x, bias)


class Linear(nn.Linear):
    """nn.Linear that can be packed."""

    packed: Packed | None = None

    def pack(self, rows: int) -> None:
        self.packed = pack_for(self.weight, rows, self.packed)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias, self.packed)
