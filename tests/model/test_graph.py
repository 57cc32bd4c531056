"""Exported graphs: torch's answers in fp32, nearly so in int8, and one line for what cannot be exported or read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import framed_batch, random_rows, tiny_model
from pmlm.batch import Batch
from pmlm.cli import run
from pmlm.errors import CheckpointError, ConfigError
from pmlm.likelihood import hidden_logp
from pmlm.lm import LM, load
from pmlm.model import Inputs, Slots
from pmlm.model.graph import GRAPH, write_graph

try:
    import onnx
    import onnxruntime
    import onnxscript
except ImportError as error:
    MISSING: str | None = error.name
else:
    MISSING = None
    del onnx, onnxruntime, onnxscript
needs_onnx = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed: pip install 'pmlm[fast]'")


@pytest.fixture(scope="module")
def exported(model: LM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LM]:
    folder = tmp_path_factory.mktemp("graphs")
    for precision in ("fp32", "int8"):
        model.export(folder / precision, precision=precision)
    return {precision: load(folder / precision, engine="onnx") for precision in ("fp32", "int8")}


def logits(lm: LM, inputs: Inputs, at: Slots) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(inputs, at)


@needs_onnx
@pytest.mark.parametrize(("rows", "length", "asked"), [(1, 2, 1), (1, 40, 7), (5, 33, 60), (2, 128, 256)])
def test_logits_of_a_graph_in_fp32_are_torchs(
    model: LM, exported: dict[str, LM], rows: int, length: int, asked: int
) -> None:
    rng = torch.Generator().manual_seed(length)
    ids = torch.randint(model.tokenizer.vocab_size, (rows, length), generator=rng)
    visible = (torch.rand(rows, length, length, generator=rng) < 0.5) | torch.eye(length, dtype=torch.bool)
    at = Slots(torch.randint(rows, (asked,), generator=rng), torch.randint(length, (asked,), generator=rng))
    for inputs in (Inputs(ids, torch.arange(length)[None]), Inputs(ids, torch.arange(length)[None], visible)):
        one, two = logits(model, inputs, at), logits(exported["fp32"], inputs, at)
        assert one.shape == two.shape
        possible = one.isfinite()
        assert torch.equal(possible, two.isfinite())
        assert (one[possible] - two[possible]).abs().max() < 1e-4


@needs_onnx
@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
def test_texts_written_and_scored_with_a_graph_are_torchs(model: LM, exported: dict[str, LM], visibility: str) -> None:
    assert [lm.engine for lm in (model, exported["fp32"], exported["int8"])] == ["torch", "onnx fp32", "onnx int8"]
    template = "Tom is a [MASK:6] and Jerry is a [MASK:2]."
    one, two = (lm.fill(template, seed=3, visibility=visibility) for lm in (model, exported["fp32"]))
    assert one.text == two.text
    assert one.logp == pytest.approx(two.logp, abs=1e-4)
    scores = [lm.score(one.text, order="random", visibility=visibility).nll for lm in (model, exported["fp32"])]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@needs_onnx
def test_int8_is_smaller_and_nearly_right(model: LM, exported: dict[str, LM]) -> None:
    size = {name: (lm.folder / GRAPH).stat().st_size for name, lm in exported.items() if lm.folder is not None}
    assert size["int8"] < 0.6 * size["fp32"]
    text = "Tom is a cat and Jerry is a mouse. They played with the ball until it was dark."
    one, two = (lm.score(text, order="random", visibility="bidirectional") for lm in (model, exported["int8"]))
    assert one.nll != two.nll
    assert one.nll == pytest.approx(two.nll, rel=0.05)


@needs_onnx
def test_absolute_positions_are_exported_and_others_refused(tmp_path: Path, model: LM) -> None:
    absolute, relative = (
        LM(tiny_model(positions=p, vocab_size=model.tokenizer.vocab_size, mask_id=model.tokenizer.mask_id, forbidden_ids=model.tokenizer.forbidden_ids).eval(), model.tokenizer, {}, None)
        for p in ("absolute", "relative")
    )  # fmt: skip
    absolute.export(tmp_path / "a", precision="fp32")
    graph = load(tmp_path / "a", engine="onnx")
    batch = framed_batch(*random_rows(2, 7))
    batch = Batch(batch.ids_BL, batch.maskable_BL, batch.group_BL)
    at, zero = Slots.where(batch.maskable_BL), torch.zeros_like(batch.ids_BL)
    one, two = (hidden_logp(m.model, batch, batch.maskable_BL, zero, "bidirectional", at) for m in (absolute, graph))
    assert torch.allclose(one.exp(), two.exp(), atol=1e-5)
    with pytest.raises(ConfigError, match="relative positions cannot be exported: only absolute, rotary"):
        relative.export(tmp_path / "r")
    assert not (tmp_path / "r").exists()


@needs_onnx
def test_graphs_that_are_not_there_damaged_or_of_other_weights_are_refused(
    tmp_path: Path, model: LM, exported: dict[str, LM]
) -> None:
    model.save(tmp_path / "m")
    with pytest.raises(CheckpointError, match=f"has no {GRAPH}: make a folder that has one by `pmlm export`"):
        load(tmp_path / "m", engine="onnx")
    source = exported["fp32"].folder
    assert source is not None
    graph = (source / GRAPH).read_bytes()
    (tmp_path / "m" / GRAPH).write_bytes(graph[: len(graph) // 2])
    with pytest.raises(CheckpointError, match=f"cannot read .*{GRAPH}"):
        load(tmp_path / "m", engine="onnx")
    (tmp_path / "m" / GRAPH).write_bytes(graph)
    load(tmp_path / "m", engine="onnx")
    model.save(tmp_path / "other", storage="bfloat16")
    (tmp_path / "other" / GRAPH).write_bytes(graph)
    with pytest.raises(CheckpointError, match="was not made from the weights"):
        load(tmp_path / "other", engine="onnx")


def test_what_is_asked_for_wrongly_is_one_line(model: LM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine must be one of torch, onnx; got 'tpu'"):
        load(engine="tpu")
    with pytest.raises(ConfigError, match="computes on the CPU, not on 'cuda'"):
        load(engine="onnx", device="cuda")
    with pytest.raises(ConfigError, match="precision must be one of fp32, int8; got 'int4'"):
        model.export(tmp_path / "x", precision="int4")


def test_without_onnx_it_says_what_to_install(model: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"exported graphs need onnx: pip install 'pmlm\[fast\]'"):
        write_graph(model.model, tmp_path, "fp32")


@needs_onnx
def test_the_command_line_exports_writes_and_refuses_a_foreign_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "--out", str(tmp_path / "x"), "--precision", "int8", "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["precision"] == "int8"
    assert document["graph_bytes"] > 1000
    arguments = [
        "generate",
        "Tom is a [MASK:3].",
        "-m",
        str(tmp_path / "x"),
        "--seed",
        "1",
        "--visibility",
        "bidirectional",
    ]
    assert run([*arguments, "--engine", "onnx"]) == 0
    assert capsys.readouterr().out.startswith("Tom is a ")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    assert run(["export", "--out", str(tmp_path / "mine")]) == 2
    assert "is not empty and holds no checkpoint" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
