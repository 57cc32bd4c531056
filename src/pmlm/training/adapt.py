"""Continued pretraining: the settings and weights with which a trained BERT becomes an any-order model.

The shape is the checkpoint's; only dropout is the run's own. The uniform prior is the objective, beside it, where
wanted, the permuted one, so that one set of weights serves both visibilities.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from pmlm.errors import ConfigError
from pmlm.keeping import tokens_of
from pmlm.lm import LM
from pmlm.model import LanguageModel, ModelConfig, ModelShape
from pmlm.objectives import APLM, U_PMLM, Member, Mixture
from pmlm.training.settings import TrainSettings

BOTH = Mixture(members=(Member(objective=U_PMLM), Member(objective=APLM)))


def adapted_settings(settings: TrainSettings, config: ModelConfig, *, both: bool) -> TrainSettings:
    """The run's settings with a checkpoint's shape; `both`: also order-causal visibility, with half of the rows."""
    shape = {f.name: getattr(config, f.name) for f in fields(ModelShape)}
    model = ModelShape(**(shape | {"dropout": settings.model.dropout}))
    return replace(settings, model=model, objective=BOTH if both else settings.objective)


def origin_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """What the model that comes of it says of where it began."""
    seen = tokens_of(about)
    return {"started_from": about.get("name", "another model")} | ({"tokens_before": seen} if seen else {})


def start_of(lm: LM) -> dict[str, str]:
    """The model that a run began from, so that it is known again."""
    digest = hashlib.sha256()
    for name, weights in sorted(lm.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weights.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return {"name": str(lm.about.get("name", "another model")), "weights": digest.hexdigest()}


def heldout_in_all(about: Mapping[str, Any], share: float) -> float:
    """The share of texts that no leg was trained on: a text is held out where its hash is below the share."""
    return min(share, about.get("heldout_share", share))


def split_note(about: Mapping[str, Any], share: float) -> str:
    """What is wrong with holding out more texts than the model was trained without; empty where nothing is."""
    before = about.get("heldout_share", share)
    if share <= before:
        return ""
    return (
        f"the corpus holds out {share:g} of its texts, the model was trained with {before:g} held out: of texts that "
        f"both have, some that are held out now were trained on. Use `pmlm prepare --heldout {before:g}`."
    )


@torch.no_grad()
def take_weights(model: LanguageModel, source: LanguageModel) -> None:
    """Start from the weights of a model of the same shape.

    What its head said of special tokens is forgotten: they are impossible here, and no gradient would correct it.
    """
    wanted, found = model.state_dict(), source.state_dict()
    odd = sorted(
        name
        for name in wanted.keys() | found.keys()
        if name not in wanted or name not in found or wanted[name].shape != found[name].shape
    )
    if odd:
        raise ConfigError(
            f"the weights to start from do not fit the settings: {odd[0]} (and {len(odd) - 1} more) differ"
        )
    model.load_state_dict(found)
    if model.head.bias is not None:
        model.head.bias[list(model.config.forbidden_ids)] = 0.0
