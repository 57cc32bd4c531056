"""The command line in process: documents on stdout, one line on stderr, exit codes."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import STORIES
from fakes import tiny_config
from pmlm.cli import run
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer

Capture = pytest.CaptureFixture[str]


def ok(capsys: Capture, *arguments: str) -> str:
    code = run(arguments)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def refused(capsys: Capture, *arguments: str) -> str:
    code = run(arguments)
    captured = capsys.readouterr()
    assert code == 2, (captured.out, captured.err)
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err


@pytest.fixture(scope="session")
def gpt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    config = tiny_config(
        vocab_size=300, mask_id=tokenizer.mask_id, forbidden_ids=tokenizer.forbidden_ids, visibilities=("causal",)
    )
    folder = tmp_path_factory.mktemp("models") / "gpt"
    LM(build_model(config, generator(1)), tokenizer, {"name": "tiny-gpt"}, None).save(folder)
    return folder


def test_score_prints_one_document(capsys: Capture) -> None:
    text = "Tom is a cat and Jerry is a mouse."
    for visibility in ("bidirectional", "order-causal"):
        document = json.loads(
            ok(capsys, "score", text, "--order", "random", "--seed", "1", "--visibility", visibility, "--json")
        )
        assert set(document) >= {"tokens", "order", "logp", "nll", "perplexity", "bits_per_byte", "seed", "visibility"}
        assert sorted(document["order"]) == list(range(len(document["tokens"])))
        assert document["nll"] == pytest.approx(-sum(document["logp"]))
        assert document["perplexity"] == pytest.approx(math.exp(document["nll"] / len(document["tokens"])))
        assert document["bits_per_byte"] == pytest.approx(document["nll"] / (math.log(2) * len(text.encode())))
        assert (document["seed"], document["visibility"]) == (1, visibility)


def test_score_reads_stdin_and_prints_for_people(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Tom is a cat.\n"))
    out = ok(capsys, "score", "-")
    assert "' Tom'" in out
    assert "bits per byte" in out


def test_score_given_and_candidates(capsys: Capture, tmp_path: Path) -> None:
    template = "Tom is a ___ and Jerry is a ___."
    document = json.loads(ok(capsys, "score", "Tom is a cat and Jerry is a mouse.", "--given", template, "--json"))
    assert len(document["order"]) == sum(x is not None for x in document["logp"]) < len(document["tokens"])
    (tmp_path / "c.txt").write_text("cat\tmouse\nis\tthe\n\ndog\tcat\n")
    results = json.loads(ok(capsys, "score", "--given", template, "--candidates", str(tmp_path / "c.txt"), "--json"))[
        "results"
    ]
    assert [r["nll"] for r in results] == sorted(r["nll"] for r in results)
    assert results[-1]["fillings"] == ["is", "the"]
    assert (
        "is | the" in ok(capsys, "score", "--given", template, "--candidates", str(tmp_path / "c.txt")).splitlines()[-1]
    )


def test_evaluate_reports_exact_and_bound(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(STORIES[:3]))
    arguments = ["evaluate", str(tmp_path / "t.txt"), "--order", "l2r,random", "--context", "32"]
    document = json.loads(ok(capsys, *arguments, "--limit", "2", "--importance", "2", "--json"))
    assert set(document["exact"]) == {"l2r", "random"}
    assert document["exact"]["l2r"]["rows"] == 2
    assert document["bound"]["rows"] == document["windows"] > 2
    assert document["importance_weighted"]["orders"] == 2
    assert document["unknown_share"] == 0
    for figure in (*document["exact"].values(), document["bound"]):
        assert figure["perplexity"] == pytest.approx(math.exp(figure["nll"] / figure["tokens"]))
    out = ok(capsys, *arguments)
    assert "bound, order-averaged" in out
    assert "exact, l2r" in out


def test_windows_that_hold_no_whole_character_are_reported_without_bits_per_byte(
    capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("🦊🐻🐸🦉🐺")
    for seed in range(3):
        arguments = [
            "evaluate",
            str(tmp_path / "t.txt"),
            "--context",
            "3",
            "--limit",
            "1",
            "--order",
            "l2r",
            "--no-bound",
            "--seed",
            str(seed),
        ]
        assert "exact, l2r" in ok(capsys, *arguments)


def test_evaluate_a_left_to_right_model(capsys: Capture, tmp_path: Path, gpt_folder: Path) -> None:
    (tmp_path / "t.txt").write_text(STORIES[0])
    document = json.loads(
        ok(capsys, "evaluate", str(tmp_path / "t.txt"), "-m", str(gpt_folder), "--order", "l2r", "--json")
    )
    assert document["bound"]["nll"] == pytest.approx(document["exact"]["l2r"]["nll"], rel=1e-6)


def test_info_describes_the_model(capsys: Capture, gpt_folder: Path) -> None:
    document = json.loads(ok(capsys, "info", "--json"))
    assert set(document["visibilities"]) == {"bidirectional", "order-causal"}
    assert document["name"] in ok(capsys, "info")
    out = ok(capsys, "info", "-m", str(gpt_folder))
    assert "tiny-gpt" in out
    assert "causal" in out


def test_tokenizer_train_writes_a_vocabulary(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(STORIES))
    for kind in ("reversible", "wordpiece"):
        arguments = [
            "tokenizer",
            "train",
            str(tmp_path / "t.txt"),
            "-o",
            str(tmp_path / kind),
            "--vocab-size",
            "290",
            "--kind",
            kind,
        ]
        document = json.loads(ok(capsys, *arguments, "--json"))
        assert document["vocab_size"] <= 290
        assert (tmp_path / kind / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["score", "Tom is", "--order", "0,0"], "more than once"),
        (["score", "Tom is", "--order", "0,1,2"], "OrderError: the order names position 2"),
        (["score", "Tom is", "--order", "0"], "is missing"),
        (["score", "Tom is", "--order", "sideways"], "unknown order"),
        (["score", "Tom is", "--visibility", "causal"], "not trained for"),
        (["score", ""], "no text"),
        (["score"], "no text"),
        (["score", "x " * 300], "reads 128"),
        (["score", "Tom", "--given", "[MASK"], "not closed"),
        (["score", "Tom", "--given", "Tim"], "no blank"),
        (["score", "Tom", "--candidates", "x"], "--given"),
        (["score", "Tom", "--device", "warp"], "device 'warp'"),
        (["score", "Tom", "-m", "nowhere"], "no folder"),
        (["evaluate", "nowhere.txt"], "cannot read"),
        (["evaluate", "pyproject.toml", "--order", "2,0,1"], "named orders"),
        (["evaluate", "pyproject.toml", "--context", "1000"], "--context"),
        (["evaluate", "pyproject.toml", "--limit", "0"], "--limit"),
        (["evaluate", "pyproject.toml", "--context", "0"], "--context"),
        (["evaluate", "pyproject.toml", "--max-slots", "-5"], "--max-slots"),
        (["evaluate", "pyproject.toml", "--importance", "1"], "--importance"),
        (["score", "a \udcff b"], "not Unicode"),
        (["score", "Tom", "-m", "x" * 300], "no folder"),
        (["score", "Tom", "--device", "meta"], "device 'meta'"),
        (["tokenizer", "train", "pyproject.toml", "-o", "x", "--vocab-size", str(10**30)], "pieces"),
        (["tokenizer", "train", "pyproject.toml", "-o", "x", "--kind", "wordpiece", "--vocab-size", "-1"], "pieces"),
        (["evaluate", "pyproject.toml", "--split", "x"], "--split"),
        (["info", "-m", "tests"], "no checkpoint"),
        (["tokenizer", "train", "pyproject.toml", "-o", "x", "--vocab-size", "9"], "at least"),
        (["tokenizer", "train", "pyproject.toml", "-o", "x", "--kind", "y"], "--kind"),
        (["bogus"], "No such command"),
        (["score", "--bogus"], "No such option"),
        (["score", "Tom", "--seed", "x"], "seed"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, *arguments)


def test_a_left_to_right_model_refuses_other_orders_and_visibilities(
    capsys: Capture, gpt_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text(STORIES[0])
    model = ["-m", str(gpt_folder)]
    assert "left to right" in refused(capsys, "score", "Tom is", *model, "--order", "random")
    assert "not trained for" in refused(capsys, "score", "Tom is", *model, "--visibility", "bidirectional")
    assert "left to right" in refused(capsys, "evaluate", str(tmp_path / "t.txt"), *model, "--order", "l2r,random")
    assert "one alone" in refused(
        capsys, "evaluate", str(tmp_path / "t.txt"), *model, "--order", "l2r", "--importance", "3"
    )


def test_a_damaged_model_is_one_line(capsys: Capture, gpt_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in gpt_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    assert "damaged" in refused(capsys, "score", "Tom", "-m", str(folder))


def test_output_that_cannot_be_written_is_one_line_and_exit_1(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pmlm"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "info"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "cannot write the output: No space left on device\n")
    (tmp_path / "tokenizer.json").mkdir()
    done = subprocess.run(
        [*command, "tokenizer", "train", "pyproject.toml", "-o", str(tmp_path), "--vocab-size", "300"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_stdin_is_text_without_its_marks(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(ok(capsys, "score", "Tom is a cat.", "--json"))
    for raw in ("Tom is a cat.\r\n", "\ufeffTom is a cat.\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(raw))
        assert json.loads(ok(capsys, "score", "-", "--json")) == plain
    done = subprocess.run([sys.executable, "-m", "pmlm", "score", "-"], input=b"\xff", capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_help_and_version(capsys: Capture) -> None:
    assert "score" in ok(capsys, "--help")
    assert ok(capsys, "--version").startswith("pmlm ")


def test_as_a_program_it_exits_with_the_code_and_says_so_on_stderr() -> None:
    command = [sys.executable, "-m", "pmlm"]
    done = subprocess.run([*command, "score", "Tom", "-m", "nowhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "CheckpointError: no folder nowhere\n"
