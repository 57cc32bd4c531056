"""The settings of a training run: one TOML file, saved resolved with every checkpoint."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from pmlm.config import from_dict, load_named, named_files, with_overrides
from pmlm.corpus.rows import RowSettings
from pmlm.errors import ConfigError
from pmlm.model import ModelConfig, ModelShape
from pmlm.objectives import Mixture
from pmlm.tokenizer import Tokenizer
from pmlm.training.optim import OptimSettings

NOT_LEARNED = frozenset({"evaluation", "saving", "micro_rows", "parallel", "precision", "about", "name"})
"""Settings of a run that do not decide what is learned: how it is watched, kept, split and called."""


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    every: int = 500
    """Steps between evaluations on held-out text; 0: at the end alone."""
    rows: int = 256
    """Held-out windows per length."""
    lengths: tuple[int, ...] = (16, 32, 64, 128)
    """Window lengths, markers included; those beyond the row length are left out."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.rows < 1 or not self.lengths or min(self.lengths) < 3:
            raise ConfigError("evaluation.every is not negative, its rows at least 1, and its lengths at least 3 each")


@dataclass(frozen=True, kw_only=True)
class SaveSettings:
    every: int = 500
    """Steps between checkpoints."""
    keep: int = 2
    """How many of the latest are kept, besides the best."""
    export: Literal["best", "last"] = "best"
    """Whose weights are in model/: those of the best evaluation, or of the last one."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    name: str
    about: str = ""
    seed: int = 1
    num_steps: int = 10_000
    batch_rows: int = 64
    """Rows of one step, over all ranks and micro-batches."""
    micro_rows: int | None = None
    """Rows of one forward pass on one rank; without it, all of the rank's rows at once."""
    vocab_size: int = 8192
    """The vocabulary that the preset was made for; a corpus brings its own."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU that has it, fp16 on other GPUs, fp32 on a CPU."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Several ranks: copies of the model, or one model in shards."""
    model: ModelShape = field(default_factory=ModelShape)
    objective: Mixture = field(default_factory=Mixture)
    rows: RowSettings = field(default_factory=RowSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    evaluation: EvalSettings = field(default_factory=EvalSettings)
    saving: SaveSettings = field(default_factory=SaveSettings)

    def __post_init__(self) -> None:
        if min(self.num_steps, self.batch_rows, self.micro_rows or 1, self.saving.keep, self.evaluation.rows) < 1:
            raise ConfigError("num_steps, batch_rows, micro_rows, saving.keep and evaluation.rows must be at least 1")
        if self.saving.every < 1:
            raise ConfigError("saving.every must be at least 1")
        if self.rows.length > self.model.max_length:
            raise ConfigError(f"rows.length {self.rows.length} is more than model.max_length {self.model.max_length}")
        if self.parallel == "fsdp" and self.optim.kind == "muon":
            raise ConfigError("optim.kind 'muon' needs whole matrices: use parallel = 'ddp', or another optimizer")


def model_config(settings: TrainSettings, tokenizer: Tokenizer) -> ModelConfig:
    """The network for a vocabulary."""
    shape = {f.name: getattr(settings.model, f.name) for f in fields(ModelShape)}
    predicted = {tokenizer.end_id} if settings.rows.predict_end else set()
    predicted |= {tokenizer.pad_id} if settings.rows.packing == "padding-predicted" else set()
    return ModelConfig(
        **shape,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        forbidden_ids=tuple(i for i in tokenizer.forbidden_ids if i not in predicted),
        visibilities=settings.objective.trained_visibilities(),
    )


def preset_names() -> list[str]:
    return sorted(named_files("pmlm.training", "presets"))


def load_settings(preset: str, overrides: list[str]) -> TrainSettings:
    """A preset by name, or a TOML file by path, with overrides."""
    data = load_named(preset, named_files("pmlm.training", "presets"), "preset")
    data.setdefault("name", Path(preset).stem)
    return from_dict(TrainSettings, with_overrides(data, overrides))
