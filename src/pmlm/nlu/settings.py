"""The settings of a fine-tuning run; resolved ones are saved with it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pmlm.config import from_dict, load_toml, with_overrides
from pmlm.errors import ConfigError
from pmlm.model import ModelConfig, Pooling
from pmlm.nlu.framing import reading_visibility
from pmlm.nlu.windows import WindowSettings
from pmlm.training.optim import OptimSettings


def _optim() -> OptimSettings:
    return OptimSettings(lr=5e-5, beta2=0.999, warmup_steps=0)


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    seed: int = 1
    """Of the heads' first weights, the order of the examples, and dropout."""
    epochs: float = 3.0
    num_steps: int | None = None
    """Steps instead of epochs."""
    most_steps: int | None = None
    """No more steps than this: of tasks of very different sizes, the large ones are seen for less."""
    batch_rows: int = 32
    micro_rows: int | None = None
    """Rows of one forward pass; without it, all of the batch."""
    length: int | None = None
    """The most slots of a row; without it, as many as the model reads."""
    warmup: float = 0.1
    """The share of the steps over which the learning rate rises."""
    layer_decay: float = 1.0
    """Each layer learns at this share of the rate of the layer above it; heads at the full rate, embeddings least."""
    evaluations: int = 1
    """Evaluations on dev per epoch."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a better score; without it: never early."""
    dropout: float | None = None
    """Without it, the model's own."""
    pooling: Literal["auto", "first", "last", "mean"] = "auto"
    """Where a text's summary is read. auto: the mean of its slots; the last one of a left-to-right model. Few rows of
    pretraining begin a document, so the start marker, BERT's [CLS], has learnt little."""
    frozen: bool = False
    """Train the heads alone, each one linear map, on a backbone left as it is: a probe."""
    shuffle_labels: bool = False
    """Train on labels dealt out at random: what is reached then is chance."""
    train_rows: int | None = None
    """Train on so many examples of each task, drawn once for all seeds."""
    sampling: float = 0.5
    """Several tasks at once: each step is of one task, drawn in proportion to (its examples) ** sampling."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    optim: OptimSettings = field(default_factory=_optim)
    """warmup_steps follows from `warmup` and is not to be given."""
    windows: WindowSettings = field(default_factory=WindowSettings)
    """SQuAD: how paragraphs are cut."""

    def __post_init__(self) -> None:
        names = ("num_steps", "most_steps", "batch_rows", "micro_rows", "evaluations", "patience", "train_rows")
        whole = [getattr(self, name) for name in names]
        if min(n for n in whole if n is not None) < 1:
            raise ConfigError(f"{', '.join(names[:-1])} and {names[-1]} are at least 1")
        if self.epochs <= 0 or not 0 <= self.warmup <= 1 or self.sampling < 0:
            raise ConfigError("epochs must be positive, warmup be in [0, 1] and sampling not be negative")
        if self.length is not None and self.length < 5:
            raise ConfigError(f"length must be at least 5, got {self.length}")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay must be in (0, 1], got {self.layer_decay}")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")

    def row_length(self, config: ModelConfig) -> int:
        if self.length is not None and self.length > config.max_length:
            raise ConfigError(f"length {self.length} is more than the model reads, {config.max_length}")
        return self.length or config.max_length

    def head_pooling(self, config: ModelConfig) -> Pooling:
        if self.pooling != "auto":
            return self.pooling
        return "last" if reading_visibility(config) == "causal" else "mean"

    def optimizer(self, num_steps: int) -> OptimSettings:
        return replace(self.optim, warmup_steps=round(self.warmup * num_steps))


def load_finetune_settings(path: Path | None, overrides: list[str]) -> FinetuneSettings:
    """The defaults, or a TOML file, with overrides."""
    data = {} if path is None else load_toml(path)
    optim = {"lr": _optim().lr, "beta2": _optim().beta2, "warmup_steps": 0, **data.get("optim", {})}
    settings = with_overrides({**data, "optim": optim}, overrides)
    if settings["optim"].get("warmup_steps"):
        raise ConfigError("optim.warmup_steps follows from `warmup`, the share of the steps over which the rate rises")
    return from_dict(FinetuneSettings, settings)
