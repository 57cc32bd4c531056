"""`pmlm adapt`: a BERT's weights go in, an any-order model comes out, and what does not fit is one line."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from conftest import STORIES
from pmlm.cli import run
from pmlm.interop import read_model
from pmlm.lm import LM, load
from pmlm.tokenizer import train_tokenizer

SMALL = [f"--set={x}" for x in ("batch_rows=4", "rows.length=32", "evaluation.rows=4", "evaluation.lengths=[16]", "optim.warmup_steps=0")]  # fmt: skip
PIECES = train_tokenizer([text.lower() for text in STORIES], vocab_size=150, kind="wordpiece").names()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT, and a corpus in its vocabulary."""
    folder = tmp_path_factory.mktemp("adapt")
    torch.manual_seed(1)
    size = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 40}  # fmt: skip
    model = BertForMaskedLM(BertConfig(vocab_size=len(PIECES), **size))
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.save_pretrained(folder / "bert")
    (folder / "bert" / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "s.txt").write_text("\n\n".join(f"{STORIES[i % 5]} Story {i}." for i in range(120)))
    arguments = ["prepare", str(folder / "s.txt"), "--out", str(folder / "corpus"), "--heldout", "0.1"]
    assert run([*arguments, "--tokenizer", str(folder / "bert")]) == 0
    return folder


def adapt(place: Path, out: Path, *more: str) -> int:
    return run(["adapt", str(place / "bert"), "--data", str(place / "corpus"), "--out", str(out), "--quiet", *SMALL, *more])  # fmt: skip


def weights(lm: LM) -> dict[str, torch.Tensor]:
    return dict(lm.model.state_dict())


def test_it_starts_from_the_weights_it_is_given(place: Path, tmp_path: Path) -> None:
    """With next to no learning rate, what comes out is what went in, but for what was said of special tokens."""
    frozen = ["--set=num_steps=1", "--set=optim.lr=1e-12", "--set=optim.weight_decay=0.0"]
    assert adapt(place, tmp_path, *frozen) == 0
    before, after = read_model(place / "bert").lm, load(tmp_path / "model")
    special = list(before.model.config.forbidden_ids)
    given = weights(before)["head.bias"]
    given[special] = 0.0
    for name, tensor in (weights(before) | {"head.bias": given}).items():
        assert torch.allclose(tensor, weights(after)[name], atol=1e-9), name
    assert adapt(place, tmp_path / "control", *frozen, "--from-scratch") == 0
    control = weights(load(tmp_path / "control" / "model"))["backbone.tokens.weight"]
    assert not torch.allclose(control, weights(after)["backbone.tokens.weight"], atol=1e-2)


def test_the_adapted_model_learns_and_opens_as_a_bert_again(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--set=num_steps=40", "--set=evaluation.every=1", "--set=optim.lr=0.003", "--set=saving.every=40"]
    assert adapt(place, tmp_path / "run", *more, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    curve = [r["headline"] for r in records if r["kind"] == "evaluation"]
    assert document["finished"]
    assert curve[-1] < 0.9 * curve[0]
    assert run(["convert", str(tmp_path / "run" / "model"), "--out", str(tmp_path / "b"), "--to", "bert"]) == 0
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "b")) is BertForMaskedLM
    assert run(["generate", "tom is a [MASK:3] mouse.", "-m", str(tmp_path / "run" / "model"), "--seed", "1"]) == 0


def test_both_visibilities_from_one_set_of_weights_and_going_on_is_bit_for_bit(place: Path, tmp_path: Path) -> None:
    for name, steps in (("whole", [4]), ("parts", [2, 4])):
        for num in steps:
            more = ["--both", f"--set=num_steps={num}", "--set=saving.every=2", "--set=optim.decay=constant"]
            assert adapt(place, tmp_path / name, *more) == 0
    whole = load(tmp_path / "whole" / "model")
    assert whole.model.config.visibilities == ("bidirectional", "order-causal")
    for visibility in whole.model.config.visibilities:
        assert whole.score("tom is a cat", order="random", visibility=visibility).nll > 0
    latest = [
        load_file(tmp_path / n / "checkpoints" / "step-00000004" / "state.safetensors") for n in ("whole", "parts")
    ]
    assert all(torch.equal(latest[0][name], latest[1][name]) for name in latest[0])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set=rows.length=64"], "rows.length 64 is more than model.max_length 40"),
        (["--preset=huge"], "no preset 'huge'"),
    ],
)
def test_what_does_not_fit_is_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert adapt(place, tmp_path, *more) == 2
    assert says in capsys.readouterr().err


def test_a_corpus_in_another_vocabulary_is_refused(
    place: Path, tmp_path: Path, corpus: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["adapt", str(place / "bert"), "--data", str(corpus.folder), "--out", str(tmp_path), *SMALL]) == 2
    assert "another vocabulary: use `pmlm prepare --tokenizer" in capsys.readouterr().err


def test_a_corpus_with_nothing_held_out_is_refused_before_the_first_step(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["prepare", str(place / "s.txt"), "--out", str(tmp_path / "c"), "--heldout", "0"]
    assert run([*arguments, "--tokenizer", str(place / "bert")]) == 0
    assert run(["adapt", str(place / "bert"), "--data", str(tmp_path / "c"), "--out", str(tmp_path / "r"), *SMALL]) == 2
    assert "has no held-out documents: prepare it with a larger --heldout" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_the_experiment_measures_before_and_after_and_repeats_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).resolve().parents[2] / "scripts" / "adapt_bert.py"
    main = runpy.run_path(str(path))["main"]
    small = [part for x in SMALL for part in ("--set", x.removeprefix("--set="))]
    arguments = ["--bert", str(place / "bert"), "--text", str(place / "s.txt"), "--heldout", "0.1", "--tokens", "600"]
    arguments += [
        "--context",
        "16",
        "--exact",
        "1",
        "--work",
        str(tmp_path / "w"),
        "--out",
        str(tmp_path / "r"),
        *small,
    ]
    main(arguments)
    records = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "r").glob("*.json")}
    assert sorted(records) == ["adapted-0.0006M", "before", "scratch-0.0006M"]
    tokens = {name: record["report"]["bound"]["tokens"] for name, record in records.items()}
    assert len(set(tokens.values())) == 1
    assert records["adapted-0.0006M"]["tokens"] == records["scratch-0.0006M"]["tokens"] > 500
    table = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split(" | ")[0] for line in table] == ["| as it came", "| adapted", "| from fresh weights"]
    when = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r").iterdir()}
    main(arguments)
    assert when == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r").iterdir()}
    assert capsys.readouterr().out.splitlines()[-3:] == table
