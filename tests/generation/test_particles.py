"""Particles: texts follow the left-to-right distribution given what stands there, whatever else is asked for."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fakes import tiny_model
from pmlm import load
from pmlm.batch import make_batch
from pmlm.errors import ConfigError, ConstraintError
from pmlm.generation.decode import Allowed
from pmlm.generation.particles import Crowd, decode_particles
from pmlm.generation.sampling import Sampling
from pmlm.generation.steppers import CausalCached
from pmlm.likelihood import l2r_ranks, order_logp
from pmlm.lm import LM, packaged_model_folder
from pmlm.model import LanguageModel
from pmlm.options import FillOptions
from pmlm.runtime import generator

TEMPLATE = "Tom [MASK:4] cat. [MASK:3] Jerry [MASK:5]."
VOCAB, MASK = 6, 0
ROW = [1, 2, MASK, 3, MASK, MASK, 4, 1]
"""From marker to marker, with three blanks around a given token, and one behind."""
HIDDEN = [False, False, True, False, True, True, False, False]


@pytest.fixture(scope="module")
def lm() -> LM:
    return load(packaged_model_folder())


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny_model(vocab_size=VOCAB, mask_id=MASK, forbidden_ids=(MASK,), visibilities=("order-causal", "causal"))


def crowd_of(num: int) -> Allowed:
    """Everything but the mask, everywhere."""
    flags_1V = np.ones((1, VOCAB), dtype=bool)
    flags_1V[0, MASK] = False
    return Allowed(torch.zeros(num, len(ROW), dtype=torch.long), flags_1V)


def expected(model: LanguageModel, temperature: float) -> dict[tuple[int, ...], float]:
    """p(blanks | given) of the left-to-right model, by enumeration."""
    found = {}
    for text in itertools.product(range(1, VOCAB), repeat=3):
        ids = list(ROW)
        for slot, token in zip([2, 4, 5], text, strict=True):
            ids[slot] = token
        batch = make_batch([ids], [[False, *[True] * 6, False]], pad_id=0)
        with torch.no_grad():
            every_SV = (CausalCached(model, batch).read(batch.ids_BL, 7)[0] / temperature).log_softmax(-1)
        found[text] = math.exp(sum(float(every_SV[slot - 1, ids[slot]]) for slot in range(1, 7)))
    total = sum(found.values())
    return {text: p / total for text, p in found.items()}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_texts_follow_the_left_to_right_distribution_given_what_stands_there(
    model: LanguageModel, temperature: float
) -> None:
    batch = make_batch([ROW], [HIDDEN], pad_id=0)
    rng, counts, alone, draws = generator(1), Counter[tuple[int, ...]](), Counter[tuple[int, ...]](), 400
    for num, found in ((128, counts), (1, alone)):
        for _ in range(draws):
            turns = decode_particles(
                model, batch, crowd_of(num), Sampling(temperature=temperature), rng, "order-causal"
            )
            found[tuple(reveal.token for turn in turns for reveal in turn)] += 1
    target = expected(model, temperature)

    def distance(found: Counter[tuple[int, ...]]) -> float:
        return sum(abs(found[text] / draws - p) for text, p in target.items()) / 2

    by_chance = sum(math.sqrt(p * (1 - p) / draws * 2 / math.pi) for p in target.values()) / 2
    assert distance(counts) < 1.3 * by_chance + 0.02
    assert distance(alone) > 2 * distance(counts)  # a lone particle follows the conditionals that propose


def test_what_is_read_at_once_is_what_is_read_one_by_one_and_what_is_scored(model: LanguageModel) -> None:
    ids = [[1, 2, 5, 3, 2, 4, 4, 1], [1, 3, 3, 2, 1, 5, 2, 1]]
    batch = make_batch(ids, [[False, *[True] * 6, False]] * 2, pad_id=0)
    at_once, one_by_one = CausalCached(model, batch), CausalCached(model, batch)
    with torch.no_grad():
        whole = at_once.read(batch.ids_BL, 7)
        steps = torch.cat([one_by_one.read(batch.ids_BL, until) for until in (2, 3, 5, 6, 7)], dim=1)
        exact = order_logp(model, batch, l2r_ranks(batch), "causal")
    assert torch.allclose(whole[..., 1:], steps[..., 1:], atol=1e-5)
    own = whole.gather(2, batch.ids_BL[:, 1:7, None])[..., 0]
    assert torch.allclose(own, exact[:, 1:7].float(), atol=1e-5)


def test_a_copy_goes_on_as_its_original(model: LanguageModel) -> None:
    """After rows have changed places, conditionals are those of the texts that stand in the rows now."""
    batch = make_batch([ROW], [HIDDEN], pad_id=0)
    flat = Sampling(temperature=5.0)
    crowd, fresh = (Crowd(model, batch, crowd_of(4), flat, "order-causal") for _ in range(2))
    with torch.no_grad():
        for one in (crowd, fresh):
            one.read(2)
        crowd.write(2, torch.tensor([0.02, 0.4, 0.7, 0.98], dtype=torch.float64))
        crowd.read(4)
        crowd.weight_N = torch.tensor([-math.inf, 0.0, -math.inf, 1.0], dtype=torch.float64)
        crowd.resample(0.5)
        tokens = crowd.canvases.batch.ids_BL[:, 2].tolist()
        assert len(set(tokens)) == 2
        assert crowd.weight_N.tolist() == [0.0] * 4
        fresh.write(2, torch.zeros(4, dtype=torch.float64))
        fresh.canvases.batch.ids_BL[:, 2] = torch.tensor(tokens)
        fresh.read(4)
        assert torch.allclose(crowd.next_NV, fresh.next_NV, atol=1e-5)
        uniform_N = torch.full((4,), 0.3, dtype=torch.float64)
        for one in (crowd, fresh):
            one.write(4, uniform_N)
        assert torch.equal(crowd.canvases.batch.ids_BL, fresh.canvases.batch.ids_BL)
        assert torch.allclose(crowd.logp_NT[:, 1], fresh.logp_NT[:, 1], atol=1e-5)


TEXT = "Tom [MASK:10] dog [MASK:8] Jerry [MASK:8] the kite [MASK:6]."


def test_after_many_changes_of_places_every_copy_knows_its_own_text(lm: LM) -> None:
    """What is kept of each particle (both caches, the rules) is what its text alone gives, however often it was copied."""
    settings = lm.settings({"num_words": 26, "ban": "was", "particles": 16})
    ((canvas, job),) = lm.writer.jobs([TEXT], [1], settings)
    batch = make_batch([job.row.ids], [job.row.maskable], pad_id=0)
    crowd, rng, resampled = (
        Crowd(lm.model, batch, job.allowed.copies(0, 16), settings.sampling, "order-causal"),
        generator(1),
        0,
    )
    with torch.no_grad():
        for slot in canvas.hidden:
            crowd.read(slot)
            texts = crowd.canvases.batch
            anew = CausalCached(lm.model, texts).read(texts.ids_BL, slot + 1)[:, -1]
            assert torch.allclose(crowd.next_NV, anew, atol=1e-3)
            if crowd.num_effective < 8:
                crowd.resample(float(torch.rand(1, generator=rng)))
                resampled += 1
            crowd.write(slot, torch.rand(16, generator=rng, dtype=torch.float64))
        assert resampled > 3
        done = crowd.canvases.batch
        exact_NL = order_logp(
            lm.model, replace(done, maskable_BL=batch.maskable_BL.expand(16, -1)), l2r_ranks(done), "order-causal"
        )
    alive = crowd.alive()
    assert len(alive) > 1
    assert torch.allclose(crowd.logp_NT[alive].float(), exact_NL[alive][:, canvas.hidden].float(), atol=1e-3)
    for n in alive:
        words = lm.tokenizer.decode(done.ids_BL[n, 1:-1].tolist()).split()
        assert "was" not in words
        assert len([word for word in words if any(letter.isalnum() for letter in word)]) == 26


def test_they_read_better_from_left_to_right_than_texts_drawn_alone(lm: LM) -> None:
    plain, crowd = (
        [lm.fill(TEMPLATE, seed=seed, **options).text for seed in range(6)]
        for options in (FillOptions(), FillOptions(particles=16))
    )
    nll = [sum(lm.score(text, visibility="causal").nll for text in texts) for texts in (plain, crowd)]
    assert nll[1] < nll[0]


def test_given_words_and_constraints_hold_and_a_seed_gives_the_same_text(lm: LM) -> None:
    options = FillOptions(particles=8, ban="cat", num_words=14)
    found = lm.fill("Tom [MASK:4] dog. [MASK:3] Jerry [MASK:8].", seed=3, **options)
    assert found.text == lm.fill("Tom [MASK:4] dog. [MASK:3] Jerry [MASK:8].", seed=3, **options).text
    assert found.text.startswith("Tom ")
    assert " dog." in found.text
    assert " Jerry " in found.text
    assert "cat" not in found.text.split()
    assert len([word for word in found.text.split() if any(letter.isalpha() for letter in word)]) == 14
    assert found.approximate == ("particles 8",)
    assert found.order == sorted(found.order)
    assert len(found.logp) == 15


def test_several_texts_are_what_each_is_alone(lm: LM) -> None:
    templates = [TEMPLATE, "A [MASK:6] ran."]
    together = lm.fill_batch(templates, seeds=[5, 6], particles=6)
    assert [f.text for f in together] == [
        lm.fill(template, seed=seed, particles=6).text for template, seed in zip(templates, (5, 6), strict=True)
    ]


def test_what_is_told_on_the_way_stays(lm: LM) -> None:
    stream = lm.stream("Tom [MASK:12] cat. [MASK:12] Jerry [MASK:12].", seed=2, particles=8)
    told = [(step.position, step.token) for step in stream]
    assert [stream.result.tokens[position] for position, _ in told] == [token for _, token in told]
    assert [position for position, _ in told] == stream.result.order


def test_when_it_is_told_does_not_change_the_text(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all particles agree on is told at once; a text that is told at the end alone is the same."""
    template, told = "Tom [MASK:12] cat. [MASK:12] Jerry [MASK:12].", list[int]()
    at_once = [lm.fill(template, seed=seed, particles=8) for seed in range(3)]
    monkeypatch.setattr(Crowd, "num_agreed", lambda crowd: told.append(len(crowd.slots)) or 0)
    assert [lm.fill(template, seed=seed, particles=8).text for seed in range(3)] == [f.text for f in at_once]
    assert len(told) == 3 * 36


def test_what_is_given_is_read_in_parts_where_it_is_long(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "One day Tom and his dog went to the park. [MASK:5] big tree with a red door. Tom [MASK:4]."
    whole = lm.fill(template, seed=2, particles=4)
    monkeypatch.setattr("pmlm.generation.particles.MOST_NUMBERS", 3 * lm.tokenizer.vocab_size)
    parts = lm.fill(template, seed=2, particles=4)
    assert parts.text == whole.text
    assert parts.passes > whole.passes > len(whole.order)


def test_a_second_writing_does_without_them(lm: LM) -> None:
    filled = lm.fill("Tom [MASK:4] cat.", seed=1)
    plain, crowd = (lm.refine(filled, seed=1, method="gibbs", passes=1, **o) for o in ({}, {"particles": 4}))
    assert crowd.text == plain.text
    with pytest.raises(ConfigError, match="known beforehand"):
        lm.refine(filled, seed=1, order="confidence", speculative=2)


def test_its_conditionals_are_those_of_the_proposals(lm: LM) -> None:
    found = lm.fill(TEMPLATE, seed=4, particles=8)
    scored = lm.score(found.text, given=TEMPLATE, visibility="order-causal")
    assert found.logp == pytest.approx([logp for logp in scored.logp if logp is not None], abs=1e-3)


def test_a_crowd_in_a_corner_is_begun_anew_and_then_given_up(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmlm.generation.demands.MOST_STATES", 1)  # options and wishes are asked one by one
    found = [lm.fill("The [MASK:6|ends=s] ___.", seed=seed, num_words=5, particles=2) for seed in range(12)]
    assert max(filled.attempts for filled in found) > 1, "no seed is cornered: take another template"
    assert all(len(filled.text.split()) == 5 for filled in found)
    with pytest.raises(ConstraintError, match="attempts"):
        lm.fill("Tom saw [WORD|in=cat]", seed=1, ban=["cat"], whole_words=False, particles=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 1}, "at least 2"),
        ({"particles": 65}, "at most 64"),
        ({"particles": 4, "order": "random"}, "left to right"),
        ({"particles": 4, "visibility": "bidirectional"}, "order-causal"),
        ({"particles": 4, "parallel": "count:2"}, "leave parallel out"),
        ({"particles": 4, "speculative": 2}, "leave speculative out"),
        ({"particles": 4, "temperature": 0}, "temperature above 0"),
        ({"particles": 4, "repetition_penalty": 1.2}, "repetition_penalty would undo: set it to 1"),
        ({"particles": 4, "top_k": 5}, "top_k would undo: leave it out"),
        ({"particles": 4, "top_p": 0.9}, "top_p"),
        ({"particles": 4, "min_p": 0.1}, "min_p"),
        ({"particles": 4, "written": [(1, " is")]}, "leave written out"),
    ],
)
def test_what_does_not_go_with_particles_is_refused(lm: LM, options: FillOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lm.stream("Tom [MASK:4] cat.", seed=1, **options)  # before anything is written


def test_a_model_that_is_no_gpt_has_nobody_to_weigh_them(lm: LM) -> None:
    other = LM(
        tiny_model(
            vocab_size=lm.model.config.vocab_size,
            mask_id=lm.model.config.mask_id,
            forbidden_ids=lm.model.config.forbidden_ids,
            visibilities=("order-causal",),
            max_length=64,
        ),
        lm.tokenizer, {}, None,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="not trained for causal"):
        other.fill("Tom [MASK:4] cat.", seed=1, particles=4)
