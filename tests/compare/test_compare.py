"""The comparison: settings, what is scored, tables that follow from their JSON, and the whole thing at tiny scale."""

import json
import lzma
import math
import os
import random
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pmlm.cli import app
from pmlm.compare.arms import ARMS
from pmlm.compare.budgets import arithmetic_table, time_table
from pmlm.compare.claims import CLAIMS, Claim, Difference, Place, beyond_table
from pmlm.compare.layout import read_results
from pmlm.compare.plots import COLOURS
from pmlm.compare.protocol import RowTokens, arm_settings, tune_settings
from pmlm.compare.records import once, read_record, timed
from pmlm.compare.settings import load_compare_settings, scale_names
from pmlm.compare.stages import Comparison
from pmlm.compare.tables import gap_table, padding_table, report
from pmlm.compare.texts import length_model, sentence_figures, sentence_rows
from pmlm.compare.timing import step_seconds
from pmlm.compare.units import FOLDERS, TIMING, Unit, model_units, stage_units
from pmlm.config import to_dict
from pmlm.corpus.framing import end_predicted, padding_as_text
from pmlm.corpus.rows import RowSettings, RowStream
from pmlm.corpus.shards import Corpus
from pmlm.errors import ConfigError, DataError, TrainingDiverged
from pmlm.evaluation import Scorer
from pmlm.keeping import locked
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.objectives import APLM, GPT, Member
from pmlm.orders import parse_order
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer
from pmlm.training.plan import work_per_token
from pmlm.training.settings import model_config
from pmlm.training.trainer import StepReport

TINY = load_compare_settings("tiny", [])
ROW_TOKENS = RowTokens(packed=60.0, own=20.0)


def differing(one: dict[str, Any], other: dict[str, Any], where: str = "") -> set[str]:
    found = set()
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differing(a, b, f"{where}{key}.")
        elif a != b:
            found.add(where + key)
    return found


ROOT = Path(__file__).parents[2]
LAPTOP = ROOT / "results/comparison/laptop"
KEPT = sorted((LAPTOP / "pretrain").glob("*.json"))


def test_the_tables_that_are_kept_are_those_of_their_json_and_the_docs_quote_them() -> None:
    kept = (LAPTOP / "tables.md").read_text()
    assert report(read_results(LAPTOP), "laptop") == kept
    found = (ROOT / "docs/results.md").read_text().partition("### What was found")[2].partition("\n## ")[0]
    quoted = [line for line in found.splitlines() if line.startswith("|")]
    assert len(quoted) > 10
    assert not set(quoted) - set(kept.splitlines())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_records_that_are_kept_are_of_todays_protocol(path: Path, tmp_path: Path) -> None:
    """A setting that came later must not make them useless: it has its default in them."""
    name, _, seed = path.stem.partition("-seed-")
    run = arm_settings(load_compare_settings("laptop", []), name, int(seed))
    assert once(path, {"run": to_dict(run)}, lambda: pytest.fail("made anew"), tmp_path / "lock")
    first, *rest = run.objective.members
    changed = Member(objective=GPT if first.objective.kind == APLM.kind else APLM)
    other = replace(run, objective=replace(run.objective, members=(changed, *rest)))
    with pytest.raises(DataError, match=r"other settings \(run\.objective\.members\.0\."):
        once(path, {"run": to_dict(other)}, lambda: pytest.fail("made anew"), tmp_path / "lock")


def check_origin(path: Path) -> None:
    """Each record says what it was made of, by what, where and in which time."""
    record = read_record(path)
    assert record["settings"]["run"], path
    assert {"pretrain", "heldout"} <= record["settings"]["data"].keys(), path
    assert record["seed"] == record["settings"]["run"]["seed"], path
    assert record.get("training", record)["tokens"] > 0, path
    assert record["made"]["seconds"] >= 0, path
    assert record["made"]["commit"] is None or len(record["made"]["commit"]) >= 40, path  # None outside a repository
    assert "torch" in record["made"]["machine"], path


@pytest.mark.parametrize("path", sorted(LAPTOP.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_records_that_are_kept_say_where_they_come_from(path: Path) -> None:
    check_origin(path)
    made = read_record(path)["made"]
    assert made["seconds"] > 0
    assert len(made["commit"]) == 40  # a clean source


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


@pytest.mark.parametrize("packing", ["padded", "padding-seen", "padding-predicted"])
def test_padding_is_unseen_or_seen_or_predicted(corpus: Corpus, packing: Any) -> None:
    stream = RowStream(corpus, RowSettings(length=32, packing=packing), 0)
    batch = stream.build(stream.take(20))
    is_pad = batch.ids_BL == corpus.tokenizer.pad_id
    assert is_pad.any()
    assert ((batch.group_BL < 0) == (is_pad if packing == "padded" else torch.zeros_like(is_pad))).all()
    assert (batch.maskable_BL[is_pad] == (packing == "padding-predicted")).all()


def test_the_end_marker_is_predicted_where_asked(corpus: Corpus) -> None:
    for wanted in (False, True):
        stream = RowStream(corpus, RowSettings(length=32, predict_end=wanted), 0)
        batch = stream.build(stream.take(20))
        ends = batch.ids_BL == corpus.tokenizer.end_id
        assert ends.any()
        assert (batch.maskable_BL[ends] == wanted).all()
        assert not batch.maskable_BL[batch.ids_BL == corpus.tokenizer.start_id].any()


def test_lengths_are_a_distribution(corpus: Corpus) -> None:
    sentences = ["Tom is a cat.", "Jerry is a mouse.", "It rained."]
    rows = sentence_rows(sentences, corpus.tokenizer, 20)
    lengths = length_model([*sentences, "Mia and Tom went home because it rained. " * 4], corpus.tokenizer, 20)
    longer = 2 / (4 + 18 + 1)  # one sentence is too long: its share is not dealt out to the others
    assert math.fsum(math.exp(-lengths.nll(n)) for n in range(1, 19)) == pytest.approx(1 - longer)
    assert lengths.nll(rows[0].num_tokens) < lengths.nll(18)


def test_what_is_fine_tuned_on_fits_and_padded_rows_cut_no_sentence(tmp_path: Path, corpus: Corpus) -> None:
    short = [f"Tom saw {n} cats." for n in range(60)]
    study = comparison(tmp_path, [])
    vars(study).update(
        tokenizer=corpus.tokenizer, sentences=([*short, "Mia and Tom went home because it rained. " * 9], [])
    )
    assert study.lessons == short
    context = TINY.measure.sentence_context
    assert study.lengths == length_model(short, corpus.tokenizer, context)
    study._prepare_sentences()
    stream = RowStream(study.corpus("lm1b"), RowSettings(length=context, short_share=0.0, packing="padded"), 0)
    rows = stream.take(200)
    assert all(len(row) == 1 and row[0].at_start and row[0].at_end for row in rows)

    del vars(study)["_row_tokens"]  # of the real texts
    seen = {}
    for packing in TINY.padding:
        run = study._run_settings(Unit("padding", "u-pmlm-a", 1, "lm1b", packing))
        stream = RowStream(study.corpus("lm1b"), run.rows, run.seed)
        taken = stream.take(run.num_steps * run.batch_rows)
        seen[packing] = sum(piece.stop - piece.start for row in taken for piece in row)
    assert max(seen.values()) < 1.02 * min(seen.values())


def test_bert_and_u_pmlm_are_padded_in_all_ways() -> None:
    padded = {(unit.model, unit.packing) for unit in stage_units(TINY, "padding")}
    expected = {(name, way) for name in ("bert-a", "u-pmlm-a", "u-pmlm-r") for way in TINY.padding}
    assert padded == expected | {("gpt-a", "packed"), ("gpt-a", "padded")}


def fresh(corpus: Corpus, name: str, packing: str = "packed") -> LM:
    settings = (
        arm_settings(TINY, name, 1)
        if packing == "packed"
        else tune_settings(TINY, name, 1, "lm1b", packing, ROW_TOKENS)
    )
    config = model_config(settings, corpus.tokenizer)
    return LM(build_model(config, generator(1)), corpus.tokenizer, {}, None)


def test_joint_probability_of_a_sentence_counts_everything_that_is_predicted(corpus: Corpus) -> None:
    """By hand from the model's own score: GPT adds the end marker, padding-predicted adds the padding too."""
    sentences = ["Tom is a cat.", "It rained at home."]
    rows = sentence_rows(sentences, corpus.tokenizer, 24)
    lengths = length_model(sentences, corpus.tokenizer, 24)
    tokens = sum(row.num_tokens for row in rows)

    def figures(name: str, packing: str = "packed") -> dict[str, Any]:
        lm = fresh(corpus, name, packing)
        return sentence_figures(lm, rows, lengths, exact=9, packing=packing, context=24)

    size = corpus.tokenizer.vocab_size  # untrained heads are nearly uniform over what is allowed
    gpt = figures("gpt-a")["causal"]["l2r"]
    assert set(gpt) == {"x alone", "x and N"}
    alone = figures("gpt-a")["causal"]["bound"]["nats_per_token"]
    assert gpt["x alone"]["nats_per_token"] == pytest.approx(alone, rel=1e-5)  # all rows are in the part
    assert gpt["x and N"]["nats_per_token"] == pytest.approx((tokens + 2) / tokens * math.log(size - 4), rel=0.03)
    told = figures("u-pmlm-a")["bidirectional"]["random"]
    extra = told["x and N"]["nats_per_token"] - told["x given N"]["nats_per_token"]
    assert extra == pytest.approx(sum(lengths.nll(row.num_tokens) for row in rows) / tokens, rel=1e-4)
    assert told["x given N"]["nats_per_token"] == pytest.approx(math.log(size - 5), rel=0.03)
    padded = figures("u-pmlm-a", "padding-predicted")["bidirectional"]["l2r"]
    predicted = 2 * 24 - 2  # all slots but the start markers
    assert padded["x and N"]["nats_per_token"] == pytest.approx(predicted / tokens * math.log(size - 3), rel=0.03)
    assert padded["x given N"]["nats_per_token"] == pytest.approx(math.log(size - 3), rel=0.03)


def test_a_model_that_predicts_padding_is_told_the_length_by_showing_it(corpus: Corpus) -> None:
    sentences = ["Tom is a cat.", "It rained at home."]
    rows = sentence_rows(sentences, corpus.tokenizer, 24)
    lm = fresh(corpus, "u-pmlm-a", "padding-predicted")
    found = sentence_figures(
        lm, rows, length_model(sentences, corpus.tokenizer, 24), exact=9, packing="padding-predicted", context=24
    )
    scorer = Scorer(lm.model, lm.tokenizer, "bidirectional", 0)
    told = [padding_as_text(row, corpus.tokenizer, 24, predicted=False) for row in rows]
    nll = scorer.exact_nll(told, parse_order("l2r"))
    assert found["bidirectional"]["l2r"]["x given N"]["row_nll"] == pytest.approx(nll, abs=1e-3)
    assert found["bidirectional"]["l2r"]["x alone"]["row_nll"] != pytest.approx(nll, abs=1e-3)
    assert found["exact_rows"] == [[0, rows[0].num_tokens], [1, rows[1].num_tokens]]
    assert found["bidirectional"]["bound"]["tokens"] == sum(row.num_tokens for row in rows)


def test_rows_with_padding_as_text(corpus: Corpus) -> None:
    (row,) = sentence_rows(["Tom is a cat."], corpus.tokenizer, 24)
    longer = padding_as_text(end_predicted(row), corpus.tokenizer, 24, predicted=True)
    assert len(longer.ids) == 24
    assert sum(longer.maskable) == 23
    assert sum(padding_as_text(row, corpus.tokenizer, 24, predicted=False).maskable) == row.num_tokens


def test_a_result_is_made_once_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path, lock = tmp_path / "a" / "b.json", tmp_path / "lock"
    settings = {"measure": {"exact": 8, "seeds": (1, 2)}}
    once(path, settings, lambda: {"x": 1}, lock)
    record = once(path, settings, lambda: pytest.fail("made twice"), lock)
    assert record is not None
    assert record["x"] == 1
    assert {"pmlm", "commit", "seconds", "machine"} <= record["made"].keys()
    with pytest.raises(DataError, match=r"b\.json was made under other settings \(measure\.exact\)"):
        once(path, {"measure": {"exact": 9, "seeds": (1, 2)}}, dict, lock)
    for damaged in ("{", "[]"):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"b\.json is damaged"):
            once(path, settings, dict, lock)


def test_seconds_of_a_result_count_stretches_that_were_stopped(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "locks" / "b"

    def stopped() -> dict[str, Any]:
        time.sleep(0.3)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            once(path, {}, stopped, lock)
    record = once(path, {}, lambda: {"x": 1}, lock)
    assert record is not None
    assert 0.6 <= record["made"]["seconds"] < 5
    with timed(lock) as seconds:
        assert seconds() < 0.3  # what is done is forgotten


def test_a_copy_says_how_the_original_was_made(tmp_path: Path) -> None:
    once(tmp_path / "a.json", {}, lambda: {"x": 1}, tmp_path / "lock")
    first = read_record(tmp_path / "a.json")
    first["made"]["seconds"] = 77.0
    assert once(tmp_path / "b.json", {}, lambda: first, tmp_path / "lock") == first


def test_a_result_stands_where_only_what_changes_no_figure_has_changed(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "lock"
    run = arm_settings(TINY, "gpt-a", 1)
    once(path, {"run": to_dict(run)}, lambda: {"x": 1}, lock)
    same = replace(
        run, name="x", about="y", precision="bf16", micro_rows=3,
        saving=replace(run.saving, every=7, keep=5), evaluation=replace(run.evaluation, every=3, rows=9),
    )  # fmt: skip
    assert once(path, {"run": to_dict(same)}, dict, lock) == read_record(path)
    for changed, name in (
        (replace(run, num_steps=9), "num_steps"),
        (replace(run, batch_rows=9), "batch_rows"),
        (replace(run, optim=replace(run.optim, lr=9.0)), r"optim\.lr"),
        (replace(run, saving=replace(run.saving, export="best")), r"saving\.export"),
    ):
        with pytest.raises(DataError, match=rf"other settings \(run\.{name}\)"):
            once(path, {"run": to_dict(changed)}, dict, lock)


def test_a_fine_tuned_model_depends_on_how_its_own_corpus_is_measured_alone(tmp_path: Path) -> None:
    said: list[str] = []
    study = comparison(tmp_path, said)
    units = [unit for stage in ("tune", "padding") for unit in stage_units(TINY, stage)]
    for unit in units:
        put_record(study, unit)
    for changes, kept in (
        ({"importance_windows": 99, "importance_orders": 99}, ("wikitext", "lm1b")),
        ({"exact": 99, "bound": 99}, ("lm1b",)),
        ({"exact_sentences": 99}, ("wikitext",)),
    ):
        study.settings = replace(TINY, measure=replace(TINY.measure, **changes))
        for unit in units:
            if unit.corpus in kept:
                study._do(unit)
            else:
                with pytest.raises(DataError, match=r"other settings \(measure\."):
                    study._do(unit)
    assert said == []


def test_what_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "lock"
    with locked(lock) as is_ours:
        assert is_ours
        assert once(path, {}, lambda: pytest.fail("made twice at once"), lock) is None
    assert once(path, {}, lambda: {"x": 1}, lock) == read_record(path)


def comparison(tmp_path: Path, said: list[str], kept: tuple[str, ...] = ()) -> Comparison:
    study = Comparison(
        replace(TINY, kept=kept), tmp_path, tmp_path / "work", tmp_path / "out", device=torch.device("cpu"),
        drive=lambda _run: None, say=said.append,
    )  # fmt: skip
    vars(study)["_row_tokens"] = ROW_TOKENS  # for which there are no texts
    study._check_sources = lambda _stages: None  # type: ignore[method-assign]
    return study


def test_two_processes_may_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the texts that the first one prepares."""
    said: list[str] = []
    study, done = comparison(tmp_path, said), []
    monkeypatch.setattr(study, "_prepare_all", lambda: done.append("prepared"))
    with locked(tmp_path / "work" / "locks" / "prepare") as is_ours:
        assert is_ours
        second = threading.Thread(target=study.prepare, daemon=True)
        second.start()
        second.join(timeout=1.2)
        assert second.is_alive()
        assert (done, len(said)) == ([], 1)
        assert said[0].startswith("waiting: another process is preparing")
    second.join(timeout=10)
    assert done == ["prepared"]


def test_a_model_that_is_not_trained_to_the_end_is_not_measured(tmp_path: Path) -> None:
    """Its folder is there from the first evaluation on."""
    said: list[str] = []
    (tmp_path / "work" / "runs" / "u-pmlm-a-seed-1" / "model").mkdir(parents=True)
    comparison(tmp_path, said).run(("evaluate", "samples", "probe"))
    assert "perplexity: u-pmlm-a-seed-1 has to wait, u-pmlm-a is not trained to the end" in said
    assert not (tmp_path / "out").exists()


def put_record(study: Comparison, unit: Unit) -> Path:
    path = study._path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"settings": study._unit_settings(unit), "model": unit.model, "seed": unit.seed, "made": {"seconds": 1}}
    path.write_text(json.dumps(record))
    return path


def test_what_is_recorded_is_done_though_the_model_is_gone(tmp_path: Path) -> None:
    """Results are kept with the source and runs are not: so it is on every other machine."""
    said: list[str] = []
    study = comparison(tmp_path, said)
    done = [unit for stage in ("pretrain", "evaluate", "samples") for unit in stage_units(TINY, stage)]
    before = {path: path.read_text() for path in [put_record(study, unit) for unit in done]}
    study.run(("evaluate", "samples"))
    assert said == []
    study.run(("tune",))
    assert (
        "tuned: bert-a-seed-1-lm1b has to wait, the model of bert-a is gone: the stage `pretrain` trains it again"
        in said
    )
    assert before == {path: path.read_text() for path in before}


def test_a_model_that_is_gone_is_trained_again_where_it_is_needed(tmp_path: Path) -> None:
    said: list[str] = []
    study = comparison(tmp_path, said)
    trained: list[str] = []

    def train(settings: Any, _corpus: str) -> dict[str, Any]:
        trained.append(settings.name)
        (study.work / "runs" / settings.name / "model").mkdir(parents=True)
        return {"tokens": 7, "training_seconds": 3.0, "curve": []}

    study._trained = train  # type: ignore[method-assign, assignment]
    paths = {unit.name: put_record(study, unit) for unit in stage_units(TINY, "pretrain")}
    for unit in model_units(TINY, "gpt-a", 1):
        put_record(study, unit)
    study.run(("pretrain",))
    assert set(trained) == set(paths) - {"gpt-a-seed-1"}  # of which all is known
    assert any("bert-a-seed-1 is recorded, but its model is gone" in line for line in said)
    record = read_record(paths["bert-a-seed-1"])
    assert [entry["tokens"] for entry in record["again"]] == [7]
    study.run(("pretrain",))
    assert len(trained) == len(paths) - 1  # and not once more


def test_a_model_whose_second_training_was_stopped_is_not_used(tmp_path: Path, corpus: Corpus) -> None:
    study = comparison(tmp_path, [])

    def stopped(run: Any) -> None:
        (run.folder / "model").mkdir(parents=True)  # as the first evaluation does
        raise KeyboardInterrupt

    study.drive, study.corpus = stopped, lambda _name: corpus  # type: ignore[method-assign]
    put_record(study, Unit("pretrain", "gpt-a", 1))
    with pytest.raises(KeyboardInterrupt):
        study._do(Unit("pretrain", "gpt-a", 1))
    assert study._is_gone(Unit("pretrain", "gpt-a", 1))


def test_a_model_that_is_kept_with_the_results_is_measured_from_there_and_not_trained_again(
    tmp_path: Path, corpus: Corpus
) -> None:
    study, unit = comparison(tmp_path, [], kept=("gpt-a",)), Unit("pretrain", "gpt-a", 1)
    vars(study)["tokenizer"] = corpus.tokenizer
    run, lm = study.work / "runs" / unit.name, fresh(corpus, "gpt-a")
    trained: list[str] = []

    def train(settings: Any, _corpus: str) -> dict[str, Any]:
        trained.append(settings.name)
        lm.save(study.work / "runs" / settings.name / "model")
        return {"tokens": 1}

    study._trained = train  # type: ignore[method-assign, assignment]
    assert study._do(unit)
    kept = study.model_folder(unit.name)
    assert kept == study.out / "models" / unit.name
    assert json.loads((kept / "config.json").read_text())["storage"] == "float16"
    shutil.rmtree(run)  # another machine
    assert not study._do(unit)
    assert not study._hindrance(Unit("evaluate", "gpt-a", 1))
    weights = study.model(unit.name).model.state_dict()
    for name, tensor in lm.model.state_dict().items():
        assert torch.equal(weights[name], tensor.half().float()), name
    assert trained == [unit.name]

    lm.save(run / "model")
    shutil.rmtree(kept)  # trained before it was to be kept
    (run / "unfinished").touch()
    study._keep(unit)
    assert not kept.exists()
    (run / "unfinished").unlink()
    assert not study._do(unit)
    assert (kept / "config.json").is_file()
    assert trained == [unit.name]

    shutil.rmtree(kept)  # gone for good, and needed
    shutil.rmtree(run)
    assert study._do(unit)
    assert (kept / "config.json").is_file()
    assert trained == [unit.name] * 2
    assert study._do(Unit("pretrain", "u-pmlm-a", 1))
    assert not (study.out / "models" / "u-pmlm-a-seed-1").exists()


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    said: list[str] = []
    study = comparison(tmp_path, said)

    def trained(settings: Any, _corpus: str) -> dict[str, Any]:
        if settings.name == "gpt-a-seed-1":
            raise TrainingDiverged("the loss is not finite")
        return {"tokens": 1}

    study._trained = trained  # type: ignore[method-assign, assignment]
    with pytest.raises(TrainingDiverged, match=r"gpt-a-seed-1 diverged; all that does not need it was gone through"):
        study.run(("pretrain",))
    total = len(TINY.pretrained())
    assert f"pretrain: u-pmlm-r-seed-1 is done; 1 of {total}, about 0 min left for one process" in said
    assert len(list((tmp_path / "out" / "pretrain").glob("*.json"))) == len(TINY.pretrained()) - 1


def test_the_time_left_is_that_of_all_stages(tmp_path: Path) -> None:
    study = comparison(tmp_path, [])
    for stage, seconds in (("pretrain", 600), ("tune", 120)):
        unit = stage_units(TINY, stage)[0]
        path = put_record(study, unit)
        path.write_text(json.dumps(read_record(path) | {"made": {"seconds": seconds}}))
    left = {stage: len(stage_units(TINY, stage)) - 1 for stage in ("pretrain", "tune")}
    minutes = 10 * left["pretrain"] + 2 * left["tune"]
    assert study._outlook("tune") == f"1 of {left['tune'] + 1}, about {minutes} min left for one process"


def with_fakes(study: Comparison) -> list[str]:
    """What is made, in order, by a comparison that trains and measures nothing."""
    made: list[str] = []

    def fake(unit: Unit) -> dict[str, Any]:
        made.append(unit.label)
        if unit.stage == "pretrain":
            (study.work / "runs" / unit.name / "model").mkdir(parents=True)
        return {"tokens": 1}

    study._made = fake  # type: ignore[method-assign]
    return made


def test_one_model_after_another_goes_through_all_stages(tmp_path: Path) -> None:
    study = comparison(tmp_path, [])
    made = with_fakes(study)
    study.run(tuple(FOLDERS))
    assert made[:6] == [
        "pretrain: gpt-a-seed-1", "perplexity: gpt-a-seed-1", "tuned: gpt-a-seed-1-wikitext",
        "tuned: gpt-a-seed-1-lm1b", "padding: gpt-a-packed", "padding: gpt-a-padded",
    ]  # fmt: skip
    order = [line.removeprefix("pretrain: ") for line in made if line.startswith("pretrain")]
    claimed = ["gpt-a", "u-pmlm-r", "bert-r", "u-pmlm-a", "bert-a"]
    assert order[:5] == [f"{name}-seed-1" for name in claimed]
    assert order[-4:] == ["prior-half-seed-1", "prior-beta-seed-1", "gpt-a-seed-2", "u-pmlm-r-seed-2"]
    assert len(made) == len(set(made)) == sum(len(stage_units(TINY, stage)) for stage in FOLDERS)


def test_stages_one_by_one_make_the_same(tmp_path: Path) -> None:
    study = comparison(tmp_path, [])
    made = with_fakes(study)
    for stage in FOLDERS:
        study.run((stage,))
        assert {line.partition(":")[0] for line in made} == set(
            list(FOLDERS.values())[: list(FOLDERS).index(stage) + 1]
        )
    assert len(made) == len(set(made)) == sum(len(stage_units(TINY, stage)) for stage in FOLDERS)


def test_two_processes_leave_nothing_undone(tmp_path: Path) -> None:
    """While one trains a model, the other does all the rest; what is left is done by whoever comes back to it."""
    one, other = comparison(tmp_path, []), comparison(tmp_path, [])
    made, more = with_fakes(one), with_fakes(other)
    slow = one._made

    def meanwhile(unit: Unit) -> dict[str, Any]:
        if unit.label == "pretrain: u-pmlm-r-seed-1":
            other.run(tuple(FOLDERS))
            assert other.waiting["pretrain: u-pmlm-r-seed-1"] == "another process is at it"
            assert other.waiting["padding: u-pmlm-r-packed"] == "the stage `tune` makes it"
        return slow(unit)

    one._made = meanwhile  # type: ignore[method-assign]
    one.run(tuple(FOLDERS))
    assert not one.waiting
    assert len(more) > len(made)
    assert sorted(made + more) == sorted(unit.label for stage in FOLDERS for unit in stage_units(TINY, stage))


def test_what_had_to_wait_is_looked_at_again(tmp_path: Path) -> None:
    """Another process ends what we waited for while we are at something else."""
    study = comparison(tmp_path, [])
    made, last = with_fakes(study), TINY.pretrained()[-1]
    fake = study._made

    def ends(unit: Unit) -> dict[str, Any]:
        if unit == Unit("pretrain", *last):
            lock.__exit__(None, None, None)
            put_record(study, Unit("pretrain", "gpt-a", 1))
            (study.work / "runs" / "gpt-a-seed-1" / "model").mkdir(parents=True)
        return fake(unit)

    study._made = ends  # type: ignore[method-assign]
    lock = locked(study._lock("pretrain-gpt-a-seed-1"))
    lock.__enter__()
    study.run(tuple(FOLDERS))
    assert "perplexity: gpt-a-seed-1" in made
    assert not study.waiting


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


def figure(perplexity: float) -> dict[str, Any]:
    """Of three windows of two documents, the second a nat harder than it should be for every perplexity but 11."""
    rows = [math.log(perplexity) * tokens for tokens in (10, 10, 20)]
    rows[1] += 0.0 if perplexity == 11.0 else 1.0
    return {"perplexity": perplexity, "perplexity_stderr": 0.5, "bits_per_byte": 2.0, "rows": 4, "row_nll": rows}


def write_perplexity(out: Path, name: str, sequential: float, shuffled: float | None, seed: int = 1) -> None:
    exact = {"l2r": figure(sequential)} | ({} if shuffled is None else {"random": figure(shuffled)})
    record = {
        "model": name, "title": ARMS[name].title, "seed": seed,
        "wikitext": {
            "context": 8, "unknown_share": 0.0, "unk_words": 0.01, "exact_rows": [[0, 10], [0, 10], [1, 20]],
            "bidirectional" if shuffled is not None else "causal": {"exact": exact, "bound": figure(9.0)},
        },
    }  # fmt: skip
    (out / "perplexity").mkdir(parents=True, exist_ok=True)
    (out / "perplexity" / f"{name}-{seed}.json").write_text(json.dumps(record))


def test_a_claim_that_fails_is_reported_as_failed(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-a", 10.0, 12.0)
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    text = report(read_results(tmp_path), "tiny")
    # (log 10 - log 11) and a nat over 40 tokens; each document is 0.5 away from 20 times the mean, so 2 * 0.5 / 40
    assert "| u-PMLM-A is below BERT, sequential | pretrained | holds | 10.0 and 11.0 | -0.070 ± 0.025 | – |" in text
    assert "| u-PMLM-A is below BERT, random | pretrained | **fails** | 12.0 and 11.5 | +0.043 ± 0.000 | – |" in text
    assert "| random is within 10 % of sequential, u-PMLM-A | pretrained | **fails** | 12.0 and 10.0 | +0.182" in text
    assert CLAIMS[-1].text not in text  # R was not measured
    assert "| BERT | 1 | 11.0 ± 0.5 | 11.5 ± 0.5 | – | – | 2.000 | – | 23.12 | 25.54 |" in text


def test_a_claim_is_undecided_where_its_limit_is_near() -> None:
    a, b = Place("a", "l2r"), Place("b", "l2r")
    below = Claim("", a, b)
    assert [below.verdict(*x) for x in ((-0.3, 0.1), (-0.1, 0.1), (0.1, 0.1), (0.3, 0.1), (-0.3, None))] == [
        "holds", "undecided", "undecided", "**fails**", "undecided",
    ]  # fmt: skip
    within = Claim("", a, b, 1.1, 0.9)
    assert [within.verdict(x, 0.01) for x in (0.0, 0.08, -0.1, 0.2, -0.2)] == [
        "holds", "undecided", "undecided", "**fails**", "**fails**",
    ]  # fmt: skip
    assert within.verdict(0.0, 0.06) == "undecided"  # it may be more than 10 % either way
    above = Claim("", a, b, 1.1)
    assert [above.verdict(x, 0.01) for x in (-9.0, 0.05, 0.2)] == ["holds", "holds", "**fails**"]
    holds, fails, near, unknown = (Difference(1, 1, *x) for x in ((-0.3, 0.1), (0.3, 0.1), (-0.1, 0.1), (None, None)))
    assert [below.outcome(x) for x in ([holds, holds], [fails], [holds, fails], [holds, near], [holds, unknown])] == [
        "holds", "**fails**", "undecided", "undecided", "undecided",
    ]  # fmt: skip


def test_a_claim_is_checked_with_all_seeds(tmp_path: Path) -> None:
    for seed, value in ((1, 10.0), (2, 12.0), (3, 20.0)):
        write_perplexity(tmp_path, "u-pmlm-r", value, value, seed)
    for seed, value in ((1, 13.0), (2, 14.0)):
        write_perplexity(tmp_path, "bert-a", value, value, seed)
    row = next(line for line in report(read_results(tmp_path), "tiny").splitlines() if "is below BERT, random" in line)
    # the third seed stands beside the last one that there is
    assert "| undecided | 10.0 and 13.0 | -0.262 ± 0.000 | -0.154 ± 0.000, +0.357 ± 0.000 |" in row


def test_pairs_beyond_the_paper_are_compared_under_the_visibility_that_is_meant(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-r", 10.0, 10.0)
    write_perplexity(tmp_path, "aplm-r", 8.0, 8.0)
    write_perplexity(tmp_path, "both-r", 12.0, 12.0)
    for name, figures in (("aplm-r", ("order-causal",)), ("both-r", ("order-causal", "bidirectional"))):
        path = tmp_path / "perplexity" / f"{name}-1.json"
        record = read_record(path)
        found = record["wikitext"].pop("bidirectional")
        better = {**found, "exact": {"l2r": figure(9.0), "random": figure(9.0)}}
        record["wikitext"] |= {v: better if (v, name) == ("order-causal", "both-r") else found for v in figures}
        path.write_text(json.dumps(record))
    text = beyond_table(read_results(tmp_path))
    assert "| APLM-R, as many tokens, and u-PMLM-R | pretrained | random | 8.0 and 10.0 | -0.223 ± 0.000 | – |" in text
    assert "| u-PMLM + APLM, bidirectional, and u-PMLM-R | pretrained | random | 12.0 and 10.0 |" in text
    assert "| u-PMLM + APLM, order-causal, and APLM-R | pretrained | sequential | 9.0 and 8.0 |" in text
    whole = report(read_results(tmp_path), "tiny")
    assert "| u-PMLM + APLM, R, order-causal | 1 | 9.0 ± 0.5 | 9.0 ± 0.5 |" in whole
    assert "| u-PMLM + APLM, R, bidirectional | 1 | 12.0 ± 0.5 | 12.0 ± 0.5 |" in whole


def test_masked_models_are_compared_with_gpt_row_by_row(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-r", 12.0, 12.5)
    write_perplexity(tmp_path, "gpt-a", 10.0, None)
    text = report(read_results(tmp_path), "tiny")
    row = "| u-PMLM-R is at most 10 % above GPT, sequential | pretrained | **fails** | 12.0 and 10.0 | +0.182 ± 0.000 |"
    assert row in text


def test_a_model_is_told_when_gpt_had_its_bits(tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    curves = {"gpt-a": ("causal", [3.0, 2.0, 1.0]), "u-pmlm-r": ("bidirectional", [3.0, 2.5, 1.75]),
              "bert-a": ("bidirectional", [5.0, 4.0, 3.5])}  # fmt: skip
    for name, (visibility, bits) in curves.items():
        curve = [
            {"tokens": 1e6 * (i + 1), "seconds": 60.0 * (i + 1), "bits_per_byte": {visibility: {"8": 9.0, "16": value}}}
            for i, value in enumerate(bits)
        ]
        figures = {"parameters": 2.6e6, "tokens": 3e6, "training_seconds": 180.0, "curve": curve}
        about = {"model": name, "title": ARMS[name].title, "seed": 1}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
    text = report(read_results(tmp_path), "tiny")
    assert "| u-PMLM-R | 1 | 2.6M | 3.00M | – | – | bidirectional 1.750 | 2.25M |" in text
    assert "| BERT | 1 | 2.6M | 3.00M | – | – | bidirectional 3.500 | – |" in text  # before its first evaluation
    assert "| GPT | 1 | 2.6M | 3.00M | – | – | causal 1.000 | – |" in text


def test_models_are_compared_for_the_budget_of_bert(tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    for name in ("bert-a", "aplm-r", "aplm-r-equal-work"):
        settings = arm_settings(TINY, name, 1)
        points = [
            {"tokens": tokens, "seconds": 1.0, "bits_per_byte": {"order-causal": {"16": bits}}}
            for tokens, bits in ((250_000, 3.0), (800_000, 2.5), (1_000_000, 2.25))
        ]
        figures = {"parameters": 9, "tokens": 1_000_000, "training_seconds": 1.0, "curve": points}
        about = {"model": name, "title": ARMS[name].title, "seed": 1, "settings": {"run": to_dict(settings)}}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
    dearer = work_per_token(arm_settings(TINY, "aplm-r", 1)) / work_per_token(arm_settings(TINY, "bert-a", 1))
    assert 1.25 < dearer < 4
    text = arithmetic_table(read_results(tmp_path))
    assert "| BERT | 1 | 1.00M | 2.250 |" in text
    assert "| APLM-R | 1 | 0.25M | 3.000 |" in text
    assert f"| APLM-R | 1 | 0.0M | 1.00M | {dearer:.2f} | – |" in report(read_results(tmp_path), "tiny")
    assert time_table(read_results(tmp_path)) == ""  # no times are known that could be compared
    timed = {"bert-a": {"token_seconds": 2.0}, "aplm-r": {"token_seconds": 2.4}}
    (tmp_path / TIMING).write_text(json.dumps({"models": timed}))
    text = time_table(read_results(tmp_path))
    assert "| APLM-R | 1 | 0.80M | 2.500 |" in text
    assert "| APLM-R, u-PMLM-R's arithmetic | 1 | 0.80M | 2.500 |" in text  # as quick as its like
    assert f"| APLM-R | 1 | 0.0M | 1.00M | {dearer:.2f} | 1.20 |" in report(read_results(tmp_path), "tiny")


def test_steps_are_timed_in_turn_and_the_first_is_not_counted() -> None:
    turns: list[str] = []

    def steps(name: str, seconds: list[float]) -> Any:
        for number, value in enumerate(seconds, 1):
            turns.append(name)
            yield StepReport(number, 0.0, (), 0.0, 0.0, tokens=100 * number, seconds=value)

    advanced: list[int] = []
    found = step_seconds(
        {"a": steps("a", [9.0, 1.0, 2.0, 7.0]), "b": steps("b", [9.0, 4.0, 4.0, 4.0])}, 3, advanced.append
    )
    assert turns == ["a", "b"] * 4
    assert sum(advanced) == 8
    assert found == {
        "a": {"step_seconds": 2.0, "token_seconds": 0.02},
        "b": {"step_seconds": 4.0, "token_seconds": 0.04},
    }


def test_every_model_has_a_colour_of_its_own() -> None:
    assert len(set(COLOURS)) == len(COLOURS) >= len(ARMS)


def test_several_seeds_have_a_mean_and_a_deviation(tmp_path: Path) -> None:
    for seed, value in ((1, 10.0), (2, 12.0), (3, 14.0)):
        write_perplexity(tmp_path, "gpt-a", value, None, seed)
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    text = report(read_results(tmp_path), "tiny")
    mean = "| GPT | mean of 3 ± deviation | 12.0 ± 2.0 | – | – | – | 2.000 ± 0.000 | – | 21.23 | – |"
    assert mean in text
    assert text.count("| mean of") == 1


def write_sentences(out: Path, stage: str, name: str, visibility: str, kind: str) -> None:
    found = {"l2r": {kind: figure(20.0), "x and N": figure(30.0)}, "bound": figure(9.0)}
    record = {
        "model": name, "title": ARMS[name].title, "seed": 1,
        "lm1b": {"context": 8, "fitting": 3, "sentences": 4, "unknown_share": 0.015, visibility: found},
    }  # fmt: skip
    if stage == "perplexity":
        record["wikitext"] = read_record(out / stage / f"{name}-1.json")["wikitext"]
    (out / stage).mkdir(exist_ok=True)
    (out / stage / f"{name}-1.json").write_text(json.dumps(record))


def test_p_of_n_is_told_after_fine_tuning_alone_and_x_alone_is_labelled(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    write_perplexity(tmp_path, "gpt-a", 11.0, None)
    for stage in ("perplexity", "tuned"):
        write_sentences(tmp_path, stage, "bert-a", "bidirectional", "x given N")
        write_sentences(tmp_path, stage, "gpt-a", "causal", "x alone")
    text = report(read_results(tmp_path), "tiny")
    for line in (
        "| BERT | 1 | pretrained | 20.0 ± 0.5 | – | – | – |",
        "| BERT | 1 | tuned | 20.0 ± 0.5 | – | 30.0 ± 0.5 | – |",
        "| GPT | 1 | pretrained | 20.0 ± 0.5 (x alone) | – | – | – |",
        "| GPT | 1 | tuned | 20.0 ± 0.5 (x alone) | – | 30.0 ± 0.5 | – |",
    ):
        assert line in text
    assert "| 30.0 ± 0.5 | – | 2.000 | 24.25 | – |" in text  # the paper's models were fine-tuned
    assert "| GPT | 1 | pretrained | 20.0 ± 0.5 (x alone) | – | – | – | 2.000 | – | – |" in text
    assert "[UNK]: 1.50% of the tokens." in text


def test_the_gap_to_gpt_on_sentences_is_relative_to_that_on_long_text(tmp_path: Path) -> None:
    def write(folder: str, name: str, label: str, **figures: Any) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        record = {"model": name, "title": ARMS[name].title, "seed": 1, **figures}
        (tmp_path / folder / f"{name}-{label}.json").write_text(json.dumps(record))

    def wikitext(visibility: str, perplexity: float) -> dict[str, Any]:
        return {"wikitext": {visibility: {"exact": {"l2r": figure(perplexity)}}, "exact_rows": []}}

    def sentences(packing: str, visibility: str, kind: str, alone: float, joint: float) -> dict[str, Any]:
        found = {"l2r": {kind: figure(alone), "x and N": figure(joint)}}
        return {"packing": packing, "lm1b": {visibility: found, "context": 8}}

    write("tuned", "gpt-a", "wikitext", **wikitext("causal", 10.0))
    write("tuned", "u-pmlm-a", "wikitext", **wikitext("bidirectional", 15.0))
    write("tuned", "xlnet", "wikitext", **wikitext("two-stream", 12.0))  # of which there are no ways of padding
    write("padding", "gpt-a", "packed", **sentences("packed", "causal", "x alone", 20.0, 25.0))
    write("padding", "gpt-a", "padded", **sentences("padded", "causal", "x alone", 20.0, 20.0))
    for packing in ("packed", "padding-seen"):
        write("padding", "u-pmlm-a", packing, **sentences(packing, "bidirectional", "x given N", 60.0, 75.0))
    text = gap_table(read_results(tmp_path))
    assert "| u-PMLM-A | packed | 1.50 | 3.00 | 3.00 | 2.00 | 2.00 | 0.91 | 2.03 | 2.23 |" in text
    assert "| u-PMLM-A | padding-seen | 1.50 | 3.00 | 3.75 | 2.00 | 2.50 | 0.91 | 2.03 | 2.23 |" in text


def test_ways_of_padding_are_compared_over_the_same_sentences(tmp_path: Path) -> None:
    (tmp_path / "padding").mkdir()
    rows = [[0, 10], [1, 10], [2, 20]]
    for packing, given, joint in (("packed", 20.0, 30.0), ("padding-predicted", 22.0, 30.0)):
        found = {"l2r": {"x given N": figure(given), "x and N": figure(joint)}, "bound": figure(9.0)}
        record = {
            "model": "u-pmlm-r", "seed": 1, "packing": packing, "lm1b": {"exact_rows": rows, "bidirectional": found},
        }  # fmt: skip
        (tmp_path / "padding" / f"u-pmlm-r-{packing}.json").write_text(json.dumps(record))
    text = padding_table(read_results(tmp_path))
    assert "| u-PMLM-R | 1 | packed | 20.0 ± 0.5 | – | 30.0 ± 0.5 | – | 2.000 | – | – |" in text
    told = "| u-PMLM-R | 1 | padding-predicted | 22.0 ± 0.5 | – | 30.0 ± 0.5 | – | 2.000 | +0.095 ± 0.000 | +0.000 ± 0.000 |"
    assert told in text


def test_samples_stand_on_a_line_each_whatever_they_hold(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    texts = {"l2r": ["a\n\n| b |", "c ``` d"], "random": ["e", "f"]}
    record = {"model": "bert-a", "seed": 1, "seeds": [0, 1], "template": "x [MASK]", "texts": texts}
    (tmp_path / "samples" / "bert-a.json").write_text(json.dumps(record))
    text = report(read_results(tmp_path), "tiny")
    assert "order l2r, template `x [MASK]`\n\n```text\n0. a ⏎  ⏎ | b |\n1. c ''' d\n```" in text
    assert "order random, template `x [MASK]`\n\n```text\n0. e\n1. f\n```" in text


def test_a_record_of_an_unknown_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "x.json").write_text(json.dumps({"model": "elmo", "seed": 1}))
    with pytest.raises(DataError, match=r"x\.json is of no model that is compared: 'elmo'"):
        read_results(tmp_path)


def test_probes_stand_beside_the_bits_per_byte_of_their_prior(tmp_path: Path) -> None:
    for folder in ("pretrain", "probes"):
        (tmp_path / folder).mkdir()
    for name, score in (("bert-r", 0.7), ("u-pmlm-r", 0.75)):
        about = {"model": name, "title": ARMS[name].title, "seed": 1}
        point = {"tokens": 9, "seconds": 2.0, "bits_per_byte": {"bidirectional": {"8": 2.5, "16": 2.25}}}
        figures = {"parameters": 9, "tokens": 9, "training_seconds": 2.0, "curve": [point]}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
        found = {"SST-2": {"score": score, "stderr": 0.016, "constant": 0.509}}
        (tmp_path / "probes" / f"{name}.json").write_text(json.dumps(about | {"probe": found}))
    text = report(read_results(tmp_path), "tiny")
    assert "| fixed 15 % | 1 | 2.250 | 0.700 ± 0.016 |" in text
    assert "| uniform [0, 1] | 1 | 2.250 | 0.750 ± 0.016 |" in text
    assert "A constant answer scores 0.509 (SST-2)." in text


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *arguments])
    error = "" if result.exception is None else str(result.exception)
    return result.exit_code, result.output + error


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scale 'huge'"):
        load_compare_settings("huge", [])
    with pytest.raises(ConfigError, match="no model 'elmo'"):
        load_compare_settings("tiny", ['models=["elmo"]'])
    assert "no stage 'bake'" in run("--stage", "bake")[1]
    assert "--data" in run("--stage", "prepare")[1]
    assert "holds no results yet" in run("--stage", "tables", "--out", str(tmp_path))[1]
    folders = ("--data", str(tmp_path), "--work", str(tmp_path / "w"), "--out", str(tmp_path / "o"))
    assert "1b_benchmark.dev.tokens.xz is missing" in run("--stage", "prepare", *folders)[1]
    for stage, name in (("probe", "glue"), ("evaluate", "1b_benchmark"), ("tune,pretrain", "1b_benchmark")):
        assert name in run("--stage", stage, *folders)[1]
    for name in ("lm1b-heldout/1b_benchmark.dev", "wikitext-2/wiki.valid", "wikitext-103-valid-test/wiki.valid"):
        put(tmp_path / f"{name}.tokens.xz", "x")
    assert "glue is missing" in run("--stage", "all", *folders)[1]  # before anything is trained
    (tmp_path / "glue").mkdir()
    assert "wiki.test.tokens.xz is missing" in run("--stage", "all", *folders)[1]
    assert not (tmp_path / "w").exists()


def test_what_overlaps_the_test_articles_can_be_left_out_of_pretraining(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    given: dict[str, list[str]] = {}

    def fake(_paths: Any, out: Path, *_more: Any, protect: list[str], **_others: Any) -> None:
        given[out.name] = list(protect)

    monkeypatch.setattr("pmlm.compare.stages.prepare", fake)
    for protect in (False, True):
        study = comparison(tmp_path, [])
        study.settings = replace(TINY, sources=replace(TINY.sources, lm1b_train=300, protect=protect))
        vars(study)["tokenizer"] = corpus.tokenizer
        study.prepare()
        assert bool(given["pretrain"]) == protect
        assert given["wikitext"] == given["lm1b"] == []
    assert len(given["pretrain"]) == 12  # the test articles, whole


def test_a_model_of_another_vocabulary_is_not_measured(tmp_path: Path, corpus: Corpus) -> None:
    study = comparison(tmp_path, [])
    fresh(corpus, "gpt-a").save(study.work / "runs" / "x" / "model")
    vars(study)["tokenizer"] = corpus.tokenizer
    assert study.model("x").tokenizer.fingerprint == corpus.tokenizer.fingerprint
    vars(study)["tokenizer"] = train_tokenizer(["Tom is a cat. " * 9], vocab_size=300)
    with pytest.raises(DataError, match="another vocabulary"):
        study.model("x")


def test_a_log_says_what_is_done_and_what_is_left_and_tables_are_made_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stderr is no terminal, as here."""

    def fake(study: Comparison, unit: Unit) -> dict[str, Any]:
        if unit.model == "bert-a":
            raise TrainingDiverged("the loss is not finite")
        (study.work / "runs" / unit.name / "model").mkdir(parents=True)
        return {"parameters": 1, "tokens": 1, "training_seconds": 1, "curve": []}

    monkeypatch.setattr(Comparison, "_made", fake)
    out = tmp_path / "out"
    folders = ("--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(out))
    more = ("--set", 'models=["gpt-a", "bert-a"]', "--set", "priors=[]", "--set", "more_seeds=[]")
    result = CliRunner().invoke(app, ["compare", *folders, *more, "--stage", "pretrain,tables"])
    assert isinstance(result.exception, TrainingDiverged)
    assert "pretrain: gpt-a-seed-1 is done" in result.stderr
    assert "failed: pretrain: bert-a-seed-1" in result.stderr
    assert "| GPT | 1 | 0.0M |" in (out / "tables.md").read_text()
    left = CliRunner().invoke(app, ["compare", *folders, *more, "--stage", "samples"]).stderr
    assert "not done: samples: bert-a (bert-a is not trained to the end)" in left
    again = CliRunner().invoke(app, ["compare", *folders, *more, "--stage", "pretrain", "--quiet"])
    assert again.stderr == ""


def sentence(rng: random.Random) -> str:
    who, what = rng.choice(["Tom", "Mia", "the fox", "a hen"]), rng.choice(["saw", "found", "liked", "drew"])
    return f"{who} {what} {rng.choice(['a kite', 'the sea', 'two trees', 'an old house'])} ."


def write_data(folder: Path) -> None:
    rng = random.Random(1)

    def article(number: int) -> str:
        paragraphs = [" ".join(sentence(rng) for _ in range(12)) for _ in range(3)]
        return f" = Story {number} = \n \n " + " \n ".join(paragraphs) + " \n"

    for name, num in (("wikitext-2/wiki.valid", 40), ("wikitext-103-valid-test/wiki.valid", 30)):
        put(folder / f"{name}.tokens.xz", "".join(article(i) for i in range(num)))
    put(folder / "wikitext-103-valid-test/wiki.test.tokens.xz", "".join(article(i) for i in range(12)))
    put(folder / "lm1b-heldout/1b_benchmark.dev.tokens.xz", "\n".join(sentence(rng) for _ in range(400)))
    for task, header in (("SST-2", "sentence\tlabel\n"), ("CoLA", "")):
        for part in ("train", "dev"):
            lines = [(sentence(rng), i % 2) for i in range(40)]
            rows = [f"{s}\t{y}" if header else f"x\t{y}\t\t{s}" for s, y in lines]
            put(folder / "glue" / task / f"{part}.tsv.xz", header + "\n".join(rows) + "\n")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))


REAL = Path(os.environ.get("PMLM_DATA", ROOT.parent / "shared" / "data"))


@pytest.mark.slow
def test_the_tiny_scale_goes_from_text_to_tables_and_back_byte_for_byte(tmp_path: Path) -> None:
    """On the real texts where they are at hand, else on a few made for it."""
    data, out, sets = REAL, tmp_path / "out", []
    if not REAL.is_dir():
        data, sets = tmp_path / "data", ["sources.lm1b_train=300"]
        write_data(data)
    folders = ("--out", str(out), "--work", str(tmp_path / "work"), *(word for one in sets for word in ("--set", one)))
    began = time.process_time()
    code, text = run("--data", str(data), *folders, "--quiet")
    assert code == 0, text
    assert time.process_time() - began < 2 * 600  # ten minutes of two cores, whatever else they are at
    for title in (
        "WikiText-103",
        "One Billion",
        "Padding",
        "Prior",
        "Bounds",
        "Equal arithmetic",
        "Equal time",
        "paper claims",
        "Samples",
    ):
        assert title in text
    first = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {"tables.md", "curves.svg", "curves.png", TIMING} <= first.keys()
    assert run("--stage", "tables", *folders)[0] == 0
    assert first == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    pretrained = [json.loads(path.read_text()) for path in (out / "pretrain").glob("*.json")]
    assert {r["model"] for r in pretrained} == {*TINY.models, *TINY.priors}
    for path in out.glob("*/*.json"):
        check_origin(path)
    settings = load_compare_settings("tiny", sets)
    for stage in FOLDERS:
        assert len(list((out / FOLDERS[stage]).glob("*.json"))) == len(stage_units(settings, stage)), stage
    assert [path.name for path in (out / "models").iterdir()] == ["u-pmlm-r-seed-1"]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert run("--data", str(data), *folders, "--quiet")[0] == 0  # nothing is done again
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
