"""A batch of texts as ids: what every objective and every likelihood starts from.

A row holds one text, or several packed side by side; each text is a *group*. Groups do not see each other and their
positions restart. Padding is group -1. `maskable` marks the content tokens that may be hidden and predicted: never
padding, never the start and end markers.

Shapes: B rows, L slots, T texts per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Clean token ids with what may be hidden in them."""

    ids_BL: Tensor
    maskable_BL: Tensor
    group_BL: Tensor
    """The text of the row that a slot belongs to: 0, 1, …; -1 is padding."""
    starts_word_BL: Tensor | None = None
    """True where a word begins; needed by whole-word masking alone."""
    max_texts: int | None = None
    """An upper bound on the texts of a row that does not depend on how rows are split over batches. What is drawn
    per text is drawn for this many; without it, for as many as these rows happen to have."""

    def __post_init__(self) -> None:
        assert self.ids_BL.dtype == self.group_BL.dtype == torch.long
        assert self.maskable_BL.dtype == torch.bool
        assert self.ids_BL.shape == self.group_BL.shape == self.maskable_BL.shape
        assert not (self.maskable_BL & (self.group_BL < 0)).any(), "padding cannot be maskable"

    @property
    def num_rows(self) -> int:
        return self.ids_BL.shape[0]

    @property
    def length(self) -> int:
        return self.ids_BL.shape[1]

    @property
    def num_texts(self) -> int:
        """T: the bound on the texts of one row, or their largest number here."""
        return self.max_texts or max(int(self.group_BL.max()) + 1, 1)

    def is_uniform(self) -> bool:
        """True where every row is one text without padding, so that everybody may see everybody."""
        return bool((self.group_BL == 0).all())

    def positions_BL(self) -> Tensor:
        """Position of each slot within its text; 0 in padding."""
        return group_positions(self.group_BL)

    def rows(self, index_B: Tensor) -> "Batch":
        """Some rows, in the given order, with repeats allowed."""
        words = None if self.starts_word_BL is None else self.starts_word_BL[index_B]
        return Batch(self.ids_BL[index_B], self.maskable_BL[index_B], self.group_BL[index_B], words, self.max_texts)

    def to(self, device: torch.device) -> "Batch":
        words = None if self.starts_word_BL is None else self.starts_word_BL.to(device)
        return Batch(
            self.ids_BL.to(device), self.maskable_BL.to(device), self.group_BL.to(device), words, self.max_texts
        )


def group_positions(group_BL: Tensor) -> Tensor:
    """Slot number within the group, restarting wherever the group changes; 0 in padding."""
    slot_L = torch.arange(group_BL.shape[1], device=group_BL.device)
    changed_BL = torch.ones_like(group_BL, dtype=torch.bool)
    changed_BL[:, 1:] = group_BL[:, 1:] != group_BL[:, :-1]
    start_BL = torch.where(changed_BL, slot_L, 0).cummax(dim=1).values
    return torch.where(group_BL >= 0, slot_L - start_BL, 0)


def group_counts(flag_BL: Tensor, group_BL: Tensor, num_texts: int) -> Tensor:
    """[B, T] how many flagged slots each text has."""
    counts_BT = torch.zeros(group_BL.shape[0], num_texts + 1, dtype=torch.long, device=group_BL.device)
    counts_BT.scatter_add_(1, group_BL.clamp(min=-1) + 1, flag_BL.long())
    return counts_BT[:, 1:]


def spread(value_BT: Tensor, group_BL: Tensor) -> Tensor:
    """[B, L] each slot's value of its text; 0 in padding."""
    return torch.where(group_BL >= 0, value_BT.gather(1, group_BL.clamp(min=0)), 0)


def make_batch(
    rows: Sequence[Sequence[int]],
    maskable: Sequence[Sequence[bool]],
    *,
    pad_id: int,
    length: int | None = None,
) -> Batch:
    """One text per row, padded on the right to the longest or to `length`."""
    width = length or max(len(row) for row in rows)
    ids_BL = torch.full((len(rows), width), pad_id, dtype=torch.long)
    maskable_BL = torch.zeros(len(rows), width, dtype=torch.bool)
    group_BL = torch.full((len(rows), width), -1, dtype=torch.long)
    for b, (row, flags) in enumerate(zip(rows, maskable, strict=True)):
        ids_BL[b, : len(row)] = torch.tensor(row, dtype=torch.long)
        maskable_BL[b, : len(row)] = torch.tensor(flags, dtype=torch.bool)
        group_BL[b, : len(row)] = 0
    return Batch(ids_BL, maskable_BL, group_BL)
