"""The masking prior: exact laws of counts and patterns, and draws that follow them."""

import itertools
import math

import numpy as np
import pytest
import torch

from fakes import bare_batch, framed_batch, random_rows
from pmlm.batch import Batch, group_counts
from pmlm.errors import ConfigError
from pmlm.masking import Masking, Prior, corrupt, count_logp, draw_hidden, pattern_logp, quantile_counts, scheduled
from pmlm.runtime import RowRandom

PRIORS = [
    Prior(kind="fixed", ratio=0.15),
    Prior(kind="fixed", ratio=1.0),
    Prior(),
    Prior(low=0.2, high=0.7),
    Prior(low=0.0, high=0.3),
    Prior(kind="beta", a=2.0, b=5.0),
    Prior(kind="table", weights=(1.0, 2.0, 0.0, 4.0, 1.0, 1.0, 1.0)),
]


def integrate(prior: Prior, k: int, n: int) -> float:
    """p(M) by brute-force numerical integration."""
    r = (np.arange(400_000) + 0.5) / 400_000
    match prior.kind:
        case "uniform":
            density = ((r >= prior.low) & (r <= prior.high)) / (prior.high - prior.low)
        case "beta":
            log_b = math.lgamma(prior.a) + math.lgamma(prior.b) - math.lgamma(prior.a + prior.b)
            density = np.exp((prior.a - 1) * np.log(r) + (prior.b - 1) * np.log(1 - r) - log_b)
        case _:
            raise AssertionError
    return float((r**k * (1 - r) ** (n - k) * density).mean())


@pytest.mark.parametrize("prior", PRIORS, ids=str)
@pytest.mark.parametrize("num", [1, 2, 5, 6])
def test_pattern_probabilities_sum_to_one_over_every_pattern(prior: Prior, num: int) -> None:
    total = sum(math.exp(pattern_logp(prior, sum(m), num)) for m in itertools.product([0, 1], repeat=num))
    assert total == pytest.approx(1, abs=1e-12)
    assert np.exp(count_logp(prior, num)).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "prior", [Prior(), Prior(low=0.2, high=0.7), Prior(low=0.0, high=0.3), Prior(kind="beta", a=2.0, b=5.0)], ids=str
)
@pytest.mark.parametrize(("k", "num"), [(0, 4), (2, 4), (4, 4), (7, 20)])
def test_pattern_probability_is_the_integral_over_the_prior(prior: Prior, k: int, num: int) -> None:
    assert math.exp(pattern_logp(prior, k, num)) == pytest.approx(integrate(prior, k, num), rel=1e-5)


@pytest.mark.parametrize("num", [1, 2, 7, 128, 512])
def test_uniform_prior_makes_every_count_equally_likely(num: int) -> None:
    assert np.allclose(np.exp(count_logp(Prior(), num)), 1 / (num + 1))
    near = count_logp(Prior(low=0.0, high=1 - 1e-12), num)  # the quadrature agrees with the closed form
    assert np.allclose(np.exp(near), 1 / (num + 1), atol=1e-9)
    k = np.array([0, num // 2, num])
    expected = [math.lgamma(num - i + 1) + math.lgamma(i + 1) - math.lgamma(num + 2) for i in k]
    assert [pattern_logp(Prior(), int(i), num) for i in k] == pytest.approx(expected)


def test_long_texts_do_not_underflow() -> None:
    for prior in PRIORS[2:6]:
        assert np.isfinite(count_logp(prior, 512)).all()
        assert np.exp(count_logp(prior, 512)).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("draw", ["ratio", "count", "stratified"])
@pytest.mark.parametrize("prior", [PRIORS[0], PRIORS[2], PRIORS[3], PRIORS[5]], ids=str)
def test_drawn_counts_follow_their_law(draw: str, prior: Prior) -> None:
    num, rows = 6, 20_000
    batch = bare_batch(*([[3] * num] * rows))
    hidden = draw_hidden(batch, Masking(prior=prior, draw=draw), RowRandom.whole(1, 1, rows))  # type: ignore[arg-type]
    seen = torch.bincount(hidden.sum(1), minlength=num + 1).double() / rows
    law = torch.from_numpy(np.exp(count_logp(prior, num)).copy())
    if draw != "ratio":  # counts are drawn given that something is hidden
        law[0] = 0
        law /= law.sum()
    tolerance = 2 / rows * num if draw == "stratified" else 4 * 0.5 / math.sqrt(rows)
    assert (seen - law).abs().max() < tolerance
    assert (hidden.double().mean(0) - hidden.double().mean()).abs().max() < 0.02  # no position is favoured


def test_positions_given_the_count_are_uniform_over_subsets() -> None:
    rows = 12_000
    batch = bare_batch(*([[3] * 4] * rows))
    table = Prior(kind="table", weights=(0, 0, 1))
    hidden = draw_hidden(batch, Masking(prior=table, draw="count"), RowRandom.whole(1, 1, rows))
    code = (hidden.long() * torch.tensor([1, 2, 4, 8])).sum(1)
    seen = torch.bincount(code, minlength=16)[[3, 5, 9, 6, 10, 12]]
    assert seen.sum() == rows
    assert (seen.double() / rows - 1 / 6).abs().max() < 0.015


def test_stratified_counts_have_far_less_variance() -> None:
    batch = bare_batch(*([[3] * 64] * 64))

    def spread_of(draw: str) -> float:
        means = [
            draw_hidden(batch, Masking(draw=draw), RowRandom.whole(1, step, 64)).double().mean()  # type: ignore[arg-type]
            for step in range(60)
        ]
        return float(torch.stack(means).std())

    assert spread_of("stratified") < spread_of("count") / 5


@pytest.mark.parametrize("unit", ["token", "word", "span", "words"])
@pytest.mark.parametrize("draw", ["ratio", "count", "stratified"])
def test_markers_and_padding_are_never_hidden(unit: str, draw: str) -> None:
    batch = framed_batch(*random_rows(40, 7), [5], [6, 7], length=12)
    words = torch.zeros_like(batch.maskable_BL)
    words[:, ::2] = True
    batch = Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL, words)
    masking = Masking(prior=Prior(low=0.5, high=1.0), draw=draw, unit=unit)  # type: ignore[arg-type]
    hidden = draw_hidden(batch, masking, RowRandom.whole(2, 1, batch.num_rows))
    assert hidden.any()
    assert not (hidden & ~batch.maskable_BL).any()


def test_runs_of_words_are_whole_and_of_one_to_five_words_all_as_often() -> None:
    rows, length = 3000, 60
    batch = bare_batch(*([[3] * length] * rows))
    words = torch.arange(length).expand(rows, length) % 3 != 1  # words of one and of two tokens
    batch = Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL, words)
    least = Masking(prior=Prior(kind="table", weights=(0.0, 1.0)), draw="count", unit="words")
    hidden = draw_hidden(batch, least, RowRandom.whole(1, 1, rows))  # one token is aimed at: one run is hidden
    word = words.long().cumsum(1)
    sizes = []
    for row_hidden, row_word in zip(hidden, word, strict=True):
        slots = row_hidden.nonzero()[:, 0]
        assert (slots.diff() == 1).all()
        assert row_hidden[torch.isin(row_word, row_word[slots])].all()
        if slots[0] > 0 and slots[-1] < length - 1:  # a run at the edge may be cut
            sizes.append(len(row_word[slots].unique()))
    shares = [sizes.count(n) / len(sizes) for n in range(1, 6)]
    assert sum(shares) == 1
    assert shares == pytest.approx([0.2] * 5, abs=0.04)


def test_words_are_hidden_whole() -> None:
    batch = bare_batch(*([[3] * 8] * 200))
    words = torch.tensor([True, False, True, True, False, False, True, False]).expand(200, 8)
    batch = Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL, words)
    hidden = draw_hidden(batch, Masking(unit="word"), RowRandom.whole(1, 1, 200))
    word = words.long().cumsum(1)
    for row_hidden, row_word in zip(hidden, word, strict=True):
        for w in row_word.unique():
            assert row_hidden[row_word == w].unique().numel() == 1
    assert 0.3 < hidden.double().mean() < 0.8


def test_spans_are_longer_than_chance() -> None:
    batch = bare_batch(*([[3] * 60] * 100))
    fixed = Prior(kind="fixed", ratio=0.3)

    def mean_run(unit: str) -> float:
        hidden = draw_hidden(batch, Masking(prior=fixed, unit=unit, mean_span=4), RowRandom.whole(1, 1, 100))  # type: ignore[arg-type]
        starts = hidden[:, 0].sum() + (hidden[:, 1:] & ~hidden[:, :-1]).sum()
        return float(hidden.sum() / starts)

    assert mean_run("span") > 2 * mean_run("token")


def test_packed_texts_draw_their_own_counts() -> None:
    group = torch.tensor([[0] * 4 + [1] * 6 + [-1] * 2]).expand(4000, 12).contiguous()
    batch = Batch(torch.full_like(group, 3), group >= 0, group)
    hidden = draw_hidden(batch, Masking(), RowRandom.whole(1, 1, 4000))
    counts = group_counts(hidden, group, 2)
    for text, num in ((0, 4), (1, 6)):
        seen = torch.bincount(counts[:, text], minlength=num + 1).double() / 4000
        assert (seen[1:] - 1 / num).abs().max() < 0.002
        assert seen[0] == 0
    both = torch.corrcoef(counts.T.double())[0, 1]
    assert both.abs() < 0.06


def test_quantiles_of_a_text_without_tokens_are_zero() -> None:
    num = torch.tensor([[0, 1, 3]])
    for prior in (Prior(), Prior(kind="fixed", ratio=0.15)):
        counts = quantile_counts(prior, num, torch.tensor([[0.9, 0.999999, 0.0]], dtype=torch.float64))
        assert counts.tolist() == [[0, 1, 1]]


def test_a_scheduled_prior_starts_and_ends_exactly_where_it_says() -> None:
    end = Prior(kind="fixed", ratio=0.0004567)
    masking = Masking(prior=end, start_prior=Prior(kind="fixed", ratio=0.5), ramp=0.5)
    assert scheduled(masking, 0.0).prior.ratio == 0.5
    assert scheduled(masking, 0.25).prior.ratio == pytest.approx((0.5 + 0.0004567) / 2)
    assert scheduled(masking, 0.5).prior == scheduled(masking, 1.0).prior == end
    assert scheduled(Masking(), 0.3) == Masking()
    assert len({scheduled(masking, p / 10_000).prior for p in range(10_000)}) <= 201
    with pytest.raises(ConfigError, match="same kind"):
        Masking(start_prior=Prior(kind="beta"))


def test_laws_cannot_be_changed_by_their_readers_and_short_texts_hide_something() -> None:
    with pytest.raises(ValueError, match="read-only"):
        count_logp(Prior(), 5)[0] = 0.0
    table = Prior(kind="table", weights=(1.0, 0.0, 0.0, 1.0))
    assert quantile_counts(table, torch.tensor([[2]]), torch.tensor([[0.5]], dtype=torch.float64)).tolist() == [[1]]


def test_corruption_all_mask_and_80_10_10() -> None:
    ids = torch.full((300, 50), 7)
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[:, ::2] = True
    random = RowRandom.whole(1, 1, 300)
    plain = torch.arange(5, 100)
    seen = corrupt(ids, hidden, Masking(), random, mask_id=0, plain_ids_V=plain)
    assert (seen[hidden] == 0).all()
    assert (seen[~hidden] == 7).all()
    seen = corrupt(ids, hidden, Masking(corruption="80-10-10"), random, mask_id=0, plain_ids_V=plain)
    assert (seen[~hidden] == 7).all()
    share = [(seen[hidden] == 0).double().mean(), (seen[hidden] == 7).double().mean()]
    assert share == pytest.approx([0.8, 0.1 + 0.1 / 95], abs=0.015)
    assert seen[hidden].unique().min() >= 0
    assert not torch.isin(seen, torch.tensor([1, 2, 3, 4])).any()


@pytest.mark.parametrize("bad", [{"low": 0.5, "high": 0.5}, {"high": 1.5}, {"ratio": 0.0}, {"kind": "beta", "a": 0.0}, {"kind": "table"},
                                 {"kind": "table", "weights": (1.0, -1.0, 2.0)}])  # fmt: skip
def test_impossible_priors_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Prior(**bad)  # type: ignore[arg-type]


def test_a_table_is_drawn_by_count_alone() -> None:
    with pytest.raises(ConfigError, match="table"):
        Masking(prior=Prior(kind="table", weights=(0, 1)), draw="ratio")
