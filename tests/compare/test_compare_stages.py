"""The stages: what is made in which order, by several processes, and where models have gone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compare_helpers import TINY, comparison, fresh, put_record, with_fakes

from pmlm.compare.records import read_record
from pmlm.compare.units import FOLDERS, Unit, model_units, stage_units
from pmlm.corpus.shards import Corpus
from pmlm.errors import DataError, TrainingDiverged
from pmlm.keeping import locked
from pmlm.tokenizer import train_tokenizer


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


def test_a_model_that_is_not_trained_to_the_end_is_not_measured(tmp_path: Path) -> None:
    """Its folder is there from the first evaluation on."""
    said: list[str] = []
    (tmp_path / "work" / "runs" / "u-pmlm-a-seed-1" / "model").mkdir(parents=True)
    comparison(tmp_path, said).run(("evaluate", "samples", "probe"))
    assert "perplexity: u-pmlm-a-seed-1 has to wait, u-pmlm-a is not trained to the end" in said
    assert not (tmp_path / "out").exists()


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
        return {"tokens": 7, "training_seconds": 3.0, "curve": [{"tokens": 7}]}

    study._trained = train  # type: ignore[method-assign, assignment]
    paths = {unit.name: put_record(study, unit) for unit in stage_units(TINY, "pretrain")}
    for unit in model_units(TINY, "gpt-a", 1):
        put_record(study, unit)
    study.run(("pretrain",))
    assert set(trained) == set(paths) - {"gpt-a-seed-1"}  # of which all is known
    assert any("bert-a-seed-1 is recorded, but its model is gone" in line for line in said)
    record = read_record(paths["bert-a-seed-1"])
    assert [(entry["tokens"], entry["curve"]) for entry in record["again"]] == [(7, [{"tokens": 7}])]
    study.run(("pretrain",))
    assert len(trained) == len(paths) - 1  # and not once more


def test_a_model_whose_second_training_was_stopped_is_not_used(tmp_path: Path, corpus: Corpus) -> None:
    study = comparison(tmp_path, [])

    def stopped(run: Any) -> None:
        (run.folder / "model").mkdir(parents=True)  # as the first evaluation does
        raise KeyboardInterrupt

    study.drive, study.corpora.corpus = stopped, lambda _name: corpus  # type: ignore[method-assign]
    put_record(study, Unit("pretrain", "gpt-a", 1))
    with pytest.raises(KeyboardInterrupt):
        study._do(Unit("pretrain", "gpt-a", 1))
    assert study._is_gone(Unit("pretrain", "gpt-a", 1))


def test_a_model_that_is_kept_with_the_results_is_measured_from_there_and_not_trained_again(
    tmp_path: Path, corpus: Corpus
) -> None:
    study, unit = comparison(tmp_path, [], kept=("gpt-a",)), Unit("pretrain", "gpt-a", 1)
    vars(study.corpora)["tokenizer"] = corpus.tokenizer
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


def test_a_model_of_another_vocabulary_is_not_measured(tmp_path: Path, corpus: Corpus) -> None:
    study = comparison(tmp_path, [])
    fresh(corpus, "gpt-a").save(study.work / "runs" / "x" / "model")
    vars(study.corpora)["tokenizer"] = corpus.tokenizer
    assert study.model("x").tokenizer.fingerprint == corpus.tokenizer.fingerprint
    vars(study.corpora)["tokenizer"] = train_tokenizer(["Tom is a cat. " * 9], vocab_size=300)
    with pytest.raises(DataError, match="another vocabulary"):
        study.model("x")
