"""README and examples: their commands and snippets run."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from conftest import STORIES
from pmlm.cli import run
from pmlm.lm import packaged_model_folder

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for line in README.splitlines() if line.startswith("pmlm ")]
APPLICATIONS = (ROOT / "docs" / "applications.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README + APPLICATIONS, flags=re.DOTALL)


SHRINK = [
    f"--set={x}"
    for x in ("num_steps=2", "batch_rows=2", "model.num_layers=1", "evaluation.rows=4", "evaluation.lengths=[32]")
]


def test_readme_commands_run_one_after_the_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "stories.txt").write_text("\n\n".join(f"{STORIES[i % 5]} Story {i}." for i in range(400)))
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) > 8
    for command in COMMANDS:
        arguments = shlex.split(command, comments=True)[1:]
        more = SHRINK if arguments[0] == "train" else []
        if "--particles" in arguments:  # the little model is no GPT
            more = ["-m", str(packaged_model_folder())]
        assert run([*arguments, *more]) == 0, command
        assert capsys.readouterr().out


@pytest.mark.parametrize("command", [line for line in APPLICATIONS.splitlines() if line.startswith("pmlm ")])
def test_commands_of_the_applications_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_the_readmes_speed_table_is_what_was_measured() -> None:
    report = json.loads((ROOT / "results" / "training" / "bench-6x256.json").read_text())
    measured = {row["name"]: f"{row['ratio']:.2f}" for row in report["contenders"]}
    rows = re.findall(r"^\| (pmlm [^|]+?) \| ([0-9.]+) \|$", README, flags=re.MULTILINE)
    assert len(rows) == 3
    assert all(measured[name] == ratio for name, ratio in rows)


def test_the_servers_figures_are_what_was_measured_and_name_the_model() -> None:
    report = json.loads((ROOT / "results" / "serve" / "bench.json").read_text())
    ratio = {row["clients"]: f"{row['ratio']:.2f}" for row in report["clients"]}
    page = " ".join((ROOT / "docs" / "serving.md").read_text().split())
    assert f"of {report['model']['parameters']:,} parameters: {ratio[16]} times the requests at 16 clients, " in page
    assert f"{ratio[1]} times at one" in page


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_readme_snippets_run(snippet: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out


SHOWS = {
    "acrostic.py": r"T.*\nO.*\nM.*\n",
    "around_facts.py": r"(?s).*Anna lost a kite near the river\..*Ben found the kite\..*",
    "between_sentences.py": r"(?s)Tom is a cat and Jerry is a mouse\..*Tom and Jerry become good friends in the end\..*",
    "cloze.py": r"(?s).*\n +[0-9.]+%  +[0-9.]+ nats  .*",
    "editing.py": r"(?s)(.+\n  [0-9.]+ -> [0-9.]+ nats: .+\n)+",
    "form.py": r"(?s)(Name: .+\n){3}.*",
    "lexical_constraints.py": r"(?s)Once upon a time (?=.*\bkite\b)(?=.*\briver\b)(?!.*\b(cat|dog)\b).*",
}
"""What an application's output must look like."""


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert re.fullmatch(SHOWS.get(path.name, r"(?s).+"), out := capsys.readouterr().out), out


def test_linked_files_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
