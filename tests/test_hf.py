"""transformers opens our checkpoints by their Auto classes and says what we say."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

import pmlm.hf
from conftest import STORIES
from pmlm.batch import make_batch
from pmlm.errors import CheckpointError
from pmlm.likelihood import hidden_logp
from pmlm.lm import LM, default_model_folder, load
from pmlm.model import ModelConfig, Slots, build_model
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(STORIES, vocab_size=300)


def saved(folder: Path, **changes: Any) -> LM:
    shape = {"num_layers": 2, "width": 24, "num_heads": 3, "ff_width": 40, "max_length": 40, "relative_clip": 39, "init_std": 0.3}  # fmt: skip
    roles = {"mask_id": TOKENIZER.mask_id, "forbidden_ids": TOKENIZER.forbidden_ids}
    config = ModelConfig(vocab_size=300, **(shape | roles | changes))
    LM(build_model(config, generator(1)).eval(), TOKENIZER, {"name": "x"}, None).save(folder)
    return load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "relative"},
        {"positions": "rotary", "norm": "pre", "visibilities": ("known-only",)},
        {"positions": "relative-sinusoidal", "visibilities": ("order-causal", "bidirectional")},
        {"positions": "transformer-xl", "visibilities": ("two-stream",), "head": "bias"},
    ],
    ids=str,
)
def test_masked_models_open_and_fill_with_our_probabilities(tmp_path: Path, changes: dict[str, Any]) -> None:
    lm = saved(tmp_path, **changes)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), pmlm.hf.PmlmConfig)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    texts = [" Tom is a [MASK] and Jerry is a [MASK].", " The little [MASK]."]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**encoded).logits
    for row, text in enumerate(texts):
        before, *rest = [TOKENIZER.encode_inner(part.rstrip()) for part in text.split("[MASK]")]
        ids = [TOKENIZER.start_id, *before]
        for part in rest:
            ids += [TOKENIZER.mask_id, *part]
        ids.append(TOKENIZER.end_id)
        assert encoded.input_ids[row, : len(ids)].tolist() == ids
        batch = make_batch([ids], [[i == TOKENIZER.mask_id for i in ids]], pad_id=0)
        at = Slots.where(batch.maskable_BL)
        kind = lm.model.config.visibilities[0]
        expected = hidden_logp(lm.model, batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL), kind, at)
        got = logits[row, at.slots_M].log_softmax(-1)
        assert torch.allclose(got.exp(), expected.exp(), atol=1e-5)
    filler = pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3)
    assert len(filler(texts[1])) == 3


def test_the_model_inside_the_package_opens_and_fills() -> None:
    folder = default_model_folder()
    filler = pipeline("fill-mask", model=str(folder), tokenizer=str(folder), top_k=2)
    assert isinstance(filler.model, pmlm.hf.PmlmForMaskedLM)
    lm = load()
    kind = lm.model.config.visibilities[0]
    expected = lm.fill_mask("Tom is a [MASK] and Jerry is a mouse.", top_k=2, visibility=kind)
    got = filler(" Tom is a [MASK] and Jerry is a mouse.")
    assert [guess["token"] for guess in got] == [guess["token"] for guess in expected]
    assert [guess["score"] for guess in got] == pytest.approx([guess["score"] for guess in expected], rel=1e-4)


def test_left_to_right_models_open_and_write_on(tmp_path: Path) -> None:
    lm = saved(tmp_path, norm="pre", visibilities=("causal",))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(" Tom is a cat", return_tensors="pt").input_ids
    out = model(ids, labels=ids)
    assert out.loss.item() == pytest.approx(lm.score("Tom is a cat").nll / (ids.shape[1] - 1), rel=1e-4)
    written = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
    step = ids
    for token in written:
        assert model(step).logits[0, -1].argmax() == token
        step = torch.cat([step, token[None, None]], dim=1)
    left = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids], dim=1)
    padded = model(left, attention_mask=(torch.arange(left.shape[1]) >= 2).long()[None]).logits[:, 2:]
    assert torch.allclose(padded.exp(), out.logits.exp(), atol=1e-4)


def test_saving_from_transformers_is_our_format(tmp_path: Path) -> None:
    lm = saved(tmp_path / "a", positions="relative")
    AutoModelForMaskedLM.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    again = load(tmp_path / "b")
    assert again.model.config == lm.model.config
    assert all(torch.equal(a, b) for a, b in zip(lm.model.state_dict().values(), again.model.state_dict().values(), strict=True))  # fmt: skip


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    saved(tmp_path / "gpt", visibilities=("causal",))
    saved(tmp_path / "bert")
    with pytest.raises(CheckpointError, match="trained for causal: PmlmForMaskedLM needs one of bidirectional"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "gpt")
    with pytest.raises(CheckpointError, match="trained for bidirectional"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "bert")
    with pytest.raises(CheckpointError, match="float32"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "bert", dtype=torch.float16)
    raw = bytearray((tmp_path / "bert" / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "bert" / "model.safetensors").write_bytes(bytes(raw))
    with pytest.raises(CheckpointError, match="checksum"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "bert")


def test_nothing_else_imports_transformers() -> None:
    code = "import sys, pmlm.lm, pmlm.interop, pmlm.training.run; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
