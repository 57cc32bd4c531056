"""The network: configuration, positions, attention, backbone, heads, checkpoints."""

from pmlm.model.backbone import Backbone, Inputs, Slots, initialise
from pmlm.model.cache import Cache
from pmlm.model.config import VISIBILITIES, ModelConfig, ModelShape, Visibility
from pmlm.model.heads import Classifier, LanguageModel, SpanReader, build_model

__all__ = [
    "VISIBILITIES",
    "Backbone",
    "Cache",
    "Classifier",
    "Inputs",
    "LanguageModel",
    "ModelConfig",
    "ModelShape",
    "Slots",
    "SpanReader",
    "Visibility",
    "build_model",
    "initialise",
]
