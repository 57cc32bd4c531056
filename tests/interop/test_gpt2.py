"""GPT-2's format: the logits of transformers, round trips bit for bit, its vocabulary, and refusals by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_helpers import all_logits, edit_config, scatter
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2Model

from conftest import STORIES
from pmlm.batch import make_batch
from pmlm.cli import run
from pmlm.errors import CheckpointError
from pmlm.interop import read_model, write_model
from pmlm.lm import LM, load
from pmlm.model import ModelConfig, build_model
from pmlm.runtime import generator
from pmlm.tokenizer import END_OF_TEXT, load_tokenizer, train_tokenizer
from pmlm.visibility import causal_inputs

VOCAB = 300


def backend() -> Backend:
    """A small vocabulary in GPT-2's manner: bytes, merges, one special token."""
    made = Backend(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END_OF_TEXT], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )  # fmt: skip
    made.train_from_iterator(STORIES, trainer)
    return made


BACKEND = backend()


def gpt2(folder: Path, kind: type = GPT2LMHeadModel, **changes: Any) -> Any:
    size = {"n_layer": 2, "n_embd": 24, "n_head": 3, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    model = kind(GPT2Config(vocab_size=VOCAB, **(size | changes))).eval()
    scatter(model)
    model.save_pretrained(folder)
    BACKEND.save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_inner": 40, "activation_function": "gelu", "layer_norm_epsilon": 1e-3}, {"scale_attn_weights": False}],
    ids=str,
)
@pytest.mark.parametrize("kind", [GPT2LMHeadModel, GPT2Model])
def test_logits_are_those_of_transformers(tmp_path: Path, changes: dict[str, Any], kind: type) -> None:
    """Slot i + 1 of ours, which reads token i, is slot i of theirs."""
    theirs = gpt2(tmp_path, kind, **changes)
    found = read_model(tmp_path)
    assert found.notes == []
    ours, tokenizer = found.lm.model, found.lm.tokenizer
    rows = [[tokenizer.start_id, *tokenizer.encode(text)[:20], tokenizer.end_id] for text in STORIES]
    batch = make_batch(rows, [[False] + [True] * (len(row) - 2) + [False] for row in rows], pad_id=0)
    with torch.no_grad():
        out = theirs(batch.ids_BL)
        expected = out.logits if kind is GPT2LMHeadModel else out.last_hidden_state @ theirs.wte.weight.T
    got = all_logits(ours, causal_inputs(batch, ours.config.mask_id))
    assert (got[:, 1:] - expected[:, :-1, 1:])[batch.maskable_BL[:, 1:]].abs().max() < 1e-4
    assert expected.std() > 0.5
    assert ours.config.visibilities == ("causal",)


def test_theirs_to_ours_and_back_is_bit_for_bit(tmp_path: Path) -> None:
    gpt2(tmp_path / "a")
    for source, target, kind in (("a", "b", "pmlm"), ("b", "c", "gpt2")):
        assert run(["convert", str(tmp_path / source), "--out", str(tmp_path / target), "--to", kind]) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "ac")
    assert before.keys() - {"lm_head.weight"} == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in after)
    text = "Tom is a cat"
    assert AutoTokenizer.from_pretrained(tmp_path / "c")(text).input_ids == BACKEND.encode(text).ids
    assert load(tmp_path / "b").score(text).visibility == "causal"


def test_a_gpt_of_ours_opens_in_stock_transformers(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=VOCAB)
    config = ModelConfig(vocab_size=VOCAB, num_layers=2, width=24, num_heads=3, ff_width=40, max_length=40, init_std=0.3, norm="pre", head="tied",
        mask_id=tokenizer.mask_id, forbidden_ids=tokenizer.forbidden_ids, visibilities=("causal",))  # fmt: skip
    lm = LM(build_model(config, generator(1)).eval(), tokenizer, {"name": "mine"}, None)
    write_model(lm, tmp_path, "gpt2")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = AutoTokenizer.from_pretrained(tmp_path)(" Tom is a cat", return_tensors="pt").input_ids
    assert ids[0].tolist() == [tokenizer.start_id, *tokenizer.encode("Tom is a cat")]
    with torch.no_grad():
        logits = theirs(ids).logits[0, :-1]
    logits[:, list(tokenizer.forbidden_ids)] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, ids[0, 1:, None]).sum().item()
    assert -lm.score("Tom is a cat").nll == pytest.approx(expected, abs=1e-3)
    back = read_model(tmp_path).lm
    assert back.model.config == config
    assert all(torch.equal(a, b) for a, b in zip(lm.model.state_dict().values(), back.model.state_dict().values(), strict=True))  # fmt: skip


@pytest.mark.parametrize("changes", [{"positions": "rotary"}, {"norm": "post"}, {"head": "bert"}, {"visibilities": ("bidirectional",)}])  # fmt: skip
def test_what_gpt2_cannot_be_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=VOCAB)
    shape: dict[str, Any] = {"norm": "pre", "head": "tied", "visibilities": ("causal",)}
    config = ModelConfig(vocab_size=VOCAB, num_layers=1, width=8, num_heads=1, ff_width=8, **(shape | changes))
    with pytest.raises(CheckpointError, match=f"no place for {next(iter(changes))}"):
        write_model(LM(build_model(config, generator(1)), tokenizer, {}, None), tmp_path / "x", "gpt2")


def drop(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: edit_config(f, scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx True"),
        (lambda f: edit_config(f, activation_function="swish"), "activation_function 'swish'"),
        (lambda f: edit_config(f, n_embd=None), "lacks n_embd"),
        (lambda f: edit_config(f, n_inner=41), r"mlp.c_fc.weight has shape \(24, 96\), the configuration says \(24, 41\)"),
        (lambda f: drop(f, "transformer.h.1.attn.c_attn.bias"), "h.1.attn.c_attn.bias is missing"),
        (lambda f: edit_config(f, vocab_size=9), "has 300 tokens but the model was built for 9"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path: Path, harm: Any, says: str) -> None:
    gpt2(tmp_path)
    harm(tmp_path)
    with pytest.raises(CheckpointError, match=says):
        read_model(tmp_path)


def test_untied_weights_are_refused(tmp_path: Path) -> None:
    gpt2(tmp_path, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from transformer.wte.weight"):
        read_model(tmp_path)


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json"])
def test_gpt2s_vocabulary_spells_as_its_own_tokenizer_and_knows_spaces(tmp_path: Path, files: str) -> None:
    if files == "tokenizer.json":
        BACKEND.save(str(tmp_path / files))
    else:
        BACKEND.model.save(str(tmp_path))
    tokenizer = load_tokenizer(tmp_path)
    for text in (*STORIES, "naïve 東京 🦊", f"{END_OF_TEXT} is text"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        if END_OF_TEXT not in text:
            assert tokenizer.encode(text) == BACKEND.encode(" " + text).ids
    assert tokenizer.special_ids == (BACKEND.token_to_id(END_OF_TEXT),) == tokenizer.forbidden_ids
    assert tokenizer.start_id not in tokenizer.encode(END_OF_TEXT)
    text = STORIES[0]
    pieces = tokenizer.pieces(text)
    assert "".join(text[p.start : p.end] for p in pieces) == text
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


def test_a_converted_gpt2_writes_on_from_a_beginning(tmp_path: Path) -> None:
    gpt2(tmp_path / "a")
    assert run(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    filled = load(tmp_path / "b").fill("Tom is a [MASK:4]", order="l2r", seed=1)
    assert filled.text.startswith("Tom is a ")
    assert len(filled.order) == 4
    document = json.loads((tmp_path / "b" / "config.json").read_text())
    assert document["about"]["converted_from"] == "gpt2"
