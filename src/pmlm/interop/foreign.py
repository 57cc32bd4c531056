"""What the formats of others have in common: their files, settings and tensors under other names.

A format is a list of pairs, our tensor and theirs. Reading and writing go along the same list, so what was read is
written back bit for bit.
"""

import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pmlm.config import from_dict
from pmlm.errors import CheckpointError, ConfigError
from pmlm.model import LanguageModel, ModelConfig
from pmlm.model.checkpoint import CONFIG, WEIGHTS, built, read_weights
from pmlm.model.config import Activation, Visibility
from pmlm.tokenizer import Tokenizer

PICKLED = "pytorch_model.bin"
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
"""Ours by their name."""


class Pair(NamedTuple):
    ours: str
    theirs: tuple[str, ...]
    """Several: ours is made of theirs, stacked along the first dimension."""
    transposed: bool = False
    """Theirs is written inputs first."""


def both(ours: str, *theirs: str, transposed: bool = False) -> list[Pair]:
    """A weight and its bias."""
    weight = Pair(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed)
    return [weight, Pair(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))]


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """From model.safetensors, or from pytorch_model.bin without running anything that is in it."""
    if (folder / WEIGHTS).is_file():
        return read_weights(folder / WEIGHTS)
    path = folder / PICKLED
    if not path.is_file():
        raise CheckpointError(f"no weights in {folder}: neither {WEIGHTS} nor {PICKLED}")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no named tensors")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def shape_config(folder: Path, document: Mapping[str, Any], names: Mapping[str, str], **rest: Any) -> ModelConfig:
    """Our settings from theirs, by name; what is missing or impossible is one CheckpointError."""
    missing = [theirs for theirs in names.values() if document.get(theirs) is None]
    if missing:
        raise CheckpointError(f"{folder / CONFIG} lacks {', '.join(missing)}")
    try:
        return from_dict(ModelConfig, {ours: document[theirs] for ours, theirs in names.items()} | rest)
    except ConfigError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None


def their_settings(
    config: ModelConfig, names: Mapping[str, str], defaults: Mapping[str, tuple[str, Any]], activation: str
) -> dict[str, Any]:
    """The way back: our settings under their names; `activation` is what they call that one."""
    document = {theirs: getattr(config, ours) for ours, theirs in names.items()}
    document |= {theirs: getattr(config, ours) for ours, (theirs, _) in defaults.items()}
    document[activation] = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    return document | {"tie_word_embeddings": True}


def check_writable(name: str, config: ModelConfig, wanted: Mapping[str, Any], visibility: Visibility) -> None:
    """CheckpointError where the format called `name` has no place for such a model."""
    odd = [f"{key} {getattr(config, key)!r}" for key, value in wanted.items() if getattr(config, key) != value]
    if visibility not in config.visibilities:
        odd.append(f"visibilities {', '.join(config.visibilities)}")
    if odd:
        raise CheckpointError(
            f"{name}'s format has no place for {'; '.join(odd)}. `import pmlm.hf` opens such a model in transformers."
        )


def check_tied(folder: Path, tensors: Mapping[str, Tensor], copies: Mapping[str, str]) -> None:
    """Refuse a head that differs from what it should share; `copies`: its tensors' names, and the originals'."""
    for copy, original in copies.items():
        if copy in tensors and original in tensors and not torch.equal(tensors[copy], tensors[original]):
            raise CheckpointError(f"{folder}: {copy} differs from {original}: untied weights are not supported")


def vocabulary_settings(folder: Path, document: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """What the model takes from its tokenizer, which must be of its size."""
    if document.get("vocab_size") != tokenizer.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens but the model was built for "
            f"{document.get('vocab_size')}"
        )
    return {"mask_id": tokenizer.mask_id, "forbidden_ids": list(tokenizer.forbidden_ids)}


def refuse_settings(folder: Path, document: Mapping[str, Any], allowed: Mapping[str, Iterable[Any]]) -> None:
    """One line that names every setting that no network of ours has."""
    odd = [
        f"{name} {document[name]!r} is not supported (only {', '.join(map(repr, values))})"
        for name, values in allowed.items()
        if document.get(name) is not None and document[name] not in values
    ]
    if odd:
        raise CheckpointError(f"{folder / CONFIG}: {'; '.join(odd)}")


def load_ours(folder: Path, config: ModelConfig, pairs: list[Pair], tensors: Mapping[str, Tensor]) -> LanguageModel:
    """The model with their weights; what is missing or has another shape is named as they name it."""
    model = built(folder, lambda: LanguageModel(config))
    state, problems = dict(model.state_dict()), []
    for pair in pairs:
        parts = [tensors.get(name) for name in pair.theirs]
        whole = state[pair.ours]
        wanted = (len(whole) // len(parts), *whole.shape[1:])
        wanted = wanted[::-1] if pair.transposed else wanted
        for name, part in zip(pair.theirs, parts, strict=True):
            if part is None:
                problems.append(f"{name} is missing")
            elif part.shape != wanted:
                problems.append(f"{name} has shape {tuple(part.shape)}, the configuration says {wanted}")
        if not problems:
            stacked = [part.float().T if pair.transposed else part.float() for part in parts if part is not None]
            state[pair.ours] = torch.cat(stacked)
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CheckpointError(f"{folder}: weights and configuration do not fit: {'; '.join(problems[:3])}{more}")
    model.load_state_dict(state)
    return model.eval()


def to_theirs(pairs: list[Pair], model: LanguageModel) -> dict[str, Tensor]:
    """Our tensors cut up and named as theirs."""
    state = model.state_dict()
    tensors = {}
    for pair in pairs:
        for name, part in zip(pair.theirs, state[pair.ours].detach().cpu().chunk(len(pair.theirs)), strict=True):
            tensors[name] = (part.T if pair.transposed else part).clone().contiguous()
    return tensors


def ignored_note(tensors: Iterable[str], pairs: list[Pair], known: Iterable[str]) -> list[str]:
    """The tensors that are neither in the pairs nor known otherwise, named."""
    extra = sorted(set(tensors) - {name for pair in pairs for name in pair.theirs} - set(known))
    return [f"ignored {len(extra)} tensors that a language model does not need: {', '.join(extra)}"] if extra else []
