"""`pmlm bench generate` at toy size: every contender runs, and tables and plot come from the JSON alone."""

import json
from pathlib import Path

import pytest

from pmlm.bench.speed_report import BEGIN, END
from pmlm.cli import run

ROOT = Path(__file__).resolve().parents[2]


def test_all_contenders_run_and_the_report_can_be_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "speed"
    assert run(["bench", "generate", "--quick", "--rounds", "1", "--threads", "1", "--quiet", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    report = json.loads((out / "bench.json").read_text())
    names = [row["name"] for row in report["latency"] if row["batch"] == 1]
    assert len(names) == len(set(names)) == 9
    assert all(row["ratio"] > 0 for row in report["latency"])
    assert [row["ratio"] for row in report["latency"] if row["name"] == "Hugging Face GPT-2"] == [1.0, 1.0]
    assert (out / "table.md").read_text().strip() == shown.strip()
    assert "**approximate**" in shown
    (out / "table.md").unlink()
    (out / "quality.png").unlink()
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert run(["bench", "generate", "--redraw", str(out), "--readme", str(readme)]) == 0
    assert (out / "table.md").read_text().strip() == shown.strip()
    assert (out / "quality.png").stat().st_size > 1000
    assert readme.read_text().startswith("before")
    assert readme.read_text().endswith("after\n")
    assert "| order-causal cache |" in readme.read_text()
    assert "old" not in readme.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["--redraw", "nowhere"], ["--quick", "--full"], ["--readme", "x"], ["--sizes", "huge"], ["--rounds", "0"]],
)
def test_what_makes_no_sense_is_one_line_and_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "generate", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_readmes_table_is_what_was_measured() -> None:
    from pmlm.bench.speed_report import read_report, readme_lines

    folder, text = ROOT / "results" / "speed", (ROOT / "README.md").read_text()
    lines = readme_lines(read_report(folder)) if (folder / "bench.json").exists() else ""
    assert text.split(BEGIN)[1].split(END)[0] == f"\n{lines}"
