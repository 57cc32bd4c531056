"""finetune, classify and answer from the command line."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
from test_cli import Capture, ok, refused

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nlu"))
from nlu_helpers import save_model, write_sst

from pmlm.nlu.finetuned import load_finetuned, load_start

FAST = ["--set", "num_steps=3", "--set", "batch_rows=8", "--quiet", "--device", "cpu"]
CONTEXT = "Tom is a warm cat. The cat was in the house."


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("m") / "tiny")


@pytest.fixture(scope="module")
def sst(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pmlm.cli import run

    folder = tmp_path_factory.mktemp("glue")
    write_sst(folder / "data")
    arguments = ["finetune", "glue", "-m", str(start), "-d", str(folder / "data"), "-o", str(folder / "out"), *FAST]
    zip_path = ["--submission", str(folder / "s.zip")]
    assert run([*arguments, "--tasks", "SST-2,MNLI", "--seeds", "2", *zip_path]) == 0
    return folder


def squad_file(path: Path) -> Path:
    def article(title: str, word: str) -> dict[str, object]:
        context = f"{CONTEXT} It was {word}."
        answered = {"id": f"{title}1", "question": "Who is a cat?", "answers": [{"text": "Tom", "answer_start": 0}]}
        none = {"id": f"{title}2", "question": "Who is a dog?", "answers": [], "is_impossible": True}
        return {"title": title, "paragraphs": [{"context": context, "qas": [answered, none]}]}

    path.write_text(json.dumps({"data": [article(t, w) for t, w in (("a", "good"), ("b", "bad"), ("c", "fine"))]}))
    return path


@pytest.fixture(scope="module")
def squad(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pmlm.cli import run

    folder = tmp_path_factory.mktemp("squad")
    split = squad_file(folder / "s.json")
    arguments = ["finetune", "squad", "-m", str(start), "--split", str(split), "-o", str(folder / "out"), *FAST]
    assert run([*arguments, "--set", "windows.question=8"]) == 0
    return folder / "out"


def test_glue_reports_runs_and_what_is_missing(sst: Path, start: Path, capsys: Capture) -> None:
    report = json.loads((sst / "out" / "report.json").read_text())
    assert report["tasks"]["SST-2"]["runs"] == 2
    assert "MNLI" in report["not_run"]
    assert report["submission"]["holds"] == ["SST-2"]
    assert "MNLI-m" in report["submission"]["missing"]
    with zipfile.ZipFile(sst / "s.zip") as archive:
        assert archive.namelist() == ["SST-2.tsv"]
    arguments = ["finetune", "glue", "-m", str(start), "-d", str(sst / "data"), "-o", str(sst / "out"), *FAST]
    shown = ok(capsys, *arguments, "--tasks", "SST-2,MNLI", "--seeds", "2")  # finished: nothing is run again
    assert "SST-2     accuracy" in shown
    assert "not run: MNLI" in shown
    assert "note: MNLI: train is missing (MNLI/train.tsv)" in shown
    assert "other settings" in refused(capsys, *arguments, "--tasks", "SST-2", "--set", "optim.lr=0.5")


def test_classify_says_the_class_of_texts_and_lines(sst: Path, capsys: Capture, tmp_path: Path) -> None:
    model = str(sst / "out" / "SST-2" / "seed-1" / "model")
    assert ok(capsys, "classify", "-m", model, "The film was good.").split()[0] in ("positive", "negative")
    document = json.loads(ok(capsys, "classify", "-m", model, "The film was good.", "--json"))
    assert set(document["probs"]) == {"positive", "negative"}
    assert document["prob"] == max(document["probs"].values())
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n\n{"text": "bad"}\n')
    lines = ok(capsys, "classify", "-m", model, "--jsonl", str(tmp_path / "x.jsonl")).splitlines()
    assert [json.loads(line)["texts"] for line in lines] == [["good"], ["bad"]]
    shown = ok(capsys, "info", "-m", model)
    assert "fine-tuned for SST-2 (classes): negative, positive" in shown
    assert json.loads(ok(capsys, "info", "-m", model, "--json"))["tasks"][0]["labels"] == ["negative", "positive"]
    assert "reads 1 text at a time, got 2" in refused(capsys, "classify", "-m", model, "a", "b")
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')
    assert "line 2" in refused(capsys, "classify", "-m", model, "--jsonl", str(tmp_path / "bad.jsonl"))
    assert "use `pmlm classify`" in refused(capsys, "generate", "-m", model, "a [MASK]")
    assert "use `pmlm classify`" in refused(capsys, "answer", "-m", model, "--question", "a", "--context", "b")


def test_squad_writes_predictions_and_answer_uses_the_model(squad: Path, capsys: Capture, tmp_path: Path) -> None:
    report = json.loads((squad / "report.json").read_text())
    assert report["protocol"].startswith("reduced")
    assert {"f1", "exact", "best_f1", "never_answering"} <= set(report["tasks"]["SQuAD"]["dev"]["SQuAD"])
    folder = Path(report["tasks"]["SQuAD"]["best_model"])
    predictions = json.loads((folder.parent / "predictions.json").read_text())
    odds = json.loads((folder.parent / "null_odds.json").read_text())
    assert set(predictions) == set(odds) == set(json.loads((folder.parent / "nbest.json").read_text()))
    assert all(isinstance(text, str) for text in predictions.values())
    spec = load_finetuned(folder).model.specs["SQuAD"]
    assert spec.stride == report["settings"]["windows"]["stride"]
    assert spec.length == report["settings"].get("length", load_finetuned(folder).model.config.max_length)
    assert (spec.question, spec.answer) == (8, report["settings"]["windows"]["answer"])
    arguments = ["answer", "-m", str(folder), "--question", "Who is a cat?", "--context", CONTEXT]
    document = json.loads(ok(capsys, *arguments, "--json", "--threshold", "1e9"))
    best = document["spans"][0]
    assert document["answer"] == best["text"] == CONTEXT[best["start"] : best["end"]]
    assert json.loads(ok(capsys, *arguments, "--json", "--threshold", "-1e9"))["answer"] is None
    assert "finite" in refused(capsys, *arguments, "--json", "--threshold", "inf")
    (alone,) = json.loads(ok(capsys, *arguments, "--json", "-n", "1", "--threshold", "1e9"))["spans"]
    assert alone["text"] == best["text"]  # how many are listed does not change the first
    assert "no answer scores" in ok(capsys, *arguments)
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "context": CONTEXT}) + "\n")
    (line,) = ok(capsys, "answer", "-m", str(folder), "--jsonl", str(tmp_path / "q.jsonl")).splitlines()
    assert json.loads(line)["question"] == "Who?"
    assert "use `pmlm answer`" in refused(capsys, "classify", "-m", str(folder), "a")


def test_a_kept_report_of_squad_is_replaced_and_what_does_not_fit_is_refused(
    start: Path, capsys: Capture, tmp_path: Path
) -> None:
    split, report = squad_file(tmp_path / "s.json"), tmp_path / "kept.json"

    def arguments(out: str, *more: str) -> list[str]:
        place = ["--split", str(split), "-o", str(tmp_path / out), "--report", str(report)]
        return ["finetune", "squad", "-m", str(start), *place, *FAST, *more]

    ok(capsys, *arguments("one", "--train-share", "0.34"))
    first = json.loads(report.read_text())
    ok(capsys, *arguments("two", "--train-share", "0.67"))
    second = json.loads(report.read_text())
    assert first["weights"] == second["weights"] == load_start(start).fingerprint
    assert first["protocol"] != second["protocol"]
    assert not set(first["notes"]) & set(second["notes"])
    assert "other settings" in refused(capsys, *arguments("two", "--train-share", "0.34"))
    assert "are for GLUE" in refused(capsys, *arguments("three", "--set", "shuffle_labels=true"))
    assert "are for GLUE" in refused(capsys, *arguments("three", "--set", "pooling=mean"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["finetune", "glue", "-d", "nowhere"], "no data folder"),
        (["finetune", "glue", "-d", "tests", "--tasks", "SNLI"], "no GLUE task"),
        (["finetune", "glue", "-d", "tests", "--tasks", "RTE"], "nothing can be trained on: RTE: train is missing"),
        (["finetune", "glue", "-d", "tests", "--seeds", "0"], "--seeds"),
        (["finetune", "glue", "-d", "tests", "--set", "epoch=3"], "Did you mean 'epochs'"),
        (["finetune", "glue", "-d", "tests", "--settings", "nowhere.toml"], "no settings file"),
        (["finetune", "glue", "-d", "tests", "--set", "optim.warmup_steps=9"], "follows from `warmup`"),
        (["finetune", "squad"], "give one of the two"),
        (["finetune", "squad", "--dev", "x.json", "--train-share", "0.5"], "goes with a file that is split"),
        (["finetune", "squad", "--split", "pyproject.toml"], "neither JSON nor JSON lines"),
        (["classify", "text"], "no model"),
        (["classify", "-m", "tests", "text"], "no checkpoint"),
        (["classify", "-m", "tests"], "give a text"),
        (["answer", "-m", "tests", "--question", "q"], "give --question and --context"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, *arguments)
