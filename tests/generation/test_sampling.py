"""Sampling filters on any leading shape, and draws that follow the distribution."""

import pytest
import torch

from pmlm.errors import ConfigError
from pmlm.generation.sampling import Sampling, draw_tokens, sampling_logp
from pmlm.runtime import generator

P = torch.tensor([0.5, 0.25, 0.15, 0.1])
ALL = torch.ones(4, dtype=torch.bool)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.5, 0.25, 0.15, 0.1]),
        (Sampling(temperature=0.5), [0.25, 0.0625, 0.0225, 0.01]),
        (Sampling(temperature=0), [1, 0, 0, 0]),
        (Sampling(top_k=2), [0.5, 0.25, 0, 0]),
        (Sampling(top_p=0.6), [0.5, 0.25, 0, 0]),
        (Sampling(top_p=0.5), [0.5, 0, 0, 0]),
        (Sampling(top_p=1e-9), [1, 0, 0, 0]),
        (Sampling(min_p=0.25), [0.5, 0.25, 0.15, 0]),
        (Sampling(min_p=0.0), [0.5, 0.25, 0.15, 0.1]),
        (Sampling(top_k=3, min_p=0.4), [0.5, 0.25, 0, 0]),
    ],
)
def test_filters_act_on_the_last_dimension(shape: tuple[int, ...], sampling: Sampling, expected: list[float]) -> None:
    got = sampling_logp(P.log().expand(shape), ALL, sampling).exp()
    target = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(got, (target / target.sum()).expand(shape), atol=1e-7)


def test_what_is_not_allowed_is_gone_before_the_filters() -> None:
    allowed = torch.tensor([False, True, True, True])
    assert sampling_logp(P.log(), allowed, Sampling(top_k=1)).exp().tolist() == [0, 1, 0, 0]
    assert sampling_logp(P.log(), allowed, Sampling()).exp().tolist() == pytest.approx([0, 0.5, 0.3, 0.2])


def test_the_penalty_falls_on_what_is_present_alone() -> None:
    present = torch.tensor([True, False, False, True])
    got = sampling_logp(P.log(), ALL, Sampling(repetition_penalty=2.0), present).exp()
    expected = torch.tensor([0.25, 0.25, 0.15, 0.05], dtype=torch.float64)
    assert torch.allclose(got, expected / expected.sum(), atol=1e-7)
    assert torch.allclose(sampling_logp(P.log(), ALL, Sampling(), present).exp().float(), P, atol=1e-6)


def test_top_p_stops_as_soon_as_the_probability_is_reached() -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64).log()  # exact, so the edge itself is tested
    assert sampling_logp(half, ALL[:2], Sampling(top_p=0.5)).exp().tolist() == [1, 0]


def test_a_tiny_temperature_is_greedy() -> None:
    assert sampling_logp(P.log(), ALL, Sampling(temperature=1e-300)).exp().tolist() == [1, 0, 0, 0]


UNIFORM = torch.rand(8000, generator=generator(1), dtype=torch.float64)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=3), Sampling(min_p=0.3)])
def test_draws_follow_the_distribution_and_say_its_log_probability(sampling: Sampling) -> None:
    allowed = torch.tensor([True, False, True, True])
    expected = sampling_logp(P.log(), allowed, sampling)
    tokens, logp = draw_tokens(P.log().expand(8000, -1), allowed.expand(8000, -1), sampling, UNIFORM)
    seen = torch.bincount(tokens, minlength=4) / 8000
    assert torch.allclose(seen, expected.exp().float(), atol=0.02)
    assert torch.allclose(logp, expected[tokens], atol=1e-6)


@pytest.mark.parametrize("edge", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_something_that_is_allowed(edge: float) -> None:
    allowed = torch.tensor([[False, True, True, False]])
    for sampling in (Sampling(), Sampling(temperature=0), Sampling(top_k=2)):
        token, logp = draw_tokens(P.log()[None], allowed, sampling, torch.tensor([edge], dtype=torch.float64))
        assert allowed[0, token]
        assert logp.isfinite().all()


def test_what_is_hardly_possible_is_drawn_where_nothing_else_may_be() -> None:
    logp = torch.tensor([[0.0, -300.0, -301.0]])
    allowed = torch.tensor([[False, True, True]])
    tokens, sampled = draw_tokens(logp.expand(8000, -1), allowed.expand(8000, -1), Sampling(), UNIFORM)
    assert (tokens == 1).double().mean().item() == pytest.approx(1 / (1 + 1 / 2.71828), abs=0.02)
    assert sampled.exp().max().item() < 0.74


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**bad)  # type: ignore[arg-type]
