"""The network: configuration, positions, attention, backbone, heads, checkpoints."""

from pmlm.model.backbone import Backbone, Inputs, Slots
from pmlm.model.cache import Cache
from pmlm.model.config import VISIBILITIES, ModelConfig, ModelShape, Visibility
from pmlm.model.heads import HeadSpec, LanguageModel, Pooling, TaskModel, build_model, build_task_model
from pmlm.model.start import initialise

__all__ = [
    "VISIBILITIES",
    "Backbone",
    "Cache",
    "HeadSpec",
    "Inputs",
    "LanguageModel",
    "ModelConfig",
    "ModelShape",
    "Pooling",
    "Slots",
    "TaskModel",
    "Visibility",
    "build_model",
    "build_task_model",
    "initialise",
]
