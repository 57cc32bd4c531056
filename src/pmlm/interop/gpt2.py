"""GPT-2's format <-> ours: absolute positions, norm before each sub-layer, causal visibility, a tied head.

GPT-2 keeps its matrices inputs first. It has no bias before the softmax, so a model of ours is written only where its
head has none either (`model.head = "tied"`), and special tokens keep there what their embeddings give them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from pmlm.model import LanguageModel, ModelConfig
from pmlm.tokenizer import Tokenizer

NAMES = {
    "vocab_size": "vocab_size",
    "num_layers": "n_layer",
    "width": "n_embd",
    "num_heads": "n_head",
    "max_length": "n_positions",
}
DEFAULTS = {
    "norm_eps": ("layer_norm_epsilon", 1e-5),
    "dropout": ("resid_pdrop", 0.1),
    "init_std": ("initializer_range", 0.02),
    "scale_attention": ("scale_attn_weights", True),
}
_TOKENS = "transformer.wte.weight"
_COPIES = {"lm_head.weight": _TOKENS}
_WRITABLE = {"positions": "absolute", "norm": "pre", "head": "tied", "num_token_types": 0}


def read_gpt2(folder: Path, document: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[LanguageModel, list[str]]:
    """The model, and what a person should know of how it was read."""
    refuse_settings(
        folder,
        document,
        {
            "activation_function": tuple(ACTIVATIONS),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
    )
    config = _config(folder, document, tokenizer)
    tensors = {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
        for name, tensor in read_tensors(folder).items()
    }
    check_tied(folder, tensors, _COPIES)
    pairs = _pairs(config)
    return load_ours(folder, config, pairs, tensors), ignored_note(tensors, pairs, _COPIES)


def write_gpt2(model: LanguageModel, tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the tensors; CheckpointError where GPT-2 cannot be such a model."""
    config = model.config
    check_writable("GPT-2", config, _WRITABLE, "causal")
    document = their_settings(config, NAMES, DEFAULTS, activation="activation_function") | {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_inner": config.ff_width,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "bos_token_id": tokenizer.start_id,
        "eos_token_id": tokenizer.end_id,
        "pmlm": {"visibilities": list(config.visibilities)},
    }
    return document, to_theirs(_pairs(config), model)


def _config(folder: Path, document: Mapping[str, Any], tokenizer: Tokenizer) -> ModelConfig:
    width = document.get("n_embd") or 0
    return shape_config(
        folder,
        document,
        NAMES,
        ff_width=document.get("n_inner") or 4 * width,
        norm="pre",
        head="tied",
        activation=ACTIVATIONS[document.get("activation_function", "gelu_new")],
        visibilities=document.get("pmlm", {}).get("visibilities", ["causal"]),
        **vocabulary_settings(folder, document, tokenizer),
        **{name: document.get(theirs, default) for name, (theirs, default) in DEFAULTS.items()},
    )


def _pairs(config: ModelConfig) -> list[Pair]:
    pairs = [
        Pair("backbone.tokens.weight", (_TOKENS,)),
        Pair("backbone.places.weight", ("transformer.wpe.weight",)),
        *both("backbone.output_norm", "transformer.ln_f"),
    ]
    for n in range(config.num_layers):
        ours, theirs = f"backbone.layers.{n}", f"transformer.h.{n}"
        pairs += [
            *both(f"{ours}.attention_norm", f"{theirs}.ln_1"),
            *both(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", transposed=True),
            *both(f"{ours}.project", f"{theirs}.attn.c_proj", transposed=True),
            *both(f"{ours}.ff_norm", f"{theirs}.ln_2"),
            *both(f"{ours}.up", f"{theirs}.mlp.c_fc", transposed=True),
            *both(f"{ours}.down", f"{theirs}.mlp.c_proj", transposed=True),
        ]
    return pairs
