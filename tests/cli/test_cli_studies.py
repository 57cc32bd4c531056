"""Studies from the command line: documents, pages, one line where something is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import pmlm
from pmlm.cli import run
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.runtime import generator

Capture = pytest.CaptureFixture[str]
NAMES = ("Tom", "Mia", "Ben", "Anna", "Leo")


@pytest.fixture
def text(tmp_path: Path) -> str:
    stories = [f"{a} walked to the park. {b} lost a big ball near the river. {a} was very happy, and {b} slept by the sea."
               for a in NAMES for b in NAMES]  # fmt: skip
    (tmp_path / "t.txt").write_text("\n\n".join(stories))
    return str(tmp_path / "t.txt")


def test_a_study_of_other_documents_takes_no_notes_of_these(
    text: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = [
        "bench",
        "lengths",
        "--text",
        text,
        "--out",
        str(tmp_path / "l.json"),
        "--items",
        "2",
        "--longest-span",
        "3",
    ]
    with monkeypatch.context() as patch:
        patch.setattr("pmlm.bench.study.write_document", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(study) != 0
    capsys.readouterr()
    assert run([*study, "--split", "lines"]) == 2
    assert "begun with other settings" in capsys.readouterr().err
    assert run([*study, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] is None


def test_each_study_writes_its_document_its_pages_and_a_card(text: str, tmp_path: Path, capsys: Capture) -> None:
    small = {
        "lengths": ["--items", "2", "--longest-span", "3"],
        "coverage": ["--sets", "2", "--common", "8", "--length", "40", "--no-judge"],
        "orders": ["--rows", "1", "--texts", "2", "--order", "l2r,confidence", "--hidden", "50", "--no-judge"],
        "stories": ["--documents", "2", "--exact", "1", "--confidence", "1", "--lengths", "32", "--passages", "1",
                    "--free", "2", "--reading", "2", "--samples", "1", "--no-judge"],
    }  # fmt: skip
    for name, options in small.items():
        out = tmp_path / "results" / f"{name}.json"
        assert run(["bench", name, "--text", text, "--out", str(out), "--json", *options]) == 0, capsys.readouterr().err
        document = json.loads(capsys.readouterr().out)
        assert document == json.loads(out.read_text())
        assert document["study"] == name
        assert set(document["provenance"]) == {"command", "commit", "model", "machine"}
    files = sorted(map(str, (tmp_path / "results").glob("*.json")))
    studies = [path for path in files if not path.endswith("reading-key.json")]
    assert run(["bench", "report", *studies]) == 0
    assert capsys.readouterr().out.split() == [str(Path(p).with_suffix(s)) for p in studies for s in (".md", ".png")]
    assert "| l2r |" in (tmp_path / "results" / "orders.md").read_text()
    sheet = tmp_path / "results" / "reading.md"
    assert sheet.read_text().count("\n## ") == 4
    sheet.write_text(sheet.read_text().replace("whole: __ sense: __ who: __", "whole: 4 sense: 3 who: yes"))
    rated = sheet.read_text()
    again = ["bench", "stories", "--text", text, "--out", str(tmp_path / "results" / "stories.json")]
    assert run([*again, *small["stories"]]) == 0
    assert sheet.read_text() == rated, "a sheet that a reader may be at is not written over"
    capsys.readouterr()
    assert run(["bench", "reading", str(sheet)]) == 0
    said = capsys.readouterr()
    assert "| all | model | 2 | 4.00 ± 0.00 | 3.00 ± 0.00 | 100% |" in said.out
    weights = json.loads((tmp_path / "results" / "reading-key.json").read_text())["provenance"]["model"][
        "weights_sha256"
    ]
    assert weights[:8] in said.err

    model = pmlm.load()
    network = build_model(replace(model.model.config, visibilities=("causal",)), generator(1))
    LM(network.eval(), model.tokenizer, {"name": "gpt"}, None).save(tmp_path / "gpt")
    assert run([*again, *small["stories"], "--gpt", str(tmp_path / "gpt")]) == 0
    assert "the GPT alone is measured" in capsys.readouterr().err
    grown = json.loads((tmp_path / "results" / "stories.json").read_text())
    assert set(grown["added"]) == set(grown["provenance"])
    assert grown["gpt"]["name"] == "gpt"

    model.save(tmp_path / "m", storage="float16")
    (tmp_path / "notes.md").write_text("## Data\n\nOurs.\n")
    figures = str(tmp_path / "results" / "stories.json")
    card = ["bench", "card", figures, "-m", str(tmp_path / "m"), "--notes", str(tmp_path / "notes.md")]
    assert run(card) == 0
    assert "| all | model | 2 | 4.00 ± 0.00 |" in (tmp_path / "m" / "README.md").read_text()
    other = ["bench", "stories", "--text", text, "--out", str(tmp_path / "results" / "other.json"), "-m"]
    changed = pmlm.load()
    changed.model.get_parameter("backbone.tokens.weight").data.mul_(1.01)
    changed.save(tmp_path / "changed")
    assert run([*other, str(tmp_path / "changed"), *small["stories"]]) == 0
    assert sheet.with_name(f"reading-{weights[:8]}.md").read_text() == rated, "another model's sheet is put aside"
    assert run(["bench", "reading", str(sheet), "--key", str(tmp_path / "results" / "reading-key.json")]) != 0
    assert "has no rating" in capsys.readouterr().err
    assert run(card) == 0
    assert "## Data\n\nOurs." in (tmp_path / "m" / "README.md").read_text()
    assert "blind reader" not in (tmp_path / "m" / "README.md").read_text(), "that sheet is another model's"
    pmlm.load(tmp_path / "m")


def test_what_is_wrong_is_one_line(text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "x.json").write_text("[1]")
    cases = {
        "cannot read": ["lengths", "--text", str(tmp_path / "none.txt")],
        "items must be at least 1": ["lengths", "--text", text, "--items", "0"],
        "whole numbers separated by commas": ["orders", "--text", text, "--hidden", "a"],
        "--context must be": ["orders", "--text", text, "--context", "9999"],
        "no file": ["coverage", "--text", text, "--judge", str(tmp_path / "none.gguf")],
        "is no study": ["report", str(tmp_path / "x.json")],
        "is no GPT": ["stories", "--text", text, "--gpt", "src/pmlm/models/default"],
    }
    from pmlm.lm import default_model_folder

    cases["is no GPT"][-1] = str(default_model_folder())
    for message, arguments in cases.items():
        assert run(["bench", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1, captured.err
