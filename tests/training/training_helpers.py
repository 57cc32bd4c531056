"""Small settings for training tests."""

from typing import Any

from pmlm.config import from_dict
from pmlm.training.settings import TrainSettings

BASE: dict[str, Any] = {
    "name": "test",
    "num_steps": 10,
    "batch_rows": 8,
    "model": {
        "num_layers": 2,
        "width": 32,
        "num_heads": 2,
        "ff_width": 48,
        "max_length": 32,
        "dropout": 0.1,
        "positions": "rotary",
    },
    "objective": {
        "members": [
            {"objective": {"kind": "aplm", "weighting": "token-mean", "given_prob": 0.5}, "start": 0.7, "end": 0.3},
            {"objective": {"kind": "pmlm"}, "start": 0.3, "end": 0.7},
        ]
    },
    "rows": {"length": 32, "block_shards": 1},
    "optim": {"warmup_steps": 3, "lr": 0.003},
    "evaluation": {"every": 5, "rows": 12, "lengths": [16, 32]},
    "saving": {"every": 2, "keep": 2},
}


def make_settings(**changes: Any) -> TrainSettings:
    data = dict(BASE)
    for key, value in changes.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) else value
    return from_dict(TrainSettings, data)
