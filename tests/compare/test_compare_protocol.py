"""What the models of a comparison share, and what they differ in."""

import math

import pytest
from compare_helpers import ROW_TOKENS, TINY, differing

from pmlm.compare.arms import ARMS
from pmlm.compare.protocol import arm_settings, tune_settings
from pmlm.compare.settings import load_compare_settings, scale_names
from pmlm.compare.units import stage_units
from pmlm.config import to_dict
from pmlm.corpus.shards import Corpus
from pmlm.training.plan import work_per_token
from pmlm.training.settings import model_config


@pytest.mark.parametrize("scale", scale_names())
def test_models_of_a_scale_differ_in_objective_and_positions_alone(scale: str) -> None:
    settings = load_compare_settings(scale, [])
    base = to_dict(arm_settings(settings, "u-pmlm-a", 1))
    allowed = {"name", "about", "objective.members", "model.positions", "rows.predict_end"}
    for name in settings.models:
        run = arm_settings(settings, name, 1)
        more = {"num_steps"} if ARMS[name].work_of else set()
        assert differing(base, to_dict(run)) <= allowed | more, name
    assert {name for name, _ in settings.pretrained()} == set(settings.models) | set(settings.priors)


def test_only_the_left_to_right_model_predicts_where_a_text_ends(corpus: Corpus) -> None:
    for name in ARMS:
        config = model_config(arm_settings(TINY, name, 1), corpus.tokenizer)
        assert (corpus.tokenizer.end_id in config.forbidden_ids) == (name != "gpt-a")
        assert corpus.tokenizer.pad_id in config.forbidden_ids
    predicted = model_config(
        tune_settings(TINY, "u-pmlm-a", 1, "lm1b", "padding-predicted", ROW_TOKENS), corpus.tokenizer
    )
    assert not {corpus.tokenizer.pad_id, corpus.tokenizer.end_id} & set(predicted.forbidden_ids)
    assert corpus.tokenizer.mask_id in predicted.forbidden_ids


def test_bert_and_u_pmlm_are_padded_in_all_ways() -> None:
    padded = {(unit.model, unit.packing) for unit in stage_units(TINY, "padding")}
    expected = {(name, way) for name in ("bert-a", "u-pmlm-a", "u-pmlm-r") for way in TINY.padding}
    assert padded == expected | {("gpt-a", "packed"), ("gpt-a", "padded")}


def test_equal_work_is_fewer_tokens_of_the_dearer_objective() -> None:
    one, other = (arm_settings(TINY, name, 1) for name in ("u-pmlm-r", "aplm-r-equal-work"))
    work = [run.num_steps * work_per_token(run) for run in (one, other)]
    assert other.num_steps < one.num_steps
    assert work[0] == pytest.approx(work[1], rel=0.03)


@pytest.mark.parametrize("scale", scale_names())
def test_a_fine_tuning_that_is_killed_loses_a_fifth_of_it_at_most(scale: str) -> None:
    run = tune_settings(load_compare_settings(scale, []), "u-pmlm-a", 1, "lm1b")
    assert 1 <= run.saving.every <= max(1, math.ceil(run.num_steps / 5))


def test_ways_of_padding_differ_in_nothing_else() -> None:
    packed = tune_settings(TINY, "u-pmlm-a", 1, "lm1b")
    for packing in ("padded", "padding-seen"):
        run = tune_settings(TINY, "u-pmlm-a", 1, "lm1b", packing, ROW_TOKENS)
        changed = differing(to_dict(packed), to_dict(run))
        assert changed == {"name", "rows.packing", "rows.length", "batch_rows"}
        assert run.batch_rows == 3 * packed.batch_rows
