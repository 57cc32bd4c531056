"""The stages of a comparison. Each unit of work leaves one JSON file and is not done again once that is there.

Units are locked, so that several processes can share the work; what is not ready for one of them is left to another.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pmlm.compare.arms import ARMS
from pmlm.compare.corpora import Corpora
from pmlm.compare.protocol import arm_settings, tune_settings
from pmlm.compare.records import Record, amend, once, read_record, timed
from pmlm.compare.settings import CompareSettings
from pmlm.compare.texts import sentence_figures, window_figures
from pmlm.compare.timing import ROUNDS, time_runs
from pmlm.compare.units import FOLDERS, TIMING, Unit, model_units, stage_units
from pmlm.config import to_dict
from pmlm.errors import DataError, TrainingDiverged
from pmlm.evaluation import Bar, no_bar
from pmlm.keeping import locked, made, write_text
from pmlm.lm import LM, load
from pmlm.nlu.finetuned import load_start
from pmlm.nlu.glue import load_glue
from pmlm.nlu.probe import probe
from pmlm.nlu.tasks import find_tasks
from pmlm.training.loop import MODEL, read_metrics
from pmlm.training.run import Run
from pmlm.training.settings import TrainSettings

STAGES = ("prepare", *FOLDERS, "timing")
KEPT = "models"
"""Where the results hold models."""
UNFINISHED = "unfinished"
"""Beside a model: its training is on its way, or was stopped."""
ANCHORS = ("Tom is a cat and Jerry is a mouse.", "Tom and Jerry become good friends in the end.")
"""The paper's demonstration (Appendix B)."""
MEASURED = {"wikitext": ("context", "exact", "bound"), "lm1b": ("sentence_context", "exact_sentences")}
"""What of `measure` the figures of a fine-tuned model depend on."""
TEXTS = {
    "prepare": ("wikitext_train", "lm1b"), "evaluate": ("wikitext_test", "lm1b", "lm1b_train"),
    "wikitext": ("wikitext_train", "wikitext_test"), "lm1b": ("lm1b", "lm1b_train"), "probe": ("glue",),
}  # fmt: skip
"""The sources that a stage, or a fine-tuning on a corpus, reads beside those of pretraining."""
BETWEEN = 60
"""Tokens between the anchors."""

Drive = Callable[[Any], None]
"""Takes a run from where it is to its end; raises KeyboardInterrupt where it is stopped before."""


class Comparison:
    """`data`: the folder of source texts. `work`: corpora and runs. `out`: results, to keep."""

    def __init__(
        self, settings: CompareSettings, data: Path, work: Path, out: Path, *, device: torch.device, drive: Drive,
        say: Callable[[str], None] = lambda _line: None, bar: Bar = no_bar,
    ) -> None:  # fmt: skip
        self.settings, self.work, self.out = settings, work, out
        self.device, self.drive, self.say, self.bar = device, drive, say, bar
        self.corpora = Corpora(settings, data, work, say)

        self.failed: list[str] = []
        """Units whose training diverged."""
        self.waiting: dict[str, str] = {}
        """Units that could not be made yet, and why."""

    def run(self, stages: tuple[str, ...]) -> None:
        """Model by model, so that what is stopped leaves whole rows of the tables.

        Several processes may do this at once: each takes what no other is at. What had to wait is looked at again as
        long as something else was done meanwhile.
        """
        self._check_sources(stages)
        if "prepare" in stages:
            self.corpora.prepare(self._lock("prepare"))
        has_news = True
        while has_news:
            done = [self._do(unit) for unit in self._units(stages)]
            has_news = any(done) and bool(self.waiting)
        if "timing" in stages:
            self._time_steps()
        for label, reason in self.waiting.items():
            self.say(f"not done: {label} ({reason})")
        for label in self.failed:
            self.say(f"failed: {label}")
        if self.failed:
            names = ", ".join(self.failed)
            raise TrainingDiverged(f"the training of {names} diverged; all that does not need it was gone through")

    def _units(self, stages: tuple[str, ...]) -> list[Unit]:
        """In the order in which they are made."""
        return [
            unit
            for name, seed in self.settings.pretrained()
            for unit in model_units(self.settings, name, seed)
            if unit.stage in stages and unit.label not in self.failed
        ]

    def _check_sources(self, stages: tuple[str, ...]) -> None:
        """What is missing is said before hours are spent."""
        asked = [*stages, *(unit.corpus for unit in self._units(stages) if unit.corpus)]
        names = {name for stage in asked for name in TEXTS.get(stage, ())} - {"lm1b_train"}
        if "prepare" in stages:
            names |= {"pretrain", "drop"}
        self.corpora.check_sources(names)

    # -- models -----------------------------------------------------------------------------------------------------

    def _trained(self, settings: TrainSettings, corpus: str, init_from: LM | None = None) -> Record:
        """Train to the end, from where it was left; what was trained, for how long, and how it went."""
        self.say(f"training {settings.name}")
        folder = self.work / "runs" / settings.name
        run = Run(settings, self.corpora.corpus(corpus), folder, device=self.device, init_from=init_from)
        write_text(folder / UNFINISHED, "")
        run.resume()
        if not run.has_ended:
            self.drive(run)
        elif not (folder / MODEL).is_dir():
            run.export_again()
        (folder / UNFINISHED).unlink(missing_ok=True)
        return {
            "parameters": run.model.num_parameters(),
            "tokens": run.trainer.job.tokens(),
            **_history(folder),
        }

    def model_folder(self, run: str) -> Path:
        """The copy with the results where one is kept."""
        folder = self.out / KEPT / run
        if not folder.is_dir():
            folder = self.work / "runs" / run / MODEL
        if not folder.is_dir():
            raise DataError(f"{folder} is missing: run the stages before this one first")
        return folder

    def model(self, run: str) -> LM:
        lm = load(folder := self.model_folder(run), device=str(self.device))
        if lm.tokenizer.fingerprint != self.corpora.tokenizer.fingerprint:
            raise DataError(f"{folder} has another vocabulary than {self.work}: give the --work that it was trained in")
        return lm

    def _pretrained(self, name: str, seed: int) -> LM:
        return self.model(arm_settings(self.settings, name, seed).name)

    def _has_model(self, name: str, seed: int) -> bool:
        run = arm_settings(self.settings, name, seed).name
        return (self.out / KEPT / run).is_dir() or (not self._is_kept(name, seed) and self._has_ended(run))

    def _has_ended(self, run: str) -> bool:
        """Trained to the end: a model is there from the first evaluation on."""
        folder = self.work / "runs" / run
        return (folder / MODEL).is_dir() and not (folder / UNFINISHED).exists()

    def _is_kept(self, name: str, seed: int) -> bool:
        return name in self.settings.kept and seed == self.settings.seeds[0]

    def _keep(self, unit: Unit) -> None:
        """Put a trained model's weights with the results, where they are to be kept and are not there yet."""
        if unit.stage != "pretrain" or not self._is_kept(unit.model, unit.seed):
            return
        run = self._run_settings(unit).name
        folder = self.out / KEPT / run
        if not folder.is_dir() and self._has_ended(run):
            self.model(run).save(folder, storage="float16")

    # -- units of work ----------------------------------------------------------------------------------------------

    def _do(self, unit: Unit) -> bool:
        """Make a unit's record where that is not there yet and all that it needs is; whether something was made."""
        path, lock = self._path(unit), self._lock(f"{unit.folder}-{unit.name}")
        was_there = path.is_file()
        if not was_there and (reason := self._hindrance(unit)):
            self._wait(unit, reason)
            return False
        arm = ARMS[unit.model]
        about = {"model": unit.model, "title": arm.title, "seed": unit.seed, "scale": self.settings.scale}
        try:
            record = once(path, self._unit_settings(unit), lambda: {**about, **self._made(unit)}, lock)
            self._keep(unit)
            is_again = was_there and self._is_gone(unit)
            if is_again:
                record = self._train_again(unit, path, lock)
                self._keep(unit)
        except TrainingDiverged as error:
            self.say(f"{unit.label} failed: {error}")
            self.failed.append(unit.label)
            self.waiting.pop(unit.label, None)
            return False
        if record is None:
            self._wait(unit, "another process is at it")
            return False
        self.waiting.pop(unit.label, None)
        if not was_there:
            self.say(f"{unit.label} is done; {self._outlook(unit.stage)}")
        return is_again or not was_there

    def _wait(self, unit: Unit, reason: str) -> None:
        if self.waiting.get(unit.label) != reason:
            self.say(f"{unit.label} has to wait, {reason}")
        self.waiting[unit.label] = reason

    def _path(self, unit: Unit) -> Path:
        return self.out / unit.folder / f"{unit.name}.json"

    def _hindrance(self, unit: Unit) -> str:
        """Why a unit cannot be made yet; empty where it can."""
        if unit.is_copy:
            return "" if self._path(unit.tuned).is_file() else "the stage `tune` makes it"
        if not unit.needs_model:
            return ""
        if not self._path(unit.pretrained).is_file():
            return f"{unit.model} is not trained to the end"
        if not self._has_model(unit.model, unit.seed):
            return f"the model of {unit.model} is gone: the stage `pretrain` trains it again"
        return ""

    def _is_gone(self, unit: Unit) -> bool:
        """Whether a trained model is not here any more, as on another machine, and something still needs it."""
        if unit.stage != "pretrain" or self._has_model(unit.model, unit.seed):
            return False
        units = model_units(self.settings, unit.model, unit.seed)
        return any(other.needs_model and not self._path(other).is_file() for other in units)

    def _train_again(self, unit: Unit, path: Path, lock: Path) -> Record | None:
        """The first training's figures stay; that there was another is added. None: another process is at it."""
        with locked(lock) as is_ours:
            if not is_ours:
                return None
            if not self._is_gone(unit):
                return read_record(path)
            self.say(f"{unit.label} is recorded, but its model is gone from {self.work}: it is trained again")
            origin = made()
            with timed(lock) as seconds:
                trained = self._made(unit)
                again: Record = {key: trained[key] for key in ("tokens", "training_seconds", "curve") if key in trained}
                return amend(path, "again", {**again, "made": {**origin, "seconds": round(seconds(), 1)}})

    def _unit_settings(self, unit: Unit) -> dict[str, Any]:
        """What a record depends on."""
        settings: dict[str, Any] = {"run": to_dict(self._run_settings(unit)), "data": self._data_settings(unit)}
        match unit.stage:
            case "evaluate":
                settings["measure"] = to_dict(self.settings.measure)
            case "tune" | "padding":
                measure = to_dict(self.settings.measure)
                settings["measure"] = {key: measure[key] for key in MEASURED[unit.corpus] if key in measure}
            case "probe":
                settings |= {"probe": to_dict(self.settings.probe), "probes": list(self.settings.probes)}
            case "samples":
                settings["sample_seeds"] = list(self.settings.sample_seeds)
        return settings

    def _data_settings(self, unit: Unit) -> dict[str, Any]:
        """What it was made of."""
        names = {"pretrain", "drop", "protect", *TEXTS.get(unit.stage, ()), *TEXTS.get(unit.corpus, ())}
        return {"heldout": self.settings.heldout} | {
            name: value for name, value in to_dict(self.settings.sources).items() if name in names
        }

    def _run_settings(self, unit: Unit) -> TrainSettings:
        if unit.stage not in ("tune", "padding"):
            return arm_settings(self.settings, unit.model, unit.seed)
        tokens = None if unit.packing == "packed" else self.corpora.row_tokens
        return tune_settings(self.settings, unit.model, unit.seed, unit.corpus, unit.packing, tokens)

    def _made(self, unit: Unit) -> Record:
        """A unit's figures."""
        run = self._run_settings(unit)
        match unit.stage:
            case "pretrain":
                return self._trained(run, "pretrain")
            case "evaluate":
                figures = self._figures(run.name, ("wikitext", "lm1b"))
                return {"tokens": self._tokens(unit.model, unit.seed), **figures}
            case "tune" | "padding":
                return read_record(self._path(unit.tuned)) if unit.is_copy else self._fine_tuned(run, unit)
            case "samples":
                return self._samples(unit.model, unit.seed)
            case _:
                return self._probed(unit.model, unit.seed)

    def _outlook(self, stage: str) -> str:
        """How much of a stage is done and how long all the rest would take one process."""
        units = stage_units(self.settings, stage)
        done = sum(self._path(unit).is_file() for unit in units)
        return f"{done} of {len(units)}, about {self._seconds_left() / 60:.0f} min left for one process"

    def _seconds_left(self) -> float:
        """By the mean of what was made in each stage; a stage of which nothing is there yet counts nothing."""
        total = 0.0
        for stage in FOLDERS:
            units = [unit for unit in stage_units(self.settings, stage) if not unit.is_copy]
            done = [read_record(self._path(unit)) for unit in units if self._path(unit).is_file()]
            if done:
                total += (len(units) - len(done)) * sum(r["made"]["seconds"] for r in done) / len(done)
        return total

    def _lock(self, unit: str) -> Path:
        return self.work / "locks" / unit

    # -- figures ----------------------------------------------------------------------------------------------------

    def _figures(self, run: str, corpora: tuple[str, ...], packing: str = "packed", *, orders: bool = True) -> Record:
        """`orders`: with the bound over orders."""
        self.say(f"measuring {run} on {' and '.join(corpora)}")
        lm, measure, report = self.model(run), self.settings.measure, {}
        if "wikitext" in corpora:
            rows = self.corpora.exam_windows
            words = [word for text in self.corpora.exam_articles for word in text.split()]
            importance = (measure.importance_windows, measure.importance_orders) if orders else (0, 0)
            figures = window_figures(
                lm, rows, exact=measure.exact, bound=measure.bound, importance=importance, bar=self.bar
            )
            report["wikitext"] = {
                "context": measure.context,
                "windows": len(rows),
                "unk_words": words.count("<unk>") / len(words),
                **figures,
            }
        if "lm1b" in corpora:
            rows = self.corpora.exam_sentences
            report["lm1b"] = {
                "context": measure.sentence_context,
                "sentences": len(self.corpora.sentences[1]),
                "fitting": len(rows),
                **sentence_figures(
                    lm,
                    rows,
                    self.corpora.lengths,
                    exact=measure.exact_sentences,
                    packing=packing,
                    context=measure.sentence_context,
                    bar=self.bar,
                ),
            }
        return report

    def _fine_tuned(self, run: TrainSettings, unit: Unit) -> Record:
        training = self._trained(run, unit.corpus, self._pretrained(unit.model, unit.seed))
        figures = self._figures(run.name, (unit.corpus,), unit.packing, orders=False)
        return {"corpus": unit.corpus, "packing": unit.packing, "training": training, **figures}

    def _samples(self, name: str, seed: int) -> Record:
        lm = self._pretrained(name, seed)
        room = lm.model.config.max_length - 2 - sum(len(self.corpora.tokenizer.encode(text)) for text in ANCHORS)
        blank = f"[MASK:{min(BETWEEN, room)}]"
        template = f"{ANCHORS[0]} {blank}" if name == "gpt-a" else f"{ANCHORS[0]} {blank} {ANCHORS[1]}"
        orders = ("l2r",) if name == "gpt-a" else ("l2r", "random")
        seeds = list(self.settings.sample_seeds)
        texts = {order: [lm.fill(template, order=order, seed=s).text for s in seeds] for order in orders}
        return {"tokens": self._tokens(name, seed), "template": template, "seeds": seeds, "texts": texts}

    def _tokens(self, name: str, seed: int) -> int:
        """That a model was pretrained on."""
        return int(read_record(self._path(Unit("pretrain", name, seed)))["tokens"])

    def _probed(self, name: str, seed: int) -> Record:
        """By probes on the frozen backbone."""
        self.say(f"probing {name}")
        run = arm_settings(self.settings, name, seed).name
        start = load_start(self.model_folder(run))
        glue = self.corpora.source(self.settings.sources.glue)
        found = {}
        for task in find_tasks(self.settings.probes):
            found[task.name] = probe(start, load_glue(task, glue), self.settings.probe, self.device)
        return {"tokens": self._tokens(name, seed), "probe": found}

    def _time_steps(self) -> None:
        """How long a step of each model takes; where another process is at it, that one's answer will do."""
        path, lock = self.out / TIMING, self._lock("timing")
        runs = {
            name: arm_settings(self.settings, name, self.settings.seeds[0])
            for name in (*self.settings.models, *self.settings.priors)
            if ARMS[name].work_of is None
        }
        settings = {"runs": {name: to_dict(run) for name, run in runs.items()}, "rounds": ROUNDS}

        def make() -> Record:
            self.say(f"timing steps of {len(runs)} models")
            return {"models": time_runs(runs, self.corpora.corpus("pretrain"), self.device, self.bar)}

        if once(path, settings, make, lock) is None:
            self.waiting["timing"] = "another process is at it"


def _history(run: Path) -> Record:
    """Seconds of training and the held-out curve, from a run's log."""
    seconds, tokens, curve = 0.0, 0, []
    for record in read_metrics(run):
        if record["kind"] == "step":
            seconds, tokens = seconds + record["seconds"], record["tokens"]
        elif record["kind"] == "evaluation":
            curve.append({"tokens": tokens, "seconds": round(seconds, 1), "bits_per_byte": record["bits_per_byte"]})
    return {"training_seconds": round(seconds, 1), "curve": curve}
