"""What a comparison makes: units of work, each of which leaves one JSON file.

Everything here is a function of the settings alone.
"""

from dataclasses import dataclass

from pmlm.compare.settings import CompareSettings

FOLDERS = {
    "pretrain": "pretrain", "evaluate": "perplexity", "tune": "tuned", "padding": "padding", "samples": "samples",
    "probe": "probes",
}  # fmt: skip
"""Where the records of a stage are. The stages stand in the order in which a model goes through them."""

TIMING = "timing.json"
"""The record of how long a step of each model takes."""

SAMPLED = ("u-pmlm-a", "u-pmlm-r", "bert-a", "bert-r", "gpt-a")
PADDED = ("bert-a", "u-pmlm-a", "u-pmlm-r")
"""Models that are fine-tuned in all ways of padding, the paper's three; GPT, which hides nothing, in rows with and
without it."""
PROBED = ("bert-r", "u-pmlm-r")
"""Beside the models that differ in the prior."""


@dataclass(frozen=True)
class Unit:
    """One record, of one model."""

    stage: str
    model: str
    seed: int
    corpus: str = ""
    """tune and padding: what is fine-tuned on."""
    packing: str = "packed"

    @property
    def folder(self) -> str:
        return FOLDERS[self.stage]

    @property
    def name(self) -> str:
        match self.stage:
            case "pretrain" | "evaluate":
                return f"{self.model}-seed-{self.seed}"
            case "tune":
                return f"{self.model}-seed-{self.seed}-{self.corpus}"
            case "padding":
                return f"{self.model}-{self.packing}"
            case _:
                return self.model

    @property
    def label(self) -> str:
        return f"{self.folder}: {self.name}"

    @property
    def is_copy(self) -> bool:
        """The way of padding that all are fine-tuned in is there already."""
        return self.stage == "padding" and self.packing == "packed"

    @property
    def needs_model(self) -> bool:
        return self.stage != "pretrain" and not self.is_copy

    @property
    def pretrained(self) -> "Unit":
        """The pretraining of its model."""
        return Unit("pretrain", self.model, self.seed)

    @property
    def tuned(self) -> "Unit":
        """The same fine-tuning in packed rows."""
        return Unit("tune", self.model, self.seed, self.corpus)


def units_of(settings: CompareSettings, stage: str, model: str, seed: int) -> list[Unit]:
    """What a stage makes of one pretrained model."""
    in_tables, is_first = model in settings.models, seed == settings.seeds[0]
    match stage:
        case "pretrain":
            return [Unit(stage, model, seed)]
        case "evaluate" if in_tables:
            return [Unit(stage, model, seed)]
        case "tune" if in_tables:
            return [Unit(stage, model, seed, corpus) for corpus in ("wikitext", "lm1b")]
        case "padding" if in_tables and is_first:
            return [Unit(stage, model, seed, "lm1b", packing) for packing in _paddings(settings, model)]
        case "samples" if in_tables and is_first and model in SAMPLED:
            return [Unit(stage, model, seed)]
        case "probe" if settings.sources.glue and is_first and model in (*PROBED, *settings.priors):
            return [Unit(stage, model, seed)]
        case _:
            return []


def _paddings(settings: CompareSettings, model: str) -> tuple[str, ...]:
    if model == "gpt-a":
        return ("packed", "padded")
    return settings.padding if model in PADDED else ()


def stage_units(settings: CompareSettings, stage: str) -> list[Unit]:
    """What a stage makes of all models."""
    return [unit for name, seed in settings.pretrained() for unit in units_of(settings, stage, name, seed)]


def model_units(settings: CompareSettings, model: str, seed: int) -> list[Unit]:
    """What all stages make of one model."""
    return [unit for stage in FOLDERS for unit in units_of(settings, stage, model, seed)]
