"""BERT's format <-> ours: absolute positions, norm after each sub-layer, BERT's head.

A checkpoint may name its tensors with or without `bert.`, and norms by the older gamma and beta. Without a
language-model head a new one is drawn. Special tokens have probability zero here, whatever their bias; a model of ours
has none for them (0, which nothing ever moves), and is written with one that makes them impossible for others too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmlm.interop.foreign import (
    ACTIVATIONS,
    Pair,
    both,
    check_tied,
    check_writable,
    ignored_note,
    load_ours,
    read_tensors,
    refuse_settings,
    shape_config,
    their_settings,
    to_theirs,
    vocabulary_settings,
)
from pmlm.model import LanguageModel, ModelConfig, initialise
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer

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
_HEAD, _BIAS = "cls.predictions.", "cls.predictions.bias"
_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": _BIAS,
}
_WRITABLE = {"positions": "absolute", "norm": "post", "norm_input": True, "head": "bert", "scale_attention": True}


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
    check_tied(folder, tensors, _COPIES)
    if _BIAS in tensors and tensors[_BIAS].shape == (config.vocab_size,):
        tensors[_BIAS] = _exchanged(tensors[_BIAS], config)
    if not any(name.startswith(_HEAD) for name in tensors):
        notes.append(f"no language-model head: a new one was drawn (seed {seed}); it has to be trained")
        tensors |= _new_head(config, seed)
    model = load_ours(folder, config, pairs, tensors)
    return model, notes + ignored_note(tensors, pairs, (*_COPIES, _TYPES))


def write_bert(model: LanguageModel, tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors; CheckpointError where BERT cannot be such a model."""
    config = model.config
    check_writable("BERT", config, _WRITABLE, "bidirectional")
    document = their_settings(config, NAMES, DEFAULTS, activation="hidden_act") | {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": config.dropout,
        "position_embedding_type": "absolute",
        "type_vocab_size": max(1, config.num_token_types),
        "pad_token_id": tokenizer.pad_id,
        "pmlm": {"visibilities": list(config.visibilities), "num_token_types": config.num_token_types},
    }
    tensors = to_theirs(_pairs(config), model)
    tensors[_BIAS] = _exchanged(tensors[_BIAS], config)
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


def _new_head(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    head = LanguageModel(config).head
    initialise(head, config.init_std, generator(seed, "head"))
    theirs = {pair.ours.removeprefix("head."): pair.theirs[0] for pair in _pairs(config) if pair.ours[:5] == "head."}
    return {theirs[name]: tensor for name, tensor in head.state_dict().items()}


def _exchanged(bias_V: Tensor, config: ModelConfig) -> Tensor:
    """The bias of special tokens on its way in or out: our "never", 0, for theirs, and theirs for ours.

    An exchange and not a replacement, so that a 0 of theirs comes back as 0. Any other value stays.
    """
    is_special_V = torch.zeros_like(bias_V, dtype=torch.bool)
    is_special_V[list(config.forbidden_ids)] = True
    ours_V, theirs_V = (bias_V == 0) & ~bias_V.signbit(), bias_V == NEVER
    exchanged_V = torch.where(ours_V, NEVER, torch.where(theirs_V, 0.0, bias_V))
    return torch.where(is_special_V, exchanged_V, bias_V)
