"""A run, whatever is trained: steps, the log, evaluations, checkpoints, early stopping, resuming.

The run's folder holds settings.json, metrics.jsonl, checkpoints/ (to go on from) and model/ (to use). It is written by
the first rank alone; the others only compute. What is trained, how it is measured and what is exported is said by a
subclass: pretraining in pmlm.training.run, fine-tuning in pmlm.nlu.run.
"""

import contextlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import nn

from pmlm.errors import CheckpointError, ConfigError, DataError, RunError
from pmlm.keeping import write_text
from pmlm.training.distributed import sum_over_ranks
from pmlm.training.resume import LOOP, keep_latest, load_state, save_state, step_folders
from pmlm.training.trainer import StepReport, Trainer

CHECKPOINTS, MODEL, METRICS, SETTINGS = "checkpoints", "model", "metrics.jsonl", "settings.json"


class Measured(Protocol):
    """An evaluation after a step."""

    @property
    def step(self) -> int: ...

    @property
    def headline(self) -> float:
        """What `best` means."""
        ...

    def record(self) -> dict[str, Any]:
        """What is logged of it, beside step and headline."""
        ...

    def line(self) -> str:
        """The same for a person."""
        ...


@dataclass(frozen=True)
class Saved:
    path: Path


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a run is and when it does what, in steps."""

    num_steps: int
    evaluate_every: int
    """0: at the end alone."""
    save_every: int
    keep: int
    """How many of the latest checkpoints are kept, besides the best."""
    export: Literal["best", "last"] = "best"
    """After which evaluations the model is written, to use: those with a new best, or all."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a new best."""


M = TypeVar("M", bound=Measured)
N = TypeVar("N", bound=nn.Module)


class RunLoop(ABC, Generic[M, N]):
    """One run of a trainer; iterate over `events()`."""

    lower_is_better = True

    def __init__(self, name: str, folder: Path, model: N, trainer: Trainer, pace: Pace) -> None:
        self.name, self.folder, self.model, self.trainer, self.pace = name, folder, model, trainer, pace
        self.device, self.ranks = trainer.device, trainer.ranks
        self.best: tuple[float, str] | None = None
        self.stale = 0
        """Evaluations since the best."""

    @abstractmethod
    def evaluate(self, model: N) -> M: ...

    @abstractmethod
    def export(self, model: N, measured: M) -> None:
        """Write the model, to use; called on the first rank."""

    @abstractmethod
    def blank_model(self) -> N:
        """A model of the same shape, its weights to be filled in."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """settings.json: the settings, and what else the run was started with."""

    @abstractmethod
    def changed_settings(self, saved: dict[str, Any]) -> list[str]:
        """The names of settings that may not differ from those of settings.json, but do."""

    def yardstick(self) -> dict[str, Any]:
        """What figures depend on besides the model: the best by another one is the best no more."""
        return {}

    @abstractmethod
    def flops_per_token(self) -> float:
        """Arithmetic of a step per content token, for the display."""

    @property
    def has_ended(self) -> bool:
        return self.trainer.step >= self.pace.num_steps or self._is_exhausted

    @property
    def _is_exhausted(self) -> bool:
        return self.pace.patience is not None and self.stale >= self.pace.patience

    def resume(self) -> int:
        """Go on from the latest checkpoint, if there is one; returns the step."""
        found = step_folders(self.folder / CHECKPOINTS)
        if found:
            self.check_settings()
            facts = load_state(found[-1], self.trainer)
            best = facts.get("best")
            if best is not None and facts.get("yardstick", self.yardstick()) == self.yardstick():
                self.best, self.stale = (best[0], best[1]), facts.get("stale", 0)
            if self.trainer.step > self.pace.num_steps:
                raise ConfigError(
                    f"{self.folder} is at step {self.trainer.step} already: it cannot end at {self.pace.num_steps}"
                )
        self._cut_metrics(self.trainer.step)
        return self.trainer.step

    def events(self, should_stop: Callable[[], bool] = lambda: False) -> Iterator[StepReport | M | Saved]:
        """Train to the end, or until `should_stop`; saves before it stops."""
        self._write_settings()
        if self._is_exhausted:
            return
        for report in self.trainer.run():
            self._log({"kind": "step", **asdict(report)})
            yield report
            done = report.step == self.pace.num_steps
            stopped = self._anyone(should_stop())
            is_best = False
            if done or (self.pace.evaluate_every and report.step % self.pace.evaluate_every == 0):
                yield self._evaluate()
                is_best = self.stale == 0
            stopped = stopped or self._is_exhausted
            if report.step % self.pace.save_every == 0 or is_best or done or stopped:
                yield self._save()
            if stopped and not done:
                return

    def _evaluate(self) -> M:
        model = self._plain_model()
        result = self.evaluate(model)
        self._log({"kind": "evaluation", "step": result.step, **result.record(), "headline": result.headline})
        is_best = self.best is None or self._is_better(result.headline, self.best[0])
        if is_best:
            self.best, self.stale = (result.headline, f"step-{result.step:08}"), 0
        else:
            self.stale += 1
        if self.ranks.is_main and (is_best or self.pace.export == "last"):
            self.export(model, result)
        return result

    def export_again(self) -> None:
        """Write the model of a run that has ended, where its folder was removed."""
        model = self._plain_model()
        measured = self.evaluate(model)
        if self.ranks.is_main:
            self.export(model, measured)

    def _is_better(self, figure: float, best: float) -> bool:
        return figure < best if self.lower_is_better else figure > best

    def _plain_model(self) -> N:
        """The whole model on this rank, with the averaged weights where an average is kept."""
        average = self.trainer.average
        weights = dict(self.trainer.core.named_parameters()) if average is None else average.weights
        if average is None and not any(hasattr(w, "full_tensor") for w in weights.values()):
            return self.model
        plain = self.blank_model().to(self.device)
        full = {name: getattr(w, "full_tensor", lambda w=w: w)() for name, w in weights.items()}
        plain.load_state_dict(full)
        return plain

    def _save(self) -> Saved:
        folder = self.folder / CHECKPOINTS
        facts = {**self.document(), "best": self.best, "stale": self.stale, "yardstick": self.yardstick()}
        path = save_state(folder, self.trainer, facts)
        if self.ranks.is_main:
            keep_latest(folder, self.pace.keep, self.best[1] if self.best else None)
        return Saved(path)

    def _anyone(self, flag: bool) -> bool:
        return bool(sum_over_ranks(torch.tensor(float(flag)), self.ranks) > 0)

    def _write_settings(self) -> None:
        if self.ranks.is_main:
            write_text(self.folder / SETTINGS, json.dumps(self.document(), indent=2) + "\n")

    def check_settings(self) -> None:
        """A run goes on under its own settings; only how long, how often and how it is split may change.

        Where settings.json was removed, the last checkpoint knows them.
        """
        path = self.folder / SETTINGS
        try:
            if path.is_file():
                saved = json.loads(path.read_text(encoding="utf-8"))
            elif found := step_folders(self.folder / CHECKPOINTS):
                path = found[-1] / LOOP
                facts = json.loads(path.read_text(encoding="utf-8"))["facts"]
                saved = {**self.document(), **facts}  # older ones hold the settings alone
            else:
                return
            changed = self.changed_settings(saved)
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{path} is damaged: restore it, or give another folder") from None
        if changed:
            raise ConfigError(
                f"{self.folder} was started with other settings ({', '.join(changed)}): "
                "give the same, or another folder."
            )

    def _log(self, record: dict[str, Any]) -> None:
        if not self.ranks.is_main:
            return
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as handle:
                handle.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self.folder / METRICS}: {error.strerror}") from None

    def _cut_metrics(self, step: int) -> None:
        """Drop what a killed run logged after the checkpoint that we go on from; all of it where there is none."""
        path = self.folder / METRICS
        if not self.ranks.is_main or not path.is_file():
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        part = path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        part.replace(path)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run logged, in order; a line that a kill cut off is left out."""
    path = folder / METRICS
    if not path.is_file():
        raise DataError(f"{folder} is no run: it has no {METRICS}")
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line).get("step", 0))
    except (ValueError, AttributeError):
        return math.inf  # a line cut off by a kill


def differences(before: dict[str, Any], now: dict[str, Any], free: Set[str]) -> list[str]:
    """The keys, but for the free ones, whose values differ."""
    return sorted(k for k in (before.keys() | now.keys()) - free if before.get(k) != now.get(k))
