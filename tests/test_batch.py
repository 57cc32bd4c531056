"""Batches: padding, packing, positions."""

import torch

from pmlm.batch import Batch, group_counts, group_positions, make_batch, spread


def test_padding_is_a_group_of_its_own_and_never_maskable() -> None:
    batch = make_batch([[5, 6, 7], [8]], [[False, True, True], [True]], pad_id=0)
    assert batch.group_BL.tolist() == [[0, 0, 0], [0, -1, -1]]
    assert batch.maskable_BL.tolist() == [[False, True, True], [True, False, False]]
    assert not batch.is_uniform()
    assert batch.rows(torch.tensor([0])).is_uniform()


def test_positions_restart_with_each_packed_text() -> None:
    group = torch.tensor([[0, 0, 1, 1, 1, 2, -1, -1], [0] * 8])
    assert group_positions(group).tolist() == [[0, 1, 0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6, 7]]


def test_counts_and_spread_go_by_text() -> None:
    group = torch.tensor([[0, 0, 1, 1, -1]])
    flags = torch.tensor([[True, False, True, True, True]])
    counts = group_counts(flags, group, 2)
    assert counts.tolist() == [[1, 2]]
    assert spread(counts, group).tolist() == [[1, 1, 2, 2, 0]]


def test_rows_may_repeat() -> None:
    batch = Batch(torch.arange(6).view(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.long))
    assert batch.rows(torch.tensor([1, 1])).ids_BL.tolist() == [[3, 4, 5], [3, 4, 5]]
