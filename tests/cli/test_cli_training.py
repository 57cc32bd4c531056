"""prepare, train, plot and --plan from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_cli import Capture, ok, refused

from conftest import STORIES
from pmlm.cli import run
from pmlm.cli.live import MOST_PEAKS, Speed, plain_display
from pmlm.corpus.prepare import PrepareSettings
from pmlm.corpus.shards import Corpus
from pmlm.training.distributed import Ranks
from pmlm.training.loop import Pace
from pmlm.training.run import Evaluation
from pmlm.training.trainer import StepReport


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "s.txt"
    path.write_text("\n\n".join(f"{STORIES[i % 5]} Number {i}." for i in range(80)))
    return path


def test_from_text_to_a_model_that_writes(capsys: Capture, text: Path, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "c", tmp_path / "run"
    report = json.loads(
        ok(
            capsys,
            "prepare",
            str(text),
            "-o",
            str(corpus),
            "--vocab-size",
            "300",
            "--heldout",
            "0.1",
            "--processes",
            "1",
            "--json",
        )
    )
    assert report["documents_read"] == 80
    assert report["train_documents"] + report["heldout_documents"] == 80
    assert "tokens to train on" in ok(
        capsys, "prepare", str(text), "-o", str(corpus), "--heldout", "0.1"
    )  # finished: left alone
    arguments = ["train", "tiny-u-pmlm-r", "-d", str(corpus), "-o", str(folder)]
    result = json.loads(ok(capsys, *arguments, "--json", "--quiet", "--tensorboard"))
    assert list((folder / "tensorboard").glob("events.*"))
    assert result["finished"] is True
    assert result["step"] == 20
    assert "bidirectional" in result["bits_per_byte"]
    assert "step 20 of 20" in ok(capsys, *arguments)  # nothing left to do
    assert "parameters" in ok(capsys, "info", "-m", str(folder / "model"))
    assert "--fresh" in refused(capsys, *arguments, "--fresh")
    assert "other settings" in refused(capsys, *arguments, "--set", "optim.lr=0.5")
    for name in ("curves.png", "curves.svg"):
        assert ok(capsys, "plot", str(folder), str(folder), "-o", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000
    assert "png or .svg" in refused(capsys, "plot", str(folder), "-o", str(tmp_path / "x.gif"))
    assert "no run" in refused(capsys, "plot", str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert "not the log of a training run" in refused(capsys, "plot", str(tmp_path))
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff\xfe\n")
    assert "holds no steps" in refused(capsys, "plot", str(tmp_path))


def test_plans_are_printed_without_data(capsys: Capture) -> None:
    plan = json.loads(ok(capsys, "train", "paper-u-pmlm-r", "--plan", "--ranks", "8", "--tflops", "100", "--json"))
    assert plan["parameters"] > 108_000_000
    assert plan["ranks"] == 8
    assert "135 hours" in ok(capsys, "train", "paper-u-pmlm-a", "--plan")
    assert "of this machine's best product" in ok(capsys, "train", "stories", "--plan")
    fewer = json.loads(ok(capsys, "train", "stories", "--plan", "--tokens", "1000000", "--tflops", "0.1", "--json"))
    assert fewer["tokens"] == pytest.approx(1e6, rel=0.05)
    assert fewer["days"] == pytest.approx(fewer["tokens"] * fewer["flops_per_token"] / 0.1e12 / 86400)


def test_a_plan_takes_the_vocabulary_of_its_corpus(capsys: Capture, corpus: Corpus) -> None:
    said = ok(capsys, "train", "stories", "--plan", "--data", str(corpus.folder))
    assert f"vocabulary {corpus.tokenizer.vocab_size:,}\n" in said


def test_a_target_that_cannot_be_written_is_one_line(capsys: Capture, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for target in ("file", "file/run"):
        assert run(["train", "tiny-bert", "-d", str(corpus.folder), "-o", str(tmp_path / target), "-q"]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert str(tmp_path / "file") in said
    (tmp_path / "t.txt").write_text("\n\n".join(STORIES))
    assert run(["prepare", str(tmp_path / "t.txt"), "-o", str(tmp_path / "file" / "c"), "-q"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_damaged_manifest_is_one_line(capsys: Capture, text: Path, tmp_path: Path) -> None:
    arguments = ["prepare", str(text), "-o", str(tmp_path / "c"), "--vocab-size", "300", "--processes", "1"]
    ok(capsys, *arguments)
    (tmp_path / "c" / "manifest.json").write_text("{")
    assert "is damaged" in refused(capsys, *arguments)


def test_what_was_left_unfinished_from_other_files_lends_no_vocabulary(
    capsys: Capture, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"Der Hund {i} lief durch den dunklen Wald und schlief dann ein." for i in range(60)))
    more = ["-o", str(tmp_path / "c"), "--vocab-size", "300", "--heldout", "0.1", "--processes", "1"]
    with monkeypatch.context() as patch:
        patch.setattr("pmlm.corpus.prepare._PartWriter.finish", lambda _self: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setitem(PrepareSettings.__init__.__kwdefaults__, "part_tokens", 200)
        assert run(["prepare", str(other), *more]) != 0
    assert (tmp_path / "c" / "manifest.partial.json").is_file()
    left = (tmp_path / "c" / "tokenizer.json").read_bytes()
    capsys.readouterr()
    ok(capsys, "prepare", str(text), *more)
    again = ["-o", str(tmp_path / "fresh"), *more[2:]]
    ok(capsys, "prepare", str(text), *again)
    found = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("c", "fresh")]
    assert found[0] == found[1] != left


def test_the_size_of_a_vocabulary_is_part_of_the_corpus(capsys: Capture, text: Path, tmp_path: Path) -> None:
    arguments = ["prepare", str(text), "-o", str(tmp_path / "c"), "--processes", "1"]
    ok(capsys, *arguments, "--vocab-size", "300")
    before = (tmp_path / "c" / "manifest.json").read_bytes()
    ok(capsys, *arguments)  # as it was asked for before
    assert "other files or settings" in refused(capsys, *arguments, "--vocab-size", "310")
    assert (tmp_path / "c" / "manifest.json").read_bytes() == before
    (tmp_path / "c" / "manifest.json").unlink()
    (tmp_path / "c" / "tokenizer.json").write_text("{")  # as a kill would have left it once
    ok(capsys, *arguments, "--vocab-size", "300")
    assert (tmp_path / "c" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prepare", "pyproject.toml", "-o", "x", "-t", "tests", "--vocab-size", "9"], "leave it out, or --tokenizer"),
        (["train", "tiny-bert", "-d", "x", "--tokens", "-5"], "at least one token"),
        (["train", "tiny-bert", "-d", "x", "--set", "optim.max_norm=-1.0"], "must not be negative"),
        (["train", "tiny-bert", "-d", "x", "--set", "model.init_std=-1.0"], "init_std"),
        (["train", "huge", "-d", "x"], "no preset"),
        (["train", "tiny-bert"], "no corpus"),
        (["train", "tiny-bert", "-d", "x", "--ranks", "2"], "go with --plan"),
        (["train", "tiny-bert", "--plan", "--ranks", "0"], "--ranks"),
        (["train", "tiny-bert", "--plan", "--tflops", "0"], "--tflops must be positive"),
        (["train", "tiny-bert", "-d", "x", "--threads", "0"], "--threads"),
        (["bench", "train", "--rounds", "0"], "--rounds"),
        (["bench", "train", "--width", "0"], "width must be at least 1, got 0"),
        (["bench", "train", "--rows", "0"], "rows"),
        (["bench", "train", "--vocab-size", "3"], "vocab_size must be at least 6, got 3"),
        (["bench", "train", "--dropout", "7"], "dropout"),
        (["bench", "train", "--heads", "3"], "num_heads"),
        (["train", "tiny-bert", "-d", "tests"], "no prepared corpus"),
        (["train", "tiny-bert", "--set", "x"], "not of the form"),
        (["train", "tiny-bert", "--set", "model.widht=3"], "Did you mean 'width'"),
        (["train", "nowhere.toml"], "no settings file"),
        (["prepare", "nowhere.txt", "-o", "x"], "cannot read"),
        (["prepare", "pyproject.toml", "-o", "x", "--heldout", "2"], "heldout"),
        (["prepare", "pyproject.toml", "-o", "x", "--processes", "0"], "--processes"),
        (["prepare", "pyproject.toml", "-o", "x", "--vocab-size", "0"], "vocab_size must be at least 1, got 0"),
        (["prepare", "pyproject.toml", "-o", "x", "--min-chars", "-5"], "min_chars must not be negative"),
        (["prepare", "pyproject.toml", "-o", "x", "-t", "tests"], "no tokenizer"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, *arguments)


@pytest.mark.slow
def test_an_interrupt_saves_and_exits_130_and_the_run_goes_on(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "pmlm",
        "train",
        "tiny-gpt",
        "-d",
        str(corpus.folder),
        "-o",
        str(folder),
        "--set",
        "num_steps=100000",
        "--set",
        "saving.every=100000",
        "--set",
        "evaluation.every=0",
        "--set",
        "model.max_length=32",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (folder / "metrics.jsonl").is_file():
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 130
    (saved,) = (folder / "checkpoints").glob("step-*")
    steps = int(saved.name.removeprefix("step-"))
    assert f"stopped at step {steps} of 100000 and saved; the same command goes on from there" in said[-2]
    assert said[-1] == "interrupted"
    assert steps == len((folder / "metrics.jsonl").read_text().splitlines())
    assert (
        run(
            [
                "train",
                "tiny-gpt",
                "-d",
                str(corpus.folder),
                "-o",
                str(folder),
                "--set",
                f"num_steps={steps + 2}",
                "--set",
                "saving.every=100000",
                "--set",
                "evaluation.every=0",
                "--set",
                "model.max_length=32",
                "--quiet",
            ]
        )
        == 0
    )


def test_a_log_names_the_run_in_every_line(capsys: Capture) -> None:
    class Fake:
        name, device, ranks = "gpt-a-seed-1", torch.device("cpu"), Ranks()
        pace = Pace(num_steps=9, evaluate_every=1, save_every=1, keep=1)

        def flops_per_token(self) -> float:
            return 1.0

    with plain_display(Fake(), 0) as show:  # type: ignore[arg-type]
        show(StepReport(1, 2.0, (2.0,), 1.0, 0.1, 8, 0.1))
        show(Evaluation(1, {"causal": {16: 3.0}}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["gpt-a-seed-1"] * 2


def test_a_peak_measured_while_something_else_ran_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = [10.0, 4.0, 40.0, *[20.0] * 9]
    monkeypatch.setattr("pmlm.cli.live.matmul_peak", lambda _device: peaks.pop(0))

    class Fake:
        device, ranks = torch.device("cpu"), Ranks()

        def flops_per_token(self) -> float:
            return 1.0

    speed = Speed(Fake())  # type: ignore[arg-type]
    said = [speed.update(StepReport(n, 2.0, (2.0,), 1.0, 0.1, 30 * n, 1.0)) for n in range(1, 5)]  # 30 tokens a second
    assert said[0] == ""  # one step says nothing of speed
    assert [line.split()[2] for line in said[1:]] == ["300%", "75%", "75%"]
    speed.per_token = 100.0  # more than any peak: not asked for ever
    for n in range(5, 20):
        speed.update(StepReport(n, 2.0, (2.0,), 1.0, 0.1, 30 * n, 1.0))
    assert speed.measured == MOST_PEAKS
