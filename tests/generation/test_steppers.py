"""Caches are exact: at every step of random decodes they say what a full recomputation says."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import framed_batch, tiny_model
from pmlm.batch import Batch, make_batch
from pmlm.errors import OrderError
from pmlm.generation.steppers import CausalCached, OrderCached, Recompute, State, make_stepper, ragged
from pmlm.likelihood import l2r_ranks, order_logp
from pmlm.model import LanguageModel, Slots, Visibility

SCHEMES = ["absolute", "relative", "relative-sinusoidal", "rotary", "transformer-xl"]
MODELS = {(p, n): tiny_model(positions=p, norm=n) for p in SCHEMES for n in ("pre", "post")}


@st.composite
def canvases(draw: st.DrawFn) -> Batch:
    """Rows of different lengths with different given tokens, framed or not."""
    rows, flags = [], []
    edge = draw(st.booleans())
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 9))
        ids = draw(st.lists(st.integers(3, 10), min_size=size, max_size=size))
        hidden = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        rows.append([1, *ids, 2] if edge else ids)
        flags.append([False, *hidden, False] if edge else hidden)
    return make_batch(rows, flags, pad_id=0)


@settings(deadline=None, max_examples=100)
@given(
    canvases(),
    st.sampled_from(list(MODELS)),
    st.sampled_from(["order-causal", "two-stream"]),
    st.integers(0, 10**6),
    st.booleans(),
    st.integers(1, 2),
)
def test_the_order_cache_equals_recomputation_at_every_step(
    batch: Batch, which: tuple[str, str], visibility: Visibility, seed: int, ask_all: bool, per_turn: int
) -> None:
    """Any order, any canvas, any given block; one query or one for every hidden slot; one token a turn or two."""
    model = MODELS[which]
    rng = torch.Generator().manual_seed(seed)
    cached, exact = OrderCached(model, batch, visibility), Recompute(model, visibility)
    hidden, rank, turn = batch.maskable_BL.clone(), torch.zeros_like(batch.ids_BL), 0
    while hidden.any():
        turn += 1
        picks = [
            (b, int(slots[torch.randint(len(slots), (1,), generator=rng)]))
            for b in range(batch.num_rows)
            if len(slots := hidden[b].nonzero()[:, 0])
        ]
        at = Slots.where(hidden) if ask_all else Slots(*(torch.tensor(x) for x in zip(*picks, strict=True)))
        state = State(batch, hidden.clone(), rank.clone())
        with torch.no_grad():
            one, two = cached.logp(state, at), exact.logp(state, at)
        assert torch.allclose(one[:, 3:], two[:, 3:], atol=1e-5)
        for b, slot in picks:
            hidden[b, slot], rank[b, slot] = False, turn
            if per_turn == 2 and hidden[b].any():
                other = int(hidden[b].nonzero()[0, 0])
                turn += 1
                hidden[b, other], rank[b, other] = False, turn


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(2, 8), min_size=1, max_size=3),
    st.sampled_from(list(MODELS)),
    st.sampled_from(["order-causal", "two-stream", "causal"]),
    st.integers(0, 10**6),
    st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_in_step_or_not_a_cache_says_the_same(
    sizes: list[int], which: tuple[str, str], visibility: Visibility, seed: int, says_fresh: list[bool]
) -> None:
    """Rows of different lengths, with different numbers of given tokens; some passes are told what is fresh."""
    model, rng = MODELS[which], torch.Generator().manual_seed(seed)
    batch = framed_batch(*(torch.randint(3, 11, (n,), generator=rng).tolist() for n in sizes))
    num = min(sizes) if seed % 2 else min(sizes) - 1
    hidden, orders = torch.zeros_like(batch.maskable_BL), list[list[int]]()
    for b, size in enumerate(sizes):
        slots = (torch.randperm(size, generator=rng)[:num] + 1).tolist()
        orders.append(list(range(size - num + 1, size + 1)) if visibility == "causal" else slots)
        hidden[b, orders[-1]] = True
    batch = replace(batch, maskable_BL=hidden.clone())
    cached, exact = make_stepper(model, batch, visibility), Recompute(model, visibility)
    rank, fresh, rows = torch.zeros_like(batch.ids_BL), None, torch.arange(len(sizes))
    for turn in range(num):
        at = Slots(rows, torch.tensor([order[turn] for order in orders]))
        with torch.no_grad():
            told = State(batch, hidden.clone(), rank.clone(), fresh if says_fresh[turn] else None)
            one, two = cached.logp(told, at), exact.logp(State(batch, hidden, rank), at)
        assert torch.allclose(one[:, 3:], two[:, 3:], atol=1e-5)
        hidden[rows, at.slots_M], rank[rows, at.slots_M], fresh = False, turn + 1, at


@pytest.mark.parametrize("positions", SCHEMES)
def test_with_nothing_known_a_two_stream_query_sees_itself_in_the_cache_too(positions: str) -> None:
    model, batch = tiny_model(positions=positions), make_batch([[3, 4, 5]], [[True] * 3], pad_id=0)
    state, at = State(batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL)), Slots.where(batch.maskable_BL)
    with torch.no_grad():
        one = OrderCached(model, batch, "two-stream").logp(state, at)
        two = Recompute(model, "two-stream").logp(state, at)
    assert torch.allclose(one[:, 3:], two[:, 3:], atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.sampled_from(list(MODELS)), st.integers(0, 10**6))
def test_gpts_cache_equals_one_pass_over_the_text(sizes: list[int], which: tuple[str, str], seed: int) -> None:
    model: LanguageModel = MODELS[which]
    rng = torch.Generator().manual_seed(seed)
    batch = framed_batch(*(torch.randint(3, 11, (n,), generator=rng).tolist() for n in sizes))
    given = [int(torch.randint(0, n, (1,), generator=rng)) for n in sizes]
    expected = order_logp(model, batch, l2r_ranks(batch), "causal")
    hidden = batch.maskable_BL.clone()
    for b, n in enumerate(given):
        hidden[b, 1 : n + 1] = False
    stepper = CausalCached(model, replace(batch, maskable_BL=hidden))
    rank, turn = torch.zeros_like(batch.ids_BL), 0
    while hidden.any():
        turn += 1
        rows = hidden.any(dim=1).nonzero()[:, 0]
        slots = hidden.long().argmax(dim=1)[rows]
        with torch.no_grad():
            logp = stepper.logp(State(batch, hidden, rank), Slots(rows, slots))
        got = logp.gather(1, batch.ids_BL[rows, slots][:, None])[:, 0]
        assert torch.allclose(got.double(), expected[rows, slots], atol=1e-5)
        hidden = hidden.clone()
        hidden[rows, slots] = False


def test_gpt_needs_its_start_marker() -> None:
    with pytest.raises(OrderError, match="start marker"):
        CausalCached(tiny_model(), make_batch([[4, 5]], [[True, True]], pad_id=0))


def test_ragged_lists_flagged_slots_row_by_row() -> None:
    flags = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])
    assert ragged(flags).tolist() == [[0, 2], [-1, -1], [1, -1]]
