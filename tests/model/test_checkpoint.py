"""Checkpoints: round trips, atomic replacement, and one clear line for everything that does not fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import STORIES
from fakes import tiny_config, tiny_model
from pmlm.errors import CheckpointError, ConfigError, RunError, TokenizerError
from pmlm.lm import LM, load
from pmlm.model import HeadSpec, build_model, build_task_model
from pmlm.model.checkpoint import (
    Checkpoint,
    load_checkpoint,
    load_task_checkpoint,
    replace_folder,
    save_checkpoint,
)
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer


def save(folder: Path, **options: object) -> Checkpoint:
    checkpoint = Checkpoint(tiny_model(positions="relative"), {"name": "x"})
    save_checkpoint(folder, checkpoint, card="# x\n", **options)  # type: ignore[arg-type]
    return checkpoint


def test_round_trip_bit_for_bit(tmp_path: Path) -> None:
    saved = save(tmp_path / "m")
    loaded = load_checkpoint(tmp_path / "m")
    assert loaded.model.config == saved.model.config
    assert loaded.about == {"name": "x"}
    for (name, a), (_, b) in zip(saved.model.state_dict().items(), loaded.model.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert (tmp_path / "m" / "README.md").read_text() == "# x\n"


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_sixteen_bits_halve_the_file_and_load_as_thirty_two(tmp_path: Path, storage: str) -> None:
    saved = save(tmp_path / "full")
    save(tmp_path / "half", storage=storage)
    size = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert size[1] < 0.6 * size[0]
    loaded = load_checkpoint(tmp_path / "half").model
    for a, b in zip(saved.model.state_dict().values(), loaded.state_dict().values(), strict=True):
        assert b.dtype == torch.float32
        assert torch.allclose(a, b, rtol=1e-2, atol=1e-4)


def test_the_old_checkpoint_survives_a_failed_save(tmp_path: Path) -> None:
    saved = save(tmp_path / "m")

    def fail(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="No space left"):
        save(tmp_path / "m", add_files=fail)
    assert torch.equal(load_checkpoint(tmp_path / "m").model.head.bias, saved.model.head.bias)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_replacing_leaves_no_trace_of_the_old(tmp_path: Path) -> None:
    replace_folder(tmp_path / "m", lambda part: (part / "old").touch())
    replace_folder(tmp_path / "m", lambda part: (part / "new").touch())
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_nothing_but_a_checkpoint_is_ever_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for config in (None, '{"port": 8080}', '{"model_type": "bert", "hidden_size": 8}', '{"model": "x", "format": 1}'):
        if config is not None:
            (tmp_path / "thesis" / "config.json").write_text(config)
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            save(tmp_path / "thesis")
    with pytest.raises(CheckpointError, match="is a file"):
        save(tmp_path / "file")
    with pytest.raises(ConfigError, match="storage"):
        save(tmp_path / "m", storage="foo")
    assert (tmp_path / "thesis" / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    save(tmp_path / "empty")


def damage_byte(folder: Path) -> None:
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-100] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(raw))


def truncate(folder: Path) -> None:
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(raw[: len(raw) // 2])


def edit(folder: Path, change: object, *, drop_checksum: bool = False) -> None:
    document = json.loads((folder / "config.json").read_text())
    document["model"] |= change if isinstance(change, dict) else {}
    if drop_checksum:
        del document["weights_sha256"]
    (folder / "config.json").write_text(json.dumps(document))


def top_level(folder: Path, change: dict[str, object]) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | change))


def truncate_unchecked(folder: Path) -> None:
    truncate(folder)
    edit(folder, {}, drop_checksum=True)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["head.bias"]
    save_file(tensors, folder / "model.safetensors")
    edit(folder, {}, drop_checksum=True)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (damage_byte, "damaged: its checksum"),
        (truncate, "damaged"),
        (truncate_unchecked, "damaged"),
        (drop_tensor, "head.bias is missing"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot read"),
        (lambda f: (f / "config.json").unlink(), "is no checkpoint"),
        (lambda f: (f / "config.json").write_text("{"), "cannot read"),
        (lambda f: (f / "config.json").write_text("{}"), "no section 'model'"),
        (lambda f: edit(f, {"widht": 3}), "unknown setting 'model.widht'. Did you mean 'width'"),
        (lambda f: edit(f, {"vocab_size": 12}), "do not fit"),
        (lambda f: edit(f, {"num_token_types": -1}), "num_token_types"),
        (lambda f: edit(f, {"width": 4 * 10**9}), "cannot be built|do not fit"),
        (lambda f: top_level(f, {"colour": "red"}), "unknown setting 'colour'"),
        (lambda f: top_level(f, {"storage": "foo"}), "storage must be"),
        (lambda f: top_level(f, {"about": None}), "'about' must be"),
        (lambda f: edit(f, {"norm_eps": -1.0}), "norm_eps"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "cannot read"),
        (
            lambda f: (f / "config.json").write_text(
                (f / "config.json")
                .read_text()
                .replace('"name": "x"', "")
                .replace("{}", "null")
                .replace('"about": {', '"about": [')
                .replace("  }\n}", "  ]\n}")
            ),
            "'about' must be|cannot read",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path: Path, harm: object, says: str) -> None:
    save(tmp_path / "m")
    harm(tmp_path / "m")  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=says):
        load_checkpoint(tmp_path / "m")


def test_a_vocabulary_of_another_size_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    specials = {"mask_id": tokenizer.mask_id, "forbidden_ids": tokenizer.forbidden_ids}
    model = build_model(tiny_config(vocab_size=300, **specials), generator(1))
    LM(model, tokenizer, {}, None).save(tmp_path / "m")
    assert load(tmp_path / "m").tokenizer.fingerprint == tokenizer.fingerprint
    train_tokenizer(STORIES[:2] * 3, vocab_size=300).save(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"not the one|tokens but"):
        load(tmp_path / "m")
    train_tokenizer(STORIES, vocab_size=310).save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="310 tokens but the model was built for 300"):
        load(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load(tmp_path / "m")
    with pytest.raises(CheckpointError, match="no folder"):
        load(tmp_path / "none")


def test_a_model_that_could_write_mask_is_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    LM(build_model(tiny_config(vocab_size=300, mask_id=tokenizer.mask_id), generator(1)), tokenizer, {}, None).save(
        tmp_path / "m"
    )
    with pytest.raises(CheckpointError, match=r"forbidden_ids must name \[MASK\]"):
        load(tmp_path / "m")


def test_a_fine_tuned_model_keeps_its_heads_and_says_that_it_writes_no_text(tmp_path: Path) -> None:
    specs = [
        HeadSpec(name="SST-2", kind="classes", labels=("negative", "positive"), pooling="mean"),
        HeadSpec(name="SQuAD", kind="span", threshold=-1.5),
    ]
    model = build_task_model(tiny_model().backbone, specs, generator(1))
    save_checkpoint(tmp_path / "m", Checkpoint(model, {"name": "x"}), card="# x\n")
    loaded = load_task_checkpoint(tmp_path / "m").model
    assert loaded.specs == {spec.name: spec for spec in specs}
    for (name, a), (_, b) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    with pytest.raises(CheckpointError, match=r"fine-tuned for SST-2, SQuAD .* use `pmlm classify`"):
        load_checkpoint(tmp_path / "m")
    top_level(tmp_path / "m", {"heads": [{"name": "a", "kind": "classes", "lables": ["x", "y"]}]})
    with pytest.raises(CheckpointError, match="Did you mean 'labels'"):
        load_task_checkpoint(tmp_path / "m")
    top_level(tmp_path / "m", {"heads": 3})
    with pytest.raises(CheckpointError, match="must be a list"):
        load_task_checkpoint(tmp_path / "m")
    save(tmp_path / "lm")
    with pytest.raises(CheckpointError, match="not fine-tuned"):
        load_task_checkpoint(tmp_path / "lm")
