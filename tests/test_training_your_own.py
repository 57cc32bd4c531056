"""docs/training-your-own.md, command by command, at tiny size."""

import glob
import re
import shlex
from pathlib import Path

import pytest

from conftest import STORIES
from pmlm.cli import run

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "training-your-own.md").read_text()
BLOCKS = re.findall(r"```(python)?\n(.*?)```", PAGE, flags=re.DOTALL)
SMALLER = {
    "train": [
        f"--set={x}"
        for x in ("num_steps=2", "batch_rows=2", "model.num_layers=1", "model.width=32", "model.num_heads=2",
                  "model.ff_width=64", "model.max_length=64", "rows.length=64", "evaluation.rows=4",
                  "evaluation.lengths=[32]")
    ],
    "prepare": ["--vocab-size", "300", "--heldout", "0.1", "--processes", "1"],
    "evaluate": ["--limit", "2"],
    "bench stories": ["--documents", "2", "--exact", "1", "--confidence", "1", "--lengths", "32", "--passages", "1",
                      "--free", "2", "--reading", "2", "--samples", "1"],
}  # fmt: skip
"""Given last, so that it comes before what the page says."""


def test_from_a_folder_of_text_to_a_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for i in range(60):
        Path("texts", f"{i}.txt").write_text(f"{STORIES[i % 5]} {STORIES[(i * 3 + 1) % 5]} This was story {i}.")
    Path("heldout.txt").write_text("\n\n".join(f"{a} It was late. {b}" for a in STORIES for b in STORIES if a != b))
    Path("notes.md").write_text("## Data\n\nStories of our own.\n")
    done = []
    for language, block in BLOCKS:
        if language:
            exec(compile(block, "training-your-own.md", "exec"), {})
            continue
        for line in block.strip().splitlines():
            done.append(_run(line))
            assert capsys.readouterr().out, line
    assert {"prepare", "train", "plot", "evaluate", "bench stories", "generate", "bench card", "info"} <= set(done)
    assert "Stories of our own." in Path("mine/README.md").read_text()
    assert Path("results/mine/figures.png").is_file()
    assert Path("results/mine/reading-key.json").is_file()


def _run(line: str) -> str:
    """The command with its file patterns spelt out, as a shell does, and made small."""
    _, *words = shlex.split(line)
    arguments = [part for word in words for part in (sorted(glob.glob(word)) if "*" in word else [word])]
    name = " ".join(words[:2]) if words[0] == "bench" else words[0]
    assert run([*arguments, *SMALLER.get(name, [])]) == 0, line
    return name
