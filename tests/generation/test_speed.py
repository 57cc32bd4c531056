"""Shortcuts: what they promise, what they say of themselves, and what does not go together."""

import numpy as np
import pytest
import torch

from fakes import framed_batch, random_rows, tiny_model
from pmlm import load
from pmlm.errors import ConfigError, PmlmError
from pmlm.generation.decode import Allowed, decode
from pmlm.generation.engine import Engine
from pmlm.generation.parallel import Parallel, parse_parallel
from pmlm.generation.sampling import Sampling
from pmlm.generation.steppers import Recompute, StaleCached, State, make_stepper
from pmlm.lm import LM
from pmlm.model import Slots
from pmlm.options import FillOptions
from pmlm.orders import parse_order
from pmlm.runtime import generator

TEMPLATE = "Tom is a [MASK] and [MASK:3] mouse. [MASK:12]"


@pytest.fixture(scope="module")
def lm() -> LM:
    return load()


SURE = torch.tensor([[0.97, 0.02, 0.01], [0.95, 0.04, 0.01], [0.5, 0.3, 0.2], [0.98, 0.01, 0.01]]).log()


@pytest.mark.parametrize(
    ("bound", "expected"),
    [("confidence:0.9", 2), ("confidence:0.99", 1), ("confidence:0.4", 4), ("count:3", 3), ("count:9", 4)],
)
def test_a_bound_stops_at_the_first_slot_that_breaks_it(bound: str, expected: int) -> None:
    assert parse_parallel(bound).num(SURE) == expected


def test_the_entropy_bound_is_the_sum_without_the_largest() -> None:
    entropy = -(SURE.exp() * SURE).sum(-1)
    for n in range(1, 5):
        spent = float(entropy[:n].sum() - entropy[:n].max())
        assert Parallel("entropy", spent + 1e-4).num(SURE) >= n
        if spent > 1e-3:
            assert Parallel("entropy", spent - 1e-4).num(SURE) < n


@pytest.mark.parametrize(
    "text", ["entropy", "entropy:x", "confidence:1.5", "count:1", "count:2.5", "speed:3", "entropy:-1"]
)
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="parallel"):
        parse_parallel(text)


@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
@pytest.mark.parametrize("order", ["random", "entropy", "l2r"])
def test_parallel_writes_everything_once_in_fewer_passes_and_says_that_it_is_approximate(
    lm: LM, order: str, visibility: str
) -> None:
    filled = lm.fill(TEMPLATE, order=order, seed=3, visibility=visibility, parallel="count:4")
    assert len(filled.order) == len(set(filled.order)) == 16
    assert filled.passes == 4
    assert filled.approximate == ("parallel count:4",)
    assert filled.to_dict()["approximate"] == ["parallel count:4"]
    assert "".join(filled.tokens) == " " + filled.text


@pytest.mark.parametrize("order", ["l2r", "random", "confidence"])
def test_a_count_is_had_in_every_order(lm: LM, order: str) -> None:
    assert lm.fill("[MASK:96]", order=order, seed=1, parallel="count:48", whole_words=False).passes == 2


def test_constraints_hold_within_a_pass(lm: LM) -> None:
    for seed in range(6):
        filled = lm.fill("[MASK:24]", seed=seed, parallel="count:8", ban=["the", "a"], visibility="bidirectional")
        assert not {"the", "a"} & set(filled.text.lower().replace(".", " ").split())


def test_where_the_bound_is_never_met_parallel_is_exact(lm: LM) -> None:
    plain = lm.fill(TEMPLATE, seed=3, visibility="bidirectional")
    wary = lm.fill(TEMPLATE, seed=3, visibility="bidirectional", parallel="confidence:0.99999999")
    assert (wary.passes, wary.text) == (plain.passes, plain.text)


def test_the_approximate_cache_is_exact_in_passes_that_refresh_and_near_in_the_others() -> None:
    model, batch = tiny_model(), framed_batch(*random_rows(2, 7), [3, 4, 5])
    hidden, rank = batch.maskable_BL.clone(), torch.zeros_like(batch.ids_BL)
    stale, exact = StaleCached(model, batch, 3), Recompute(model, "bidirectional")
    gaps = []
    for turn in range(6):
        slots = [int(row.nonzero()[-1, 0]) if row.any() else 0 for row in hidden]
        rows = [b for b, slot in enumerate(slots) if slot]
        at = Slots(torch.tensor(rows), torch.tensor([slots[b] for b in rows]))
        with torch.no_grad():
            one, two = (s.logp(State(batch, hidden.clone(), rank), at)[:, 3:] for s in (stale, exact))
        gaps.append(float((one - two).abs().max()))
        hidden[at.rows_M, at.slots_M], rank[at.rows_M, at.slots_M] = False, turn + 1
    assert gaps[0] < 1e-5
    assert gaps[3] < 1e-5
    assert gaps[1] > 1e-4  # or it would not be approximate
    assert max(gaps) < 5


def test_padding_changes_nothing_in_the_approximate_cache(lm: LM) -> None:
    options: FillOptions = {"visibility": "bidirectional", "approximate_cache": 3}
    together = lm.fill_batch([TEMPLATE, "A [MASK:4]"], seeds=[1, 2], **options)
    alone = [lm.fill(t, seed=s, **options) for t, s in ((TEMPLATE, 1), ("A [MASK:4]", 2))]
    assert [f.text for f in together] == [f.text for f in alone]
    assert together[0].approximate == ("approximate_cache 3",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative": 4, "visibility": "bidirectional"}, "order-causal"),
        ({"speculative": 4, "order": "entropy", "visibility": "order-causal"}, "known beforehand"),
        ({"speculative": 4, "parallel": "count:2"}, "one of them"),
        ({"speculative": 1}, "at least 2"),
        ({"approximate_cache": 4, "visibility": "order-causal"}, "the cache is exact"),
        ({"approximate_cache": 0, "visibility": "bidirectional"}, "at least 2"),
        ({"parallel": "fast"}, "confidence:0.9"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(lm: LM, options: FillOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        lm.fill(TEMPLATE, seed=1, **options)
    assert "\n" not in str(caught.value)


def test_candidates_take_no_shortcut(lm: LM) -> None:
    with pytest.raises(ConfigError, match="one pass"):
        lm.candidates("Tom is a [MASK].", 3, parallel="count:2")


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "count:3", "visibility": "bidirectional"},
        {"approximate_cache": 4, "visibility": "bidirectional", "parallel": "entropy:0.5", "order": "entropy"},
        {"speculative": 4, "visibility": "order-causal"},
    ],
)
def test_served_a_text_with_a_shortcut_is_what_it_is_alone(lm: LM, options: FillOptions) -> None:
    engine, settings = Engine(lm.model), lm.settings(options)
    ((canvas, job),) = lm.writer.jobs([TEMPLATE], [5], settings)
    ((_, other),) = lm.writer.jobs([TEMPLATE], [6], lm.settings({}))
    line, _ = engine.join(job), engine.join(other)
    reveals = []
    while engine.num_lines:
        events = [event for event in engine.turn() if event.line is line]
        reveals += [event.reveal for event in events if event.reveal is not None]
        assert [event.is_last for event in events].count(True) == (len(reveals) == 16 and bool(events))
    served, alone = lm.writer.result(canvas, reveals, 5, settings), lm.fill(TEMPLATE, seed=5, **options)
    assert served.to_dict() == alone.to_dict()


def test_one_with_a_shortcut_that_cannot_go_on_leaves_with_its_error(lm: LM) -> None:
    engine, settings = Engine(lm.model), lm.settings({"speculative": 2, "written": [(1, " dog")], "ban": ["dog"]})
    ((_, job),) = lm.writer.jobs(["The [MASK:3]"], [1], settings)
    engine.join(job)
    (event,) = engine.turn()
    assert isinstance(event.error, PmlmError)
    assert engine.num_lines == 0


def test_written_tokens_come_first_in_speculation_too(lm: LM) -> None:
    whole = lm.fill(TEMPLATE, seed=3, order="random", temperature=0, visibility="order-causal")
    written = [(i, whole.tokens[i]) for i in whole.order[:3]]
    again = lm.fill(
        TEMPLATE, seed=3, order="random", temperature=0, visibility="order-causal", written=written, speculative=4
    )
    assert (again.text, again.order) == (whole.text, whole.order)
    assert again.sampled_logp[:3] == [0.0] * 3


def test_rows_that_end_early_leave_the_others_as_they_are() -> None:
    """In step, then not, then in step again."""
    model, batch = tiny_model(), framed_batch([3] * 6, [4] * 2)
    flags = np.ones((1, 11), dtype=bool)
    flags[0, :3] = False
    allowed = Allowed(torch.zeros_like(batch.ids_BL), flags)
    found = []
    for stepper in (make_stepper(model, batch, "order-causal"), Recompute(model, "order-causal")):
        rngs = [generator(b) for b in range(2)]
        turns = list(decode(stepper, batch, allowed, [parse_order("random")] * 2, Sampling(), rngs))
        found.append([(r.row, r.slot, r.token) for turn in turns for r in turn])
        assert len(found[-1]) == 8
    assert found[0] == found[1]
