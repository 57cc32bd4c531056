"""Exact likelihoods: against tables, against token-by-token recomputation, and the bounds against both."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from fakes import TableModel, UniformModel, bare_batch, framed_batch, random_rows, tiny_model
from pmlm.batch import Batch, make_batch
from pmlm.errors import OrderError
from pmlm.likelihood import (
    arranged_ranks,
    bound_nll,
    check_order,
    check_visibility,
    hidden_logp,
    importance_weighted_nll,
    l2r_ranks,
    order_logp,
    order_ranks,
    policy_logp,
    random_ranks,
)
from pmlm.model import Slots, Visibility
from pmlm.orders import Order, choose, parse_order
from pmlm.runtime import RowRandom, generator

BOTH: list[Visibility] = ["bidirectional", "order-causal"]
ORDERED: list[Visibility] = ["order-causal", "two-stream"]


@pytest.mark.parametrize("visibility", ["bidirectional", "known-only", *ORDERED])
def test_every_order_of_a_consistent_model_gives_the_joint(visibility: Visibility) -> None:
    model = TableModel(vocab=4, length=4)
    for ids in ([1, 2, 3, 1], [3, 3, 1, 2]):
        for order in itertools.permutations(range(4)):
            batch = bare_batch(ids)
            logp = order_logp(model, batch, order_ranks(batch, [list(order)]), visibility)
            assert logp.sum().item() == pytest.approx(model.log_joint(ids), abs=1e-5)


@pytest.mark.parametrize("visibility", ["bidirectional", "known-only", *ORDERED, "causal"])
def test_texts_go_to_the_device_of_the_model_and_figures_come_back(visibility: Visibility) -> None:
    model = UniformModel(vocab=6, device="meta")  # asserts that all it is given is there
    batch = bare_batch([1, 2, 3, 1], [2, 2, 1, 5])
    expected = pytest.approx([-4 * math.log(5)] * 2)
    assert order_logp(model, batch, l2r_ranks(batch), visibility).sum(1).tolist() == expected
    random = RowRandom(1, 0, torch.arange(2), 2)
    assert (-bound_nll(model, batch, visibility, random)).tolist() == expected
    if visibility != "causal":
        assert policy_logp(model, batch, "confidence", visibility)[0].sum(1).tolist() == expected


def test_left_to_right_models_give_the_joint_too() -> None:
    model = TableModel(vocab=4, length=4, causal=True)
    batch = bare_batch([1, 2, 3, 1], [2, 2, 1, 3])
    logp = order_logp(model, batch, l2r_ranks(batch), "causal").sum(1)
    assert logp.tolist() == pytest.approx([model.log_joint(row) for row in batch.ids_BL.tolist()], abs=1e-5)


@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary", "transformer-xl"])
@pytest.mark.parametrize("num_given", [0, 2])
@pytest.mark.parametrize("visibility", ORDERED)
def test_one_ordered_pass_equals_token_by_token_recomputation(
    positions: str, num_given: int, visibility: Visibility
) -> None:
    model = tiny_model(positions=positions)
    rows = random_rows(3, 7)
    batch = framed_batch(*rows)
    order = torch.randperm(7, generator=generator(1)).add(1).tolist()[num_given:]
    rank = order_ranks(batch, [order] * 3)
    logp = order_logp(model, batch, rank, visibility)
    for t, slot in enumerate(order, start=1):
        hidden = rank >= t
        at = Slots(torch.arange(3), torch.full((3,), slot))
        again = hidden_logp(model, batch, hidden & (rank > 0), torch.where(rank < t, rank, 0), visibility, at)
        expected = again.gather(1, batch.ids_BL[:, slot][:, None])[:, 0]
        assert torch.allclose(logp[:, slot].float(), expected, atol=1e-5)
    assert (logp[rank == 0] == 0).all()


def test_a_known_block_makes_order_causal_what_known_only_says() -> None:
    """The first query after a given block is the known-only conditional: one distribution, two layouts."""
    model = tiny_model()
    batch = framed_batch(*random_rows(2, 6))
    hidden = batch.maskable_BL & (torch.arange(8) % 2 == 1)
    at = Slots.where(hidden)
    zero = torch.zeros_like(batch.ids_BL)
    one = hidden_logp(model, batch, hidden, zero, "order-causal", at)
    two = hidden_logp(model, batch, hidden, zero, "known-only", at)
    assert torch.allclose(one[:, 3:], two[:, 3:], atol=1e-5)


@pytest.mark.parametrize("visibility", BOTH)
@pytest.mark.parametrize("max_slots", [1, 30, 10_000])
def test_memory_bound_batching_and_padding_change_nothing(visibility: Visibility, max_slots: int) -> None:
    model = tiny_model()
    rows = [random_rows(1, n, seed=n)[0] for n in (3, 9, 5)]
    batch = framed_batch(*rows)
    order = parse_order("random")
    rank = arranged_ranks(batch, order, [generator(b) for b in range(3)])
    together = order_logp(model, batch, rank, visibility, max_slots=max_slots)
    for b, row in enumerate(rows):
        alone = framed_batch(row)
        one = order_logp(model, alone, arranged_ranks(alone, order, [generator(b)]), visibility)
        assert torch.allclose(together[b, : len(row) + 2], one[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["confidence", "margin", "entropy"])
@pytest.mark.parametrize("visibility", BOTH)
def test_a_policy_goes_where_its_own_state_says_and_its_order_scores_the_same(
    kind: str, visibility: Visibility
) -> None:
    model = tiny_model()
    batch = framed_batch(*random_rows(2, 5), [4, 7])
    logp, rank = policy_logp(model, batch, kind, visibility, max_slots=12)  # type: ignore[arg-type]
    for row in range(3):
        assert sorted(rank[row][batch.maskable_BL[row]].tolist()) == list(
            range(1, int(batch.maskable_BL[row].sum()) + 1)
        )
    assert torch.allclose(order_logp(model, batch, rank, visibility), logp, atol=1e-5)
    for t in range(1, 6):  # by hand for the first row
        hidden = (rank[:1] >= t) & batch.maskable_BL[:1]
        at = Slots.where(hidden)
        state = hidden_logp(
            model, batch.rows(torch.tensor([0])), hidden, torch.where(rank[:1] < t, rank[:1], 0), visibility, at
        )
        assert rank[0, at.slots_M[choose(kind, state)]] == t  # type: ignore[arg-type]


def all_orders_nll(model: object, batch: Batch, visibility: Visibility) -> Tensor:
    """[B] the average over every order, by enumeration; rows of equal length."""
    slots = batch.maskable_BL[0].nonzero()[:, 0].tolist()
    logp = [
        order_logp(model, batch, order_ranks(batch, [list(order)] * batch.num_rows), visibility).sum(1)  # type: ignore[arg-type]
        for order in itertools.permutations(slots)
    ]
    return -torch.stack(logp).mean(0)


@pytest.mark.parametrize("visibility", [*BOTH, "known-only", "two-stream"])
def test_the_bound_estimates_the_all_orders_average_without_bias(visibility: Visibility) -> None:
    model = tiny_model()
    row = random_rows(1, 4)[0]
    target = float(all_orders_nll(model, framed_batch(row), visibility))
    num = 2400
    batch = framed_batch(*([row] * num))
    nll = bound_nll(model, batch, visibility, RowRandom.whole(5, 0, num))
    assert nll.mean().item() == pytest.approx(target, abs=4 * nll.std().item() / num**0.5)
    assert nll.std() > 0.01  # it is an estimate


def test_the_importance_weighted_bound_lies_between_the_average_and_the_mixture() -> None:
    model = tiny_model()
    batch = framed_batch(random_rows(1, 4)[0])
    logp = torch.stack([
        order_logp(model, batch, order_ranks(batch, [list(order)]), "bidirectional").sum(1)
        for order in itertools.permutations(range(1, 5))
    ])  # fmt: skip
    mixture, average = importance_weighted_nll(logp), -logp.mean(0)
    assert mixture < average
    pairs = [importance_weighted_nll(logp[list(pair)]) for pair in itertools.combinations(range(24), 2)]
    assert mixture < torch.stack(pairs).mean() < average
    assert importance_weighted_nll(logp[:1]).item() == pytest.approx(-logp[0].item())


def test_a_uniform_model_scores_every_order_alike() -> None:
    model = UniformModel(vocab=6)
    batch = framed_batch([3, 4, 5], [4, 3, 5])
    expected = pytest.approx([3 * torch.tensor(5.0).log().item()] * 2, abs=1e-5)
    assert (
        -order_logp(model, batch, random_ranks(batch, RowRandom.whole(1, 1, 2)), "bidirectional").sum(1)
    ).tolist() == expected
    assert bound_nll(model, batch, "bidirectional", RowRandom.whole(1, 1, 2)).tolist() == expected


def test_given_tokens_are_known_and_not_scored() -> None:
    model = TableModel(vocab=4, length=3)
    batch = make_batch([[1, 2, 3]], [[False, True, True]], pad_id=0)
    joint = model.joint[1]
    expected = (joint[2, 3] / joint.sum()).log().item()
    for visibility in BOTH:
        for order in ([1, 2], [2, 1]):
            logp = order_logp(model, batch, order_ranks(batch, [order]), visibility)
            assert logp.sum().item() == pytest.approx(expected, abs=1e-5)
            assert logp[0, 0] == 0


def test_what_a_model_cannot_do_is_refused() -> None:
    for name in ("r2l", "random", "confidence", "2,0,1"):
        with pytest.raises(OrderError, match="left to right"):
            check_order(parse_order(name), "causal")
    check_order(Order("l2r"), "causal")
    config = tiny_model().config
    assert check_visibility(None, config) == "bidirectional"
    assert check_visibility("order-causal", config) == "order-causal"
    with pytest.raises(OrderError, match="not trained for"):
        check_visibility("causal", config)
