"""The settings of a comparison: one TOML file per scale says what all models share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmlm.compare.arms import ARMS
from pmlm.config import from_dict, load_named, named_files, with_overrides
from pmlm.corpus.rows import Packing
from pmlm.errors import ConfigError
from pmlm.nlu.probe import ProbeSettings
from pmlm.nlu.tasks import find_tasks
from pmlm.training.optim import OptimSettings
from pmlm.training.settings import TrainSettings

FIRST = ("gpt-a", "u-pmlm-r", "bert-r", "u-pmlm-a", "bert-a")
OWN = {
    "seed": "seeds", "num_steps": "tokens", "vocab_size": "vocab_size", "name": "models", "about": "models",
    "objective": "models", "model.positions": "models", "rows.predict_end": "models", "rows.packing": "padding",
}  # fmt: skip
"""What is not shared by all models, though `train` has a place for it, and which setting says it."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Files below the data folder."""

    pretrain: tuple[str, ...]
    drop: str = ""
    """A list of documents to leave out of pretraining."""
    protect: bool = False
    """Leave out of pretraining also what shares long runs of words with the test articles of WikiText-103."""
    wikitext_train: str
    wikitext_test: str
    lm1b: str
    """Sentences, one a line: the first `lm1b_train` to fine-tune on, the rest to measure."""
    lm1b_train: int = 10_000
    glue: str = ""
    """The GLUE folder for the probes; empty: no probes."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How much is measured."""

    context: int = 128
    """WikiText: slots of a window."""
    sentence_context: int = 50
    """LM1B: slots of a sentence, markers included; longer ones are left out, and their share is said."""
    exact: int = 64
    """Windows for exact figures, drawn at random."""
    exact_sentences: int = 256
    """Sentences for exact figures, drawn at random; the bound is over all."""
    bound: int | None = None
    """Windows for the bound; without it, all."""
    importance_windows: int = 16
    importance_orders: int = 4


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    scale: str
    about: str = ""
    sources: Sources
    vocab_size: int = 8192
    heldout: float = 0.005
    tokens: int
    """Pretraining of each model."""
    tune_tokens: int
    """Fine-tuning on each corpus."""
    models: tuple[str, ...]
    priors: tuple[str, ...] = ()
    """Models that differ in the prior alone; compared among themselves and by probes."""
    probes: tuple[str, ...] = ("SST-2", "CoLA")
    seeds: tuple[int, ...] = (1,)
    more_seeds: tuple[int, ...] = ()
    """Further seeds of the models in `seeded`."""
    seeded: tuple[str, ...] = ("gpt-a", "u-pmlm-r")
    kept: tuple[str, ...] = ()
    """Models whose weights (first seed, 16 bits) stay with the results; their figures are of these weights."""
    padding: tuple[Packing, ...] = ("packed", "padded", "padding-seen", "padding-predicted")
    sample_seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    train: TrainSettings
    """Shape, rows, optimizer: what all models share. Objective and positions are each model's own."""
    tune: OptimSettings = field(default_factory=OptimSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    measure: Measure = field(default_factory=Measure)

    def __post_init__(self) -> None:
        for name in (*self.models, *self.priors, *self.seeded, *self.kept):
            if name not in ARMS:
                raise ConfigError(f"no model {name!r} to compare. Known: {', '.join(ARMS)}")
        if not self.models or not self.seeds:
            raise ConfigError("a comparison needs at least one model and one seed")
        if min(self.tokens, self.tune_tokens, self.sources.lm1b_train) < 1:
            raise ConfigError("tokens, tune_tokens and sources.lm1b_train must be at least 1")
        bound = 1 if self.measure.bound is None else self.measure.bound
        if min(self.measure.exact, self.measure.exact_sentences, bound) < 1:
            raise ConfigError("measure.exact, measure.exact_sentences and measure.bound must be at least 1")
        if lost := [name for name in self.seeded if name in self.priors]:
            raise ConfigError(f"seeded has {lost[0]!r}: further seeds are of `models`, not of `priors`")
        if self.sources.glue:
            find_tasks(self.probes)
        longest = max(self.measure.context, self.measure.sentence_context)
        if longest > self.train.model.max_length:
            raise ConfigError(f"measured windows of {longest} slots are longer than model.max_length")

    def pretrained(self) -> list[tuple[str, int]]:
        """Every (model, seed) that is pretrained, in that order: what the paper claims something of comes first."""
        models = sorted(self.models, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
        plain = [(name, seed) for seed in self.seeds for name in (*models, *self.priors)]
        again = [(name, seed) for seed in self.more_seeds for name in self.seeded if name in self.models]
        return list(dict.fromkeys(plain + again))

    def tabulated(self) -> list[tuple[str, int]]:
        """Every (model, seed) whose perplexity is in the tables."""
        return [(name, seed) for name, seed in self.pretrained() if name in self.models]


def scale_names() -> list[str]:
    return sorted(named_files("pmlm.compare", "scales"))


def load_compare_settings(scale: str, overrides: list[str]) -> CompareSettings:
    """A scale by name, or a TOML file by path, with overrides."""
    data = load_named(scale, named_files("pmlm.compare", "scales"), "scale")
    data = with_overrides(data, overrides)
    data.setdefault("scale", Path(scale).stem)
    for name, place in OWN.items():
        if _holds(data, f"train.{name}"):
            raise ConfigError(f"train.{name} is not shared by the models: `{place}` says it")
    named = with_overrides(data, [f"train.name={data['scale']}"])
    return from_dict(CompareSettings, named)


def _holds(data: Any, path: str) -> bool:
    """Whether there is a value at a.b.c."""
    for key in path.split("."):
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True
