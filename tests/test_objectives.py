"""The objectives: the paper's equivalence by enumeration, unbiasedness, and independence of how a batch is split."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fakes import TableModel, all_masks, bare_batch, framed_batch, random_rows, tiny_config, tiny_model
from pmlm.batch import Batch
from pmlm.errors import ConfigError
from pmlm.likelihood import hidden_logp, l2r_ranks, order_logp, order_ranks
from pmlm.masking import Masking, Prior, count_logp, pattern_logp
from pmlm.model import Slots, Visibility
from pmlm.objectives import (
    APLM,
    BERT,
    GPT,
    U_PMLM,
    XLNET,
    Member,
    Mixture,
    Objective,
    loss,
    member_weights,
    mixture_loss,
    prediction_weights,
    prepare,
    prepare_mixture,
    split_members,
    weighted_nll,
)
from pmlm.runtime import RowRandom


@torch.no_grad()
def hidden_sum(model: nn.Module, batch: Batch, hidden_L: Tensor, visibility: Visibility) -> Tensor:
    """[K] log p(x_k | what is not hidden) of the hidden tokens of the only row."""
    at = Slots.where(hidden_L[None] & batch.maskable_BL)
    logp = hidden_logp(model, batch, hidden_L[None], torch.zeros_like(batch.ids_BL), visibility, at)  # type: ignore[arg-type]
    return logp.gather(1, batch.ids_BL[at.rows_M, at.slots_M][:, None])[:, 0].double()


def models(length: int) -> list[tuple[nn.Module, list[int]]]:
    return [
        (TableModel(vocab=3, length=length, seed=length), [1 + i % 2 for i in range(length)]),
        (tiny_model(seed=length), random_rows(1, length, seed=length)[0]),
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("which", ["table", "network"])
def test_pmlm_objective_equals_the_average_over_every_order_up_to_n_plus_one(length: int, which: str) -> None:
    """L_aplm = (N + 1) L_pmlm, for any conditionals, consistent or not."""
    model, ids = models(length)[which == "network"]
    batch = bare_batch(ids)
    aplm = sum(
        order_logp(model, batch, order_ranks(batch, [list(order)]), "bidirectional").sum().item()  # type: ignore[arg-type]
        for order in itertools.permutations(range(length))
    ) / math.factorial(length)
    pmlm = sum(
        math.exp(pattern_logp(Prior(), int(mask.sum()), length))
        * hidden_sum(model, batch, mask, "bidirectional").mean().item()
        for mask in all_masks(length)
        if mask.any()
    )
    assert aplm == pytest.approx((length + 1) * pmlm, abs=1e-4)
    if which == "table":
        assert aplm == pytest.approx(model.log_joint(ids), abs=1e-4)  # type: ignore[operator]


@pytest.mark.parametrize("length", [1, 3, 5])
def test_the_duplication_factor_of_a_term_is_n_minus_k_times_k_minus_one_factorials(length: int) -> None:
    """How many orders predict a given token with exactly a given set still hidden."""
    count: dict[tuple[int, frozenset[int]], int] = {}
    for order in itertools.permutations(range(length)):
        for t, token in enumerate(order):
            key = (token, frozenset(order[t:]))
            count[key] = count.get(key, 0) + 1
    for (_, hidden), times in count.items():
        assert times == math.factorial(length - len(hidden)) * math.factorial(len(hidden) - 1)


@pytest.mark.parametrize("weighting", ["likelihood", "row"])
@pytest.mark.parametrize("visibility", ["bidirectional", "known-only"])
def test_weighted_masks_average_to_the_all_orders_nll_per_token(weighting: str, visibility: Visibility) -> None:
    length = 4
    model, ids = models(length)[1]
    batch = bare_batch(ids)
    expected = -sum(
        order_logp(model, batch, order_ranks(batch, [list(order)]), visibility).sum().item()  # type: ignore[arg-type]
        for order in itertools.permutations(range(length))
    ) / math.factorial(length)
    total = 0.0
    for mask in all_masks(length):
        if mask.any():
            chance = math.exp(pattern_logp(Prior(), int(mask.sum()), length)) * (length + 1) / length  # given K >= 1
            weight, count = prediction_weights(batch, mask[None], weighting)  # type: ignore[arg-type]
            total += chance * float(-(hidden_sum(model, batch, mask, visibility) * weight).sum() / count)
    assert total == pytest.approx(expected / length, abs=1e-4)


ALL_ORDERS = [
    U_PMLM,
    Objective(kind="pmlm", masking=Masking(draw="count")),
    Objective(kind="pmlm", masking=Masking(draw="ratio")),
    Objective(kind="pmlm", weighting="row"),
    Objective(kind="aplm", weighting="likelihood"),
    Objective(kind="aplm", weighting="token-mean"),
    Objective(kind="aplm", weighting="likelihood", given_prob=0.5),
    Objective(kind="aplm", weighting="likelihood", given_prob=1.0),
]


@pytest.mark.parametrize(
    "objective", ALL_ORDERS, ids=lambda o: f"{o.kind}-{o.masking.draw}-{o.weighting}-{o.given_prob}"
)
def test_all_estimators_of_the_all_orders_likelihood_agree(objective: Objective) -> None:
    """With consistent conditionals the all-orders NLL is the NLL itself, whatever is given first."""
    model, rows = TableModel(vocab=4, length=4), 1500
    ids = [1, 3, 2, 3]
    batch = bare_batch(*([ids] * rows))
    expected = -model.log_joint(ids) / 4
    chunks = [
        loss(model, batch.rows(part), objective, RowRandom(1, 0, part, rows), model.config)
        for part in torch.arange(rows).split(150)
    ]
    means = torch.stack([c.total / c.count for c in chunks]).double()
    got = float(sum(c.total for c in chunks) / sum(c.count for c in chunks))
    assert got == pytest.approx(expected, abs=max(4 * means.std().item() / len(chunks) ** 0.5, 1e-3))


def test_gpt_is_the_exact_left_to_right_nll() -> None:
    model = tiny_model()
    batch = framed_batch(*random_rows(2, 5), [4])
    got = loss(model, batch, GPT, RowRandom.whole(1, 1, 3), model.config)
    assert got.count == 11
    expected = -order_logp(model, batch, l2r_ranks(batch), "causal").sum().item()
    assert got.total.item() == pytest.approx(expected, rel=1e-5)


def test_bert_hides_fifteen_percent_and_counts_hidden_tokens() -> None:
    config = tiny_config()
    batch = bare_batch(*random_rows(500, 20))
    prepared = prepare(batch, BERT, RowRandom.whole(1, 1, 500), config)
    assert prepared.count == len(prepared.at)
    p = torch.from_numpy(count_logp(Prior(kind="fixed", ratio=0.15), 20).copy()).exp()
    assert len(prepared.at) / 500 == pytest.approx(3.0 / (1 - p[0].item()), rel=0.05)
    assert (prepared.weight_M == 1).all()


def test_texts_with_nothing_hidden_carry_no_loss() -> None:
    config = tiny_config()
    never = Objective(kind="pmlm", masking=Masking(prior=Prior(kind="fixed", ratio=1e-9), draw="ratio"))
    batch = bare_batch(*random_rows(4, 5))
    got = loss(tiny_model(), batch, never, RowRandom.whole(1, 1, 4), config)
    assert (got.total.item(), got.count.item()) == (0.0, 0)
    got.total.backward()
    empty = framed_batch([], [3])
    for objective in (U_PMLM, GPT, APLM, Objective(kind="pmlm", weighting="row")):
        both = loss(tiny_model(), empty, objective, RowRandom.whole(1, 1, 2), config)
        assert both.count == 1
        assert torch.isfinite(both.total)


@pytest.mark.parametrize("objective", [BERT, U_PMLM, GPT, APLM, Objective(kind="aplm", given_prob=0.7), Objective(kind="pmlm", weighting="row"),
                                       XLNET, Objective(kind="pmlm", visibility="known-only"), Objective(kind="pmlm", masks=3)], ids=lambda o: f"{o.kind}-{o.weighting}-{o.visibility}-{o.masks}")  # fmt: skip
def test_micro_batches_add_up_to_the_batch(objective: Objective) -> None:
    model = tiny_model()
    batch = framed_batch(*random_rows(6, 7), [3, 4], [5], length=11)
    batch = Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL, batch.ids_BL % 2 == 0)
    whole = loss(model, batch, objective, RowRandom.whole(1, 2, 8), model.config)
    parts = [
        loss(model, batch.rows(index), objective, RowRandom(1, 2, index, 8), model.config)
        for index in (torch.arange(0, 3), torch.arange(3, 8))
    ]
    assert sum(p.total for p in parts).item() == pytest.approx(whole.total.item(), rel=1e-5)  # type: ignore[union-attr]
    assert sum(p.count for p in parts) == whole.count


def test_the_given_block_leaves_at_least_one_token_and_is_seen_both_ways() -> None:
    config = tiny_config()
    batch = framed_batch(*random_rows(400, 5))
    objective = Objective(kind="aplm", given_prob=1.0, weighting="token-mean")
    prepared = prepare(batch, objective, RowRandom.whole(1, 1, 400), config)
    predicted = torch.bincount(prepared.at.rows_M, minlength=400)
    assert [(predicted == k).double().mean().item() for k in range(1, 6)] == pytest.approx([0.2] * 5, abs=0.07)
    assert predicted.min() == 1
    visible = prepared.inputs.visible_BQK
    assert visible is not None
    row = int((predicted == 2).nonzero()[0, 0])
    queries = prepared.at.slots_M[prepared.at.rows_M == row] - batch.length
    given = [s for s in range(7) if s not in queries.tolist()]
    assert visible[row][given][:, given].all()


def test_l2r_around_given_tokens_asks_for_what_is_hidden_from_left_to_right() -> None:
    masking = Masking(unit="span", mean_span=4.0)
    objective = Objective(kind="aplm", order="l2r", given_prob=0.5, weighting="token-mean", masking=masking)
    batch = framed_batch(*random_rows(300, 40))
    prepared = prepare(batch, objective, RowRandom.whole(1, 1, 300), tiny_config())
    visible, length = prepared.inputs.visible_BQK, batch.length
    assert visible is not None
    whole, blanks = 0, []
    for row in range(300):
        hidden = sorted((prepared.at.slots_M[prepared.at.rows_M == row] - length).tolist())
        whole += len(hidden) == 40
        for slot in hidden:
            seen = [s for s in range(length) if visible[row, length + slot, s]]
            assert seen == [s for s in range(length) if s < slot or s not in hidden]
        if len(hidden) < 40:
            blanks.append(len(hidden) / sum(slot - 1 not in hidden for slot in hidden))
    assert whole / 300 == pytest.approx(0.5, abs=0.1)
    assert sum(blanks) / len(blanks) > 4


def test_l2r_around_given_tokens_claims_no_likelihood() -> None:
    with pytest.raises(ConfigError, match="no bound"):
        Objective(kind="aplm", order="l2r", given_prob=0.5)


def worded_batch(rows: int, length: int) -> Batch:
    batch = framed_batch(*random_rows(rows, length))
    words = torch.arange(length + 2).expand(rows, -1) % 3 != 2
    return Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL, words)


def test_xlnet_predicts_about_a_sixth_last_and_in_random_order_from_all_the_rest() -> None:
    batch = worded_batch(400, 126)
    prepared = prepare(batch, XLNET, RowRandom.whole(1, 1, 400), tiny_config())
    assert len(prepared.at) / int(batch.maskable_BL.sum()) == pytest.approx(1 / 6, abs=0.025)
    assert (prepared.weight_M == 1).all()
    assert prepared.count == len(prepared.at)
    visible = prepared.inputs.visible_BQK
    assert visible is not None
    length, earlier = batch.length, []
    for row in range(20):
        queries = prepared.at.slots_M[prepared.at.rows_M == row]
        targets = prepared.inputs.positions_BL[row, queries].tolist()
        given = [s for s in range(length) if s not in targets]
        assert visible[row][given][:, given].all()
        assert not visible[row][given][:, targets].any()
        assert visible[row][queries][:, given].all()
        assert not visible[row][queries][:, length:].any()
        seen = visible[row][queries][:, targets]
        assert sorted(seen.sum(1).tolist()) == list(range(len(targets)))  # a chain: each sees those before it
        earlier += [bool(seen[i, j]) for i in range(len(targets)) for j in range(i)]
    assert sum(earlier) / len(earlier) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary", "transformer-xl"])
def test_xlnets_loss_is_the_exact_nll_along_its_order(positions: str) -> None:
    """Which is computed with a query for each token, where training has them for the predicted ones alone."""
    model, batch = tiny_model(positions=positions, max_length=64), worded_batch(3, 40)
    random = RowRandom.whole(1, 1, 3)
    prepared = prepare(batch, XLNET, random, model.config)
    visible = prepared.inputs.visible_BQK
    assert visible is not None
    assert prepared.inputs.ids_BL.shape[1] < 1.5 * batch.length
    rank = torch.zeros_like(batch.ids_BL)
    slots = prepared.inputs.positions_BL[prepared.at.rows_M, prepared.at.slots_M]
    known = (~torch.zeros_like(rank, dtype=torch.bool)).index_put((prepared.at.rows_M, slots), torch.tensor(False))
    seen_M = visible[prepared.at.rows_M, prepared.at.slots_M, : batch.length].sum(1)
    rank[prepared.at.rows_M, slots] = seen_M - known.sum(1)[prepared.at.rows_M] + 1
    expected = -order_logp(model, batch, rank, "two-stream").sum().item()
    assert loss(model, batch, XLNET, random, model.config).total.item() == pytest.approx(expected, rel=1e-5)


MIX = Mixture(members=(Member(objective=APLM, start=0.75, end=0.25), Member(objective=U_PMLM, start=0.25, end=0.75)))


def test_shares_move_over_training_and_deal_the_rows() -> None:
    assert MIX.shares(0.0) == [0.75, 0.25]
    assert MIX.shares(0.5) == [0.5, 0.5]
    parts = split_members(MIX.shares(0.0), RowRandom.whole(1, 3, 40))
    assert [len(index) for index, _ in parts] == pytest.approx([30, 10], abs=1)
    assert sorted(torch.cat([index for index, _ in parts]).tolist()) == list(range(40))
    for index, part in parts:
        assert part.rows_B.tolist() == list(range(len(index)))
        assert part.total == len(index)
    assert MIX.trained_visibilities() == ("order-causal", "bidirectional")


@pytest.mark.parametrize(
    ("shares", "total"), [([0.06, 0.94], 16), ([0.02, 0.18, 0.8], 16), ([0.05, 0.95], 8), ([0.5, 0.5], 1)]
)
def test_a_member_that_some_steps_have_no_row_of_counts_as_much_as_its_share(shares: list[float], total: int) -> None:
    weights, steps = member_weights(shares, total), 4000
    counted = [0.0] * len(shares)
    for step in range(steps):
        for m, (index, _) in enumerate(split_members(shares, RowRandom.whole(1, step, total))):
            counted[m] += weights[m] * bool(len(index)) / steps
    assert counted == pytest.approx(shares, rel=0.02)


def test_members_that_every_step_has_rows_of_count_by_their_share() -> None:
    assert member_weights([0.7, 0.2, 0.1], 64) == [0.7, 0.2, 0.1]
    assert member_weights([1.0], 1) == [1.0]
    assert member_weights([1.0, 0.0], 8) == [1.0, 0.0]


def test_a_mixture_adds_each_members_own_mean_by_share() -> None:
    """The gradient of the mixture is the share-weighted sum of the members' gradients per token."""
    model = tiny_model()
    batch = framed_batch(*random_rows(16, 6))
    random = RowRandom.whole(1, 4, 16)
    parameters = list(model.parameters())

    def grad(value: Tensor) -> Tensor:
        got = torch.autograd.grad(value, parameters, allow_unused=True)
        return torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, got, strict=True)]
        )

    whole = grad(mixture_loss(model, batch, MIX, 0.0, random, model.config))
    members = [
        grad(weighted_nll(model, part) / part.count)
        for part in prepare_mixture(batch, MIX, 0.0, random, model.config)
        if part is not None
    ]
    assert torch.allclose(whole, 0.75 * members[0] + 0.25 * members[1], atol=1e-6)
    assert (members[0] - members[1]).abs().max() > 1e-3


def test_members_draw_the_same_however_the_batch_is_split() -> None:
    config = tiny_config()
    batch = framed_batch(*random_rows(12, 6))
    whole = prepare_mixture(batch, MIX, 0.4, RowRandom.whole(1, 5, 12), config)
    parts = [
        prepare_mixture(batch.rows(index), MIX, 0.4, RowRandom(1, 5, index, 12), config)
        for index in torch.arange(12).split(5)
    ]
    for m in range(2):
        pieces = [part[m] for part in parts if part[m] is not None]
        full = whole[m]
        assert full is not None
        assert sum(p.count for p in pieces) == full.count  # type: ignore[union-attr]
        assert torch.equal(torch.cat([p.target_M for p in pieces]), full.target_M)  # type: ignore[union-attr]
        assert torch.equal(torch.cat([p.weight_M for p in pieces]), full.weight_M)  # type: ignore[union-attr]


def test_several_masks_read_each_row_as_often_under_masks_of_their_own() -> None:
    config = tiny_config()
    batch = framed_batch(*random_rows(4, 9), length=11)
    random = RowRandom.whole(1, 2, 4)
    one, three = (prepare(batch, Objective(kind="pmlm", masks=n), random, config) for n in (1, 3))
    assert len(three.inputs.ids_BL) == 3 * len(one.inputs.ids_BL)
    hidden_BL = three.inputs.ids_BL == config.mask_id
    copied_BL = batch.ids_BL.repeat_interleave(3, 0)
    assert torch.equal(three.inputs.ids_BL.where(~hidden_BL, copied_BL), copied_BL)
    for row_BL in hidden_BL.split(3):
        assert len({tuple(mask) for mask in row_BL.tolist()}) == 3
    strata = ((hidden_BL.sum(1) - 1) * 12 // 9).tolist()  # counts of 1 … 9, uniformly: one of each twelfth, about
    assert len(set(strata)) >= 8
    assert three.count == 3 * 4 * 9  # likelihood weighting: what each copy stands for


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "alm", "visibility": "known-only"},
        {"kind": "alm", "order": "l2r"},
        {"kind": "alm", "masking": Masking(unit="span")},
        {"kind": "aplm", "visibility": "known-only"},
        {"kind": "aplm", "masking": Masking(unit="span")},
        {"kind": "aplm", "order": "l2r", "masking": Masking(unit="span")},
        {
            "kind": "aplm", "order": "l2r", "given_prob": 0.5, "weighting": "row",
            "masking": Masking(corruption="80-10-10"),
        },
        {"kind": "xlnet", "masking": Masking(corruption="80-10-10")},
        {"kind": "xlnet", "visibility": "known-only"},
        {"kind": "pmlm", "order": "l2r"},
        {"kind": "mlm", "given_prob": 0.5},
        {"kind": "aplm", "masks": 2},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_an_objective_would_not_read_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="means nothing"):
        Objective(**changes)


def test_impossible_objectives_are_refused() -> None:
    with pytest.raises(ConfigError):
        Objective(masks=0)
    with pytest.raises(ConfigError):
        Objective(given_prob=1.5)
    with pytest.raises(ConfigError):
        Objective(kind="pmlm", visibility="causal")
    with pytest.raises(ConfigError):
        Mixture(members=())
    with pytest.raises(ConfigError):
        Mixture(members=(Member(objective=GPT, start=1.0, end=0.0),))
