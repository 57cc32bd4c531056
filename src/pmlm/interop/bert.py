"""BERT's format <-> ours: absolute positions, norm after each sub-layer, BERT's head.

A checkpoint may name its tensors with or without `bert.`, and norms by the older gamma and beta. Without a
language-model head a new one is drawn. Special tokens have probability zero here; a model of ours has no bias for
them (0, which nothing ever moves), and is written with one that makes them impossible for others too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmlm.errors import CheckpointError
from pmlm.interop.foreign import (
    Pair,
    both,
    ignored_note,
    load_ours,
    read_tensors,
    refuse_settings,
    shape_config,
    to_theirs,
    vocabulary_settings,
)
from pmlm.model import LanguageModel, ModelConfig, initialise
from pmlm.model.config import Activation
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
}
NAMES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "ff_width": "intermediate_size",
    "max_length": "max_position_embeddings",
}
DEFAULTS = {
    "norm_eps": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "init_std": ("initializer_range", 0.02),
    "num_token_types": ("type_vocab_size", 2),
}
NEVER = -1e4
"""The bias of a token that must not be predicted."""
_TYPES = "bert.embeddings.token_type_embeddings.weight"
_HEAD, _BIAS, _TIED = "cls.predictions.", "cls.predictions.bias", "cls.predictions.decoder."


def read_bert(
    folder: Path, document: Mapping[str, Any], tokenizer: Tokenizer, seed: int
) -> tuple[LanguageModel, list[str]]:
    """The model, and what a person should know of how it was read."""
    refuse_settings(
        folder,
        document,
        {"position_embedding_type": ("absolute",), "hidden_act": tuple(ACTIVATIONS), "is_decoder": (False,)},
    )
    tensors = _normal_names(read_tensors(folder))
    config = _config(folder, document, tokenizer, tensors)
    pairs = _pairs(config)
    notes = []
    _check_tied(folder, tensors)
    if not any(name.startswith(_HEAD) for name in tensors):
        notes.append(f"no language-model head: a new one was drawn (seed {seed}); it has to be trained")
        tensors |= _new_head(config, seed)
    if _BIAS in tensors and tensors[_BIAS].shape == (config.vocab_size,):
        tensors[_BIAS] = _replaced(tensors[_BIAS], config, now=NEVER, then=0.0)
    model = load_ours(folder, config, pairs, tensors)
    known = {name for pair in pairs for name in pair.theirs} | {_TIED + "weight", _TIED + "bias"}
    known |= set() if config.num_token_types else {_TYPES}
    return model, notes + ignored_note(tensors.keys() - known)


def write_bert(model: LanguageModel, tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors; CheckpointError where BERT cannot be such a model."""
    config = model.config
    _check_writable(config)
    document = {theirs: getattr(config, ours) for ours, theirs in NAMES.items()}
    document |= {theirs: getattr(config, ours) for ours, (theirs, _) in DEFAULTS.items()}
    document |= {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation),
        "attention_probs_dropout_prob": config.dropout,
        "position_embedding_type": "absolute",
        "type_vocab_size": max(1, config.num_token_types),
        "pad_token_id": tokenizer.pad_id,
        "tie_word_embeddings": True,
        "pmlm": {"visibilities": list(config.visibilities), "num_token_types": config.num_token_types},
    }
    tensors = to_theirs(_pairs(config), model)
    tensors[_BIAS] = _replaced(tensors[_BIAS], config, now=0.0, then=NEVER)
    if not config.num_token_types:
        tensors[_TYPES] = torch.zeros(1, config.width)
    return document, tensors


def _config(
    folder: Path, document: Mapping[str, Any], tokenizer: Tokenizer, tensors: Mapping[str, Tensor]
) -> ModelConfig:
    ours = document.get("pmlm", {})
    rest = {name: document.get(theirs, default) for name, (theirs, default) in DEFAULTS.items()}
    if ours.get("num_token_types") == 0 and _TYPES in tensors and not tensors[_TYPES].any():
        rest["num_token_types"] = 0
    return shape_config(
        folder,
        document,
        NAMES,
        activation=ACTIVATIONS[document.get("hidden_act", "gelu")],
        visibilities=ours.get("visibilities", ["bidirectional"]),
        **vocabulary_settings(folder, document, tokenizer),
        **rest,
    )


def _pairs(config: ModelConfig) -> list[Pair]:
    pairs = [
        Pair("backbone.tokens.weight", ("bert.embeddings.word_embeddings.weight",)),
        Pair("backbone.places.weight", ("bert.embeddings.position_embeddings.weight",)),
        *both("backbone.input_norm", "bert.embeddings.LayerNorm"),
        *both("head.transform", _HEAD + "transform.dense"),
        *both("head.norm", _HEAD + "transform.LayerNorm"),
        Pair("head.bias", (_BIAS,)),
    ]
    if config.num_token_types:
        pairs.append(Pair("backbone.types.weight", (_TYPES,)))
    for n in range(config.num_layers):
        ours, theirs = f"backbone.layers.{n}", f"bert.encoder.layer.{n}"
        pairs += [
            *both(f"{ours}.attention.qkv", *(f"{theirs}.attention.self.{name}" for name in ("query", "key", "value"))),
            *both(f"{ours}.project", f"{theirs}.attention.output.dense"),
            *both(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm"),
            *both(f"{ours}.up", f"{theirs}.intermediate.dense"),
            *both(f"{ours}.down", f"{theirs}.output.dense"),
            *both(f"{ours}.ff_norm", f"{theirs}.output.LayerNorm"),
        ]
    return pairs


def _normal_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the prefix, and norms by weight and bias."""
    renamed = {}
    for name, tensor in tensors.items():
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
            name = name.removesuffix(old) + new if name.endswith(old) else name
        renamed[name] = tensor
    return renamed


def _check_tied(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """The decoder's tensors are copies, or this is another kind of model."""
    copies = {_TIED + "weight": "bert.embeddings.word_embeddings.weight", _TIED + "bias": _BIAS}
    for copy, original in copies.items():
        if copy in tensors and original in tensors and not torch.equal(tensors[copy], tensors[original]):
            raise CheckpointError(f"{folder}: {copy} differs from {original}: untied weights are not supported")


def _new_head(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    head = LanguageModel(config).head
    initialise(head, config.init_std, generator(seed, "head"))
    theirs = {pair.ours.removeprefix("head."): pair.theirs[0] for pair in _pairs(config) if pair.ours[:5] == "head."}
    return {theirs[name]: tensor for name, tensor in head.state_dict().items()}


def _check_writable(config: ModelConfig) -> None:
    wanted = {"positions": "absolute", "norm": "post", "norm_input": True, "head": "bert", "scale_attention": True}
    odd = [f"{name} {getattr(config, name)!r}" for name, value in wanted.items() if getattr(config, name) != value]
    if "bidirectional" not in config.visibilities:
        odd.append(f"visibilities {', '.join(config.visibilities)}")
    if odd:
        raise CheckpointError(
            f"BERT's format has no place for {'; '.join(odd)}. `import pmlm.hf` opens such a model in transformers."
        )


def _replaced(bias_V: Tensor, config: ModelConfig, *, now: float, then: float) -> Tensor:
    """The bias of special tokens, from one sign of "never" to another; a trained value stays."""
    is_special_V = torch.zeros_like(bias_V, dtype=torch.bool)
    is_special_V[list(config.forbidden_ids)] = True
    return torch.where(is_special_V & (bias_V == now), then, bias_V)
