"""`pmlm compare`: wrong input, logs, and the whole thing at tiny scale."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from compare_helpers import REAL, TINY, check_origin, put, run, write_data
from typer.testing import CliRunner

from pmlm.cli import app
from pmlm.compare.settings import load_compare_settings
from pmlm.compare.stages import Comparison
from pmlm.compare.units import FOLDERS, TIMING, Unit, stage_units
from pmlm.errors import ConfigError, TrainingDiverged


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scale 'huge'"):
        load_compare_settings("huge", [])
    with pytest.raises(ConfigError, match="no model 'elmo'"):
        load_compare_settings("tiny", ['models=["elmo"]'])
    for settings, said in (
        ('padding=["foo"]', "one of packed, padded"), ('probes=["FOO"]', "no GLUE task 'FOO'"),
        ("measure.exact=0", "at least 1"), ("measure.bound=0", "at least 1"),
        ("train.seed=2", r"train\.seed is not shared by the models: `seeds` says it"),
        ("train.model.positions=absolute", r"train\.model\.positions is not shared"), ("train=3", "train"),
        ('seeded=["prior-half"]', "not of `priors`"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            load_compare_settings("tiny", [settings])
    assert "changes nothing in tables" in run("--stage", "tables", "--set", "tokens=5")[1]
    assert "add the stage `tables`" in run("--stage", "samples", "--json")[1]
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


def cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


@pytest.mark.slow
def test_the_tiny_scale_goes_from_text_to_tables_and_back_byte_for_byte(tmp_path: Path) -> None:
    """On the real texts where they are at hand, else on a few made for it."""
    data, out, sets = REAL, tmp_path / "out", []
    if not REAL.is_dir():
        data, sets = tmp_path / "data", ["sources.lm1b_train=300"]
        write_data(data)
    folders = ("--out", str(out), "--work", str(tmp_path / "work"))
    all_of_it = ("--data", str(data), *folders, *(word for one in sets for word in ("--set", one)), "--quiet")
    began, used = time.monotonic(), cpu_seconds()
    code, text = run(*all_of_it)
    assert code == 0, text
    # Ten minutes by the clock, or of one core where other tests share the machine
    assert min(time.monotonic() - began, cpu_seconds() - used) < 600
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
    assert run(*all_of_it)[0] == 0  # nothing is done again
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
