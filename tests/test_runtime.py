"""Random streams: named, and independent of how rows are split."""

import torch

from pmlm.runtime import RowRandom, generator, stream_seed


def test_streams_are_named_and_repeatable() -> None:
    assert stream_seed(1, "a") == stream_seed(1, "a") != stream_seed(1, "b")
    assert stream_seed(1, "1") != stream_seed(11, "")
    assert torch.equal(torch.rand(3, generator=generator(1, "x")), torch.rand(3, generator=generator(1, "x")))


def test_rows_draw_the_same_numbers_however_they_are_split() -> None:
    whole = RowRandom.whole(seed=3, step=7, total=10)
    for draw in ("uniform", "stratified"):
        full = getattr(whole, draw)("s", 4)
        halves = [getattr(RowRandom(3, 7, torch.arange(a, a + 5), 10), draw)("s", 4) for a in (0, 5)]
        assert torch.equal(full, torch.cat(halves))


def test_stratified_draws_hit_every_stratum_once() -> None:
    u = RowRandom.whole(seed=1, step=1, total=50).stratified("s", 3)
    for column in (u * 50).floor().long().T:
        assert sorted(column.tolist()) == list(range(50))
