"""A model on disk: a folder with config.json, model.safetensors and, beside them, the tokenizer and a model card.

Saved atomically: a reader sees the old folder or the new one, never a mixture. Nothing here unpickles. Weights may
be stored in 16 bits; they are computed with in 32. The checksum of the weights stands in config.json, so that a
damaged file is refused and not read. A fine-tuned model names its heads there, with what their outputs mean.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as dump_safetensors
from torch import nn

from pmlm.config import from_dict, to_dict
from pmlm.errors import CheckpointError, ConfigError, RunError
from pmlm.model.config import ModelConfig
from pmlm.model.heads import HeadSpec, LanguageModel, TaskModel

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
FORMAT = 1
MODEL_TYPE = "pmlm"
"""What transformers knows our checkpoints by (see pmlm.hf)."""
Storage = Literal["float32", "float16", "bfloat16"]
N = TypeVar("N", LanguageModel, TaskModel)


@dataclass(frozen=True)
class Checkpoint(Generic[N]):
    model: N
    about: Mapping[str, Any] = field(default_factory=dict)
    """Free facts for people and reports: name, data, tokens seen."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """How texts are drawn from it unless somebody says otherwise (pmlm.generation.sampling); nothing: plainly."""


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint[N],
    *,
    card: str,
    add_files: Callable[[Path], None] | None = None,
    vocabulary: str | None = None,
    storage: Storage = "float32",
) -> None:
    """Write the folder, replacing an older checkpoint in one step; anything else at that place is refused.

    `add_files` puts the tokenizer beside the weights.
    """
    folder = folder.resolve()
    if storage not in get_args(Storage):
        raise ConfigError(f"storage must be one of {', '.join(get_args(Storage))}; got {storage!r}")
    check_target(folder)
    dtype: torch.dtype = getattr(torch, storage)
    tensors = {name: t.detach().cpu().to(dtype).contiguous() for name, t in checkpoint.model.state_dict().items()}
    weights = dump_safetensors(tensors, metadata={"format": "pt"})
    document = {
        "model_type": MODEL_TYPE,
        "format": FORMAT,
        "model": to_dict(checkpoint.model.config),
        "storage": storage,
        "vocabulary": vocabulary,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "about": dict(checkpoint.about),
    }
    if checkpoint.sampling:
        document["sampling"] = dict(checkpoint.sampling)
    if isinstance(checkpoint.model, TaskModel):
        document["heads"] = [to_dict(spec) for spec in checkpoint.model.specs.values()]

    def fill(part: Path) -> None:
        (part / WEIGHTS).write_bytes(weights)
        (part / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (part / CARD).write_text(card, encoding="utf-8")
        if add_files is not None:
            add_files(part)

    replace_folder(folder, fill)


def check_target(folder: Path) -> None:
    """Refuse to write a checkpoint over something that is none of ours."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file: a checkpoint is a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    document = read_document(folder) if (folder / CONFIG).is_file() else {}
    if not isinstance(document.get("model" if "format" in document else "pmlm"), dict):
        raise CheckpointError(f"{folder} is not empty and holds no checkpoint of pmlm: choose another folder")


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder beside `folder`, then put it in its place; on failure the old one is untouched."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part, old = (folder.with_name(f".{folder.name}.{kind}-{os.getpid()}") for kind in ("part", "old"))
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        fill(part)
        for path in sorted(part.rglob("*")):
            if path.is_file():
                _sync(path)
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
    except OSError as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise RunError(f"cannot write {folder}: {error.strerror or error}. What was there before is intact.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(
    folder: Path, *, vocab_size: int | None = None, vocabulary: str | None = None, mask_id: int | None = None
) -> Checkpoint[LanguageModel]:
    """Read a folder written by `save_checkpoint`; everything that does not fit is one clear CheckpointError.

    `vocab_size`, `vocabulary` (its fingerprint) and `mask_id` are those of the tokenizer beside it.
    """
    document = read_config(folder)
    if specs := _head_specs(folder, document):
        raise CheckpointError(
            f"{folder} was fine-tuned for {', '.join(spec.name for spec in specs)} and writes no text any more: "
            f"use `pmlm {'answer' if specs[0].kind == 'span' else 'classify'}`, or the checkpoint that it started from"
        )
    config = _model_config(folder, document, vocab_size, vocabulary, mask_id)
    return _with_weights(folder, document, lambda: LanguageModel(config))


def load_task_checkpoint(
    folder: Path, *, vocab_size: int | None = None, vocabulary: str | None = None, mask_id: int | None = None
) -> Checkpoint[TaskModel]:
    """As `load_checkpoint`, of a fine-tuned model."""
    document = read_config(folder)
    specs = _head_specs(folder, document)
    if not specs:
        raise CheckpointError(f"{folder} is not fine-tuned for any task: see `pmlm finetune`")
    config = _model_config(folder, document, vocab_size, vocabulary, mask_id)
    return _with_weights(folder, document, lambda: TaskModel(config, specs))


def _head_specs(folder: Path, document: Mapping[str, Any]) -> list[HeadSpec]:
    heads = document.get("heads", [])
    if not isinstance(heads, list):
        raise CheckpointError(f"{folder / CONFIG}: 'heads' must be a list")
    try:
        return [from_dict(HeadSpec, spec, where=f"heads[{i}]") for i, spec in enumerate(heads)]
    except ConfigError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None


def _model_config(
    folder: Path, document: Mapping[str, Any], vocab_size: int | None, vocabulary: str | None, mask_id: int | None
) -> ModelConfig:
    try:
        config = from_dict(ModelConfig, document["model"], where="model")
    except ConfigError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None
    if vocab_size is not None and vocab_size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {vocab_size} tokens but the model was built for {config.vocab_size}"
        )
    if vocabulary is not None and document.get("vocabulary") not in (None, vocabulary):
        raise CheckpointError(f"{folder}: the tokenizer is not the one that the model was trained with")
    if mask_id is not None and mask_id != config.mask_id:
        raise CheckpointError(
            f"{folder}: the tokenizer's [MASK] is {mask_id} but the model's mask_id is {config.mask_id}"
        )
    if mask_id is not None and mask_id not in config.forbidden_ids:
        raise CheckpointError(f"{folder / CONFIG}: forbidden_ids must name [MASK] ({mask_id}), or it could be written")
    return config


def _with_weights(folder: Path, document: Mapping[str, Any], build: Callable[[], N]) -> Checkpoint[N]:
    tensors = read_weights(folder / WEIGHTS, document.get("weights_sha256"))
    model = built(folder, build)
    _check_tensors(folder, model, tensors)
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    model.eval()
    return Checkpoint(model, document.get("about", {}), document.get("sampling", {}))


def built(folder: Path, build: Callable[[], N]) -> N:
    """The network that a folder describes, before its weights."""
    try:
        return build()
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{folder}: a model of this size cannot be built: {str(error).splitlines()[0]}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder, checked for being one."""
    path = folder / CONFIG
    document = read_document(folder)
    if not isinstance(document.get("model"), dict):
        hint = f" It is in the format of {kind!r}: see `pmlm convert`." if (kind := document.get("model_type")) else ""
        raise CheckpointError(f"{path} is no pmlm configuration: it has no section 'model'.{hint}")
    known = ("model_type", "format", "model", "heads", "storage", "vocabulary", "weights_sha256", "about", "sampling")
    if odd := sorted(document.keys() - set(known)):
        raise CheckpointError(f"{path}: unknown setting {odd[0]!r}. Known: {', '.join(known)}.")
    if document.get("storage", "float32") not in get_args(Storage):
        raise CheckpointError(f"{path}: storage must be one of {', '.join(get_args(Storage))}")
    for section in ("about", "sampling"):
        if not isinstance(document.get(section, {}), dict):
            raise CheckpointError(f"{path}: {section!r} must be a section")
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {document.get('format')!r}; this version reads format {FORMAT}")
    return document


def read_document(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder of any format."""
    path = folder / CONFIG
    if not _exists(folder.is_dir):
        raise CheckpointError(f"no folder {folder}")
    if not _exists(path.is_file):
        raise CheckpointError(f"{folder} is no checkpoint: it has no {CONFIG}")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
    return document if isinstance(document, dict) else {}


def _exists(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # such as a name that is too long
        return False


def read_weights(path: Path, sha256: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, checked where a checksum is known."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise CheckpointError(f"{path} is damaged: its checksum is not the one in {CONFIG}")
    try:
        return parse_safetensors(raw)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _check_tensors(folder: Path, model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    problems = [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]
    problems += [f"{name} is unknown" for name in sorted(found.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {found[name]}, the configuration says {wanted[name]}"
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name]
    ]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CheckpointError(f"{folder}: weights and configuration do not fit: {'; '.join(problems[:3])}{more}")


def _sync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
