"""Kept reports and their tables: figures as in the JSON, failures and what is missing said."""

import json
from pathlib import Path
from typing import Any

import pytest
from nlu_helpers import save_model, write_rte, write_sst

from pmlm.cli import run
from pmlm.errors import DataError
from pmlm.nlu.study import summarise
from pmlm.nlu.tables import glue_table, page, read_reports, squad_table


def glue_report(**changes: Any) -> dict[str, Any]:
    tasks = {
        "MRPC": {"runs": 2, "failed": [{"seed": 2, "reason": "diverged"}], "constant_score": 0.75,
                 "constants": {"MRPC": {"f1": 0.812, "accuracy": 0.684}},
                 "dev": {"MRPC": {"f1": summarise([0.8, 0.9]), "accuracy": summarise([0.7, 0.7])}}},
        "RTE": {"runs": 2, "failed": [], "constant_score": 0.527, "constants": {"RTE": {"accuracy": 0.527}},
                "dev": {"RTE": {"accuracy": summarise([0.5, 0.6])}}},
    }  # fmt: skip
    return {
        "model": "x",
        "sharing": "none",
        "seeds": [1, 2],
        "settings": {"epochs": 3.0, "batch_rows": 32},
        "tasks": tasks,
        "not_run": {"MNLI": ["no file"]},
        "notes": [],
    } | changes


def squad_report(*exact: float, never: float = 0.5) -> dict[str, Any]:
    figures = {"exact": summarise(exact), "f1": summarise([0.5]), "HasAns_f1": summarise([0.25]), "NoAns_f1": summarise([0.75])}  # fmt: skip
    tasks = {"SQuAD": {"runs": len(exact), "failed": [], "constant_score": never, "dev": {"SQuAD": figures}}}
    return {"model": "x", "protocol": "reduced: 10 questions", "seeds": list(range(len(exact))), "tasks": tasks,
            "settings": {"epochs": 3.0, "num_steps": 600, "batch_rows": 16}}  # fmt: skip


def rows(table: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {line[0]: line[1:] for line in cells}


def test_means_deviations_failures_and_the_papers_figures_stand_side_by_side() -> None:
    found = rows(glue_table({"u-PMLM-A": glue_report(), "other": glue_report(seeds=[1])}))
    assert found["model"] == ["runs", "MRPC (F1, accuracy)", "RTE (accuracy)"]
    assert found["u-PMLM-A"] == ["2, failed: 1 of MRPC", "85.0 ± 7.1 / 70.0 ± 0.0", "55.0 ± 7.1"]
    assert found["best constant answer to each metric"][1:] == ["81.2 / 68.4", "52.7"]
    assert found["*paper, u-PMLM-A, test sets*"] == ["", "88.8 / 84.4", "66.1"]
    assert not any("BERT" in name for name in found)  # only models that are there
    text = page({"glue": {"u-PMLM-A": glue_report()}})
    assert "u-PMLM-A: 3 epochs; not run: MNLI; MRPC seed 2 failed (diverged)." in text
    assert found["*paper, u-PMLM-A, test sets*"]
    part = {"epochs": 3.0, "most_steps": 2105, "train_rows": 8000, "shuffle_labels": True, "frozen": True}
    text = page({"glue": {"XLNet": glue_report(settings=part, not_run={})}})
    said = "at most 8,000 training examples; 3 epochs; at most 2,105 steps; **labels dealt out at random**; frozen"
    assert f"XLNet: {said} backbone;" in text
    assert "| *paper, XLNet, split not said* |" in text
    assert "x: 600 steps, a step being 16 windows." in page({"squad": {"x": squad_report(0.5)}})
    report = squad_report(0.5) | {"settings": {"epochs": 1.0, "batch_rows": 8, "length": 256}}
    assert "x: 1 epoch, a step being 8 windows of 256 slots." in page({"squad": {"x": report}})


def test_a_star_in_the_table_is_a_word_in_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "u-PMLM-R-star.json").write_text(json.dumps(glue_report(sharing="joint")))
    (tmp_path / "glue" / "u-PMLM-R.json").write_text(json.dumps(glue_report()))
    text = page(read_reports(tmp_path))
    assert {"u-PMLM-R", "u-PMLM-R*", "*paper, u-PMLM-R*, test sets*"} <= rows(text).keys()
    assert "u-PMLM-R*: 3 epochs; not run: MNLI; sharing data: joint;" in text
    (tmp_path / "glue" / "u-PMLM-R-star.json").unlink()
    assert "*paper, u-PMLM-R*, test sets*" not in rows(page(read_reports(tmp_path)))


def test_squad_stands_beside_never_answering() -> None:
    found = rows(squad_table({"XLNet": squad_report(0.4, 0.6), "other": squad_report(0.5)}))
    assert found["XLNet"] == ["2", "50.0 ± 14.1", "50.0", "25.0", "75.0"]
    assert found["other"][1] == "50.0"
    assert found["never answering"] == ["", "50.0", "50.0", "0.0", "100.0"]
    assert found["*paper, XLNet, full protocol*"][1:3] == ["78.46", "81.33"]
    found = rows(squad_table({"a": squad_report(0.4), "b": squad_report(0.5, never=0.25), "c": squad_report(0.4)}))
    assert found["never answering, on the questions of a, c"][1] == "50.0"
    assert found["never answering, on the questions of b"][1] == "25.0"


def test_the_table_in_the_repository_is_that_of_the_reports_beside_it() -> None:
    folder = Path(__file__).resolve().parents[2] / "results" / "nlu"
    assert (folder / "table.md").read_text(encoding="utf-8") == page(read_reports(folder))


def test_from_the_command_line_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path / "start")
    data, kept = write_rte(write_sst(tmp_path / "glue")), tmp_path / "results"
    options = ["--tasks", "SST-2,RTE,MNLI", "--seeds", "2", "--set", "num_steps=3", "--quiet"]
    report = kept / "glue" / "Tiny.json"
    place = ["-m", str(tmp_path / "start"), "--data", str(data), "-o", str(tmp_path / "runs"), "--report", str(report)]
    assert run(["finetune", "glue", *place, *options]) == 0
    document = json.loads(report.read_text())
    assert document == json.loads((tmp_path / "runs" / "report.json").read_text())
    assert document["made"]["machine"]
    assert document["tasks"]["RTE"]["seconds"] > 0
    capsys.readouterr()
    assert run(["finetune", "table", str(kept)]) == 0
    text = capsys.readouterr().out
    assert text == (kept / "table.md").read_text()
    mean = 100 * document["tasks"]["SST-2"]["dev"]["SST-2"]["accuracy"]["mean"]
    assert rows(text)["Tiny"][1].startswith(f"{mean:.1f} ±")
    assert "not run: MNLI" in text


def test_a_kept_report_gains_tasks_and_is_not_mixed_with_other_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(tmp_path / "start")
    data, report = write_rte(write_sst(tmp_path / "glue")), tmp_path / "Tiny.json"

    def finetune(tasks: str, *more: str, out: str = "runs") -> int:
        place = ["-m", str(tmp_path / "start"), "--data", str(data), "-o", str(tmp_path / out)]
        options = ["--tasks", tasks, "--set", "num_steps=3", "--quiet", "--report", str(report)]
        return run(["finetune", "glue", *place, *options, *more])

    assert finetune("SST-2,MNLI") == 0
    first = json.loads(report.read_text())
    assert finetune("RTE") == 0
    both = json.loads(report.read_text())
    assert list(both["tasks"]) == ["SST-2", "RTE"]
    assert both["tasks"]["SST-2"] == first["tasks"]["SST-2"]
    assert list(both["not_run"]) == ["MNLI"]
    assert len(both["notes"]) == len(set(both["notes"])) >= len(first["notes"])
    assert list(json.loads((tmp_path / "runs" / "report.json").read_text())["tasks"]) == ["RTE"]

    capsys.readouterr()
    assert finetune("RTE", "--set", "optim.lr=0.5", out="more") == 2
    assert "Tiny.json was made with other settings: remove it" in capsys.readouterr().err
    assert finetune("RTE", "--seeds", "2", out="more") == 2
    assert not (tmp_path / "more").exists()  # said before anything is trained
    assert json.loads(report.read_text()) == both


def test_what_is_no_report_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="holds no reports"):
        read_reports(tmp_path)
    (tmp_path / "glue").mkdir()
    for text in ("[1]", '{"tasks": {}}'):
        (tmp_path / "glue" / "x.json").write_text(text)
        assert run(["finetune", "table", str(tmp_path)]) == 2
        assert "is no report of `pmlm finetune`" in capsys.readouterr().err
