"""Canvases that share passes: alone or in company, whoever comes and goes, each becomes what `fill` makes of it."""

import random

import pytest
import torch

from fakes import tiny_config
from pmlm import load
from pmlm.errors import ConstraintError
from pmlm.generation.canvas import Canvas
from pmlm.generation.decode import Reveal
from pmlm.generation.engine import Engine, Event, Line, Pool
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.options import FillOptions
from pmlm.results import Filled
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer

Asked = tuple[str, int, FillOptions]

MIXED: list[Asked] = [
    ("Tom is a [MASK] and [MASK:3] mouse. [MASK:6]", 1, {"order": "random"}),
    ("Once upon a time [MASK:12]", 2, {"order": "l2r", "temperature": 0.7, "top_k": 20}),
    ("[MASK:5] the end.", 3, {"order": "confidence", "repetition_penalty": 1.3}),
    ("Anna saw a ___ in the ___.", 4, {"order": "nearest", "top_p": 0.9}),
    ("[MASK:20]", 5, {"order": "r2l", "whole_words": False}),
    ("Tom is a [MASK:4] and [MASK].", 6, {"order": "entropy", "ban": ["dog"]}),
    ("The [MASK:2] ran.", 7, {"order": [2, 1], "temperature": 0}),
    ("Mia [MASK:9] kite.", 8, {"order": "margin", "min_p": 0.1}),
]


@pytest.fixture(scope="module")
def lm() -> LM:
    return load()


def start(engine: Engine, lm: LM, asked: Asked) -> tuple[Line, Canvas]:
    template, seed, options = asked
    ((canvas, job),) = lm.writer.jobs([template], [seed], lm.settings(options))
    assert engine.has_room(job)
    return engine.join(job), canvas


def write(lm: LM, asked: list[Asked], arrivals: list[int], *, places: int = 8) -> list[Filled]:
    """Serve all; number i joins at turn arrivals[i]."""
    engine, left, turn = Engine(lm.model, places=places), dict(enumerate(asked)), 0
    canvases: dict[int, Canvas] = {}
    lines: dict[Line, int] = {}
    reveals: dict[int, list[Reveal]] = {i: [] for i in left}
    while left or engine.num_lines:
        for i in [i for i in left if arrivals[i] <= turn]:
            line, canvases[i] = start(engine, lm, left.pop(i))
            lines[line] = i
        for event in engine.turn():
            assert event.reveal is not None
            reveals[lines[event.line]].append(event.reveal)
        turn += 1
    return [
        lm.writer.result(canvases[i], reveals[i], seed, lm.settings(options))
        for i, (_, seed, options) in enumerate(asked)
    ]


@pytest.mark.parametrize("visibility", ["order-causal", "bidirectional"])
@pytest.mark.parametrize("shuffle", [0, 1])
def test_in_company_a_text_is_what_it_is_alone(lm: LM, visibility: str, shuffle: int) -> None:
    asked: list[Asked] = [(t, s, {**o, "visibility": visibility}) for t, s, o in MIXED]
    alone = [lm.fill(t, seed=s, **o) for t, s, o in asked]
    arrivals = [random.Random(f"{shuffle}{i}").randrange(6) for i in range(len(asked))]
    together = write(lm, asked, arrivals)
    for one, other in zip(alone, together, strict=True):
        assert (one.text, one.order) == (other.text, other.order)
        assert one.logp == pytest.approx(other.logp, rel=1e-5, abs=1e-5)  # float32 itself is no finer
        assert one.sampled_logp == pytest.approx(other.sampled_logp, rel=1e-4, abs=1e-4)


def small_lm(tokenizer: Tokenizer, *visibilities: str, positions: str = "relative") -> LM:
    config = tiny_config(
        vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id, forbidden_ids=tokenizer.forbidden_ids,
        visibilities=visibilities, positions=positions, max_length=40,
    )  # fmt: skip
    return LM(build_model(config, generator(3, positions)).eval(), tokenizer, {}, None)


@pytest.mark.parametrize("positions", ["absolute", "rotary", "relative"])
@pytest.mark.parametrize("visibility", ["causal", "known-only", "order-causal"])
def test_other_networks_and_visibilities(lm: LM, visibility: str, positions: str) -> None:
    lm = small_lm(lm.tokenizer, visibility, positions=positions)
    asked: list[Asked] = [("Tom [MASK:7]", 1, {"order": "l2r"}), ("A [MASK:3]", 2, {"order": "l2r"})] * 2
    if visibility != "causal":
        asked += [("[MASK:4] is a [MASK:2] cat", 3, {"order": "random"})]
    for filled, (template, seed, options) in zip(write(lm, asked, [0, 1, 3, 3, 2]), asked, strict=True):
        alone = lm.fill(template, seed=seed, **options)
        assert (alone.text, alone.order) == (filled.text, filled.order)
        assert alone.logp == pytest.approx(filled.logp, abs=1e-5)


def test_leaving_frees_the_place_and_changes_nobody_else(lm: LM) -> None:
    engine = Engine(lm.model, places=3)
    lines = [start(engine, lm, MIXED[i])[0] for i in (0, 1, 4)]
    job = next(job for _, job in lm.writer.jobs(["A [MASK:3]"], [0], lm.settings({})))
    assert not engine.has_room(job)
    kept: list[Reveal] = []
    for turn in range(20):
        if turn == 2:
            engine.leave(lines[0])
            engine.leave(lines[0])  # twice does no harm
        if turn == 3:
            assert engine.has_room(job)
            engine.join(job)
        kept += [e.reveal for e in engine.turn() if e.line is lines[2] and e.reveal]
    assert engine.num_lines == 0
    template, seed, options = MIXED[4]
    assert [r.slot - 1 for r in kept] == lm.fill(template, seed=seed, **options).order


@pytest.fixture(scope="module")
def double(lm: LM) -> LM:
    """Order-causal and a GPT."""
    return small_lm(lm.tokenizer, "order-causal", "causal")


def test_a_crowd_takes_a_place_for_each_of_its_particles_or_all_there_are(double: LM) -> None:
    lm = double

    def has_room(particles: int) -> bool:
        ((_, job),) = lm.writer.jobs(["A [MASK:3]"], [0], lm.settings({"particles": particles}))
        return engine.has_room(job)

    engine = Engine(lm.model, places=8)
    assert has_room(64)
    first, _ = start(engine, lm, ("A [MASK:3]", 1, {"particles": 6}))
    assert has_room(2)
    assert not has_room(3)
    assert not has_room(64)
    engine.leave(first)
    start(engine, lm, ("A [MASK:3]", 1, {"particles": 64}))
    assert not has_room(2)


def test_in_company_a_crowd_writes_what_it_writes_alone(double: LM) -> None:
    asked: list[Asked] = [("Tom [MASK:5] dog [MASK:4].", seed, {"particles": 4}) for seed in (1, 2)]
    asked.append(("Tom is a [MASK:4].", 3, {}))
    for filled, (template, seed, options) in zip(write(double, asked, [0, 2, 1]), asked, strict=True):
        assert filled.text == double.fill(template, seed=seed, **options).text


def test_a_crowd_with_nothing_to_write_is_done_at_once(double: LM) -> None:
    engine = Engine(double.model)
    full, _ = start(engine, double, ("The [MASK:1] ran.", 1, {"particles": 3, "must": ["cat"], "whole_words": False}))
    (done,) = engine.turn()
    assert (done.line, done.reveal, done.error, done.is_last) == (full, None, None, True)


def test_one_that_cannot_go_on_leaves_with_its_error_and_the_others_stay(lm: LM) -> None:
    engine = Engine(lm.model)
    bad, _ = start(engine, lm, ("The [MASK:3]", 1, {"written": [(1, " dog")], "ban": ["dog"]}))
    good, _ = start(engine, lm, ("The [MASK:3]", 1, {}))
    events: list[Event] = list(engine.turn())
    assert isinstance(next(e for e in events if e.line is bad).error, ConstraintError)
    assert next(e for e in events if e.line is good).reveal is not None
    assert engine.num_lines == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "confidence"},
        {"visibility": "bidirectional"},
        {"parallel": "count:2"},
        {"speculative": 3},
        {"approximate_cache": 4, "visibility": "bidirectional"},
    ],
)
def test_where_nothing_is_hidden_a_canvas_is_done_at_once(lm: LM, options: FillOptions) -> None:
    engine = Engine(lm.model)
    full, _ = start(engine, lm, ("The [MASK:1] ran.", 1, {**options, "must": ["cat"]}))
    other, _ = start(engine, lm, ("The [MASK:9]", 1, options))
    events: list[Event] = list(engine.turn())
    (done,) = (e for e in events if e.line is full)
    assert (done.reveal, done.error, done.is_last) == (None, None, True)
    assert {e.line for e in events} == {full, other}
    assert all(e.reveal is not None for e in events if e.line is other)
    assert engine.num_lines == 1


def test_passes_are_split_where_the_model_chooses_among_too_many(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [MIXED[2], MIXED[5], MIXED[7]]
    whole = write(lm, asked, [0, 0, 0])
    monkeypatch.setattr("pmlm.generation.engine.MOST_NUMBERS", lm.tokenizer.vocab_size * 8)
    assert [f.text for f in write(lm, asked, [0, 0, 0])] == [f.text for f in whole]


def test_written_tokens_come_first_and_the_rest_goes_on_as_before(lm: LM) -> None:
    for order in ("random", "confidence"):
        whole = lm.fill(MIXED[0][0], seed=3, order=order, temperature=0)
        written = [(i, whole.tokens[i]) for i in whole.order[:4]]
        again = lm.fill(MIXED[0][0], seed=3, order=order, temperature=0, written=written)
        assert (again.text, again.order) == (whole.text, whole.order)
        assert again.logp == pytest.approx(whole.logp, abs=1e-5)
        assert again.sampled_logp[:4] == [0.0] * 4
        (served,) = write(lm, [(MIXED[0][0], 3, {"order": order, "temperature": 0, "written": written})], [0])
        assert served.text == whole.text


def test_candidates_are_the_conditionals_of_the_state_that_is_named(lm: LM) -> None:
    for visibility in ("order-causal", "bidirectional"):
        filled = lm.fill(MIXED[0][0], seed=2, visibility=visibility)
        written = [(i, filled.tokens[i]) for i in filled.order[:5]]
        found = lm.candidates(MIXED[0][0], filled.order[5], written=written, visibility=visibility, count=5000)
        assert [c["score"] for c in found] == sorted((c["score"] for c in found), reverse=True)
        mine = next(c for c in found if c["token_str"] == filled.tokens[filled.order[5]])
        assert torch.tensor(mine["score"]).log().item() == pytest.approx(filled.logp[5], abs=1e-4)


def test_a_pool_knows_its_places(lm: LM) -> None:
    assert Pool(lm.model, "order-causal", 2).num == 0
