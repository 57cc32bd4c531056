"""Several runs that differ in the seed alone, and what they say together: mean, deviation, best, every run, failures.

A run has failed where it diverged, or where its best score on dev is no better than the best constant answer. A failed
run is counted and shown, never dropped.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pmlm.errors import DataError, RunError, TrainingDiverged
from pmlm.keeping import LOCK, locked, made, write_text
from pmlm.nlu.metrics import deviation, mean
from pmlm.nlu.run import FinetuneRun
from pmlm.training.distributed import barrier
from pmlm.training.loop import CHECKPOINTS, METRICS, MODEL, read_metrics

RESULT = "result.json"
Drive = Callable[[FinetuneRun], None]
"""Takes a run from where it is to its end; raises KeyboardInterrupt where it is stopped before."""


@dataclass(frozen=True)
class Outcome:
    """What one run reached, by task."""

    seed: int
    folder: str
    step: int | None
    """At which the best model was found; None: never."""
    scores: dict[str, float] = field(default_factory=dict)
    dev: dict[str, dict[str, float]] = field(default_factory=dict)
    constant: dict[str, float] = field(default_factory=dict)
    """What the best constant answer scores."""
    failed: dict[str, str] = field(default_factory=dict)
    """Task and reason."""
    seconds: float = 0.0
    """Of its training steps."""
    last: dict[str, dict[str, float]] = field(default_factory=dict)
    """The figures of the last evaluation, which nobody chose."""
    constants: dict[str, dict[str, float]] = field(default_factory=dict)
    """The best constant answer by part and metric."""
    made: dict[str, Any] = field(default_factory=dict)
    """By which source and on which machine it was begun."""

    @property
    def model(self) -> Path:
        return Path(self.folder) / MODEL


def drive_quietly(run: FinetuneRun) -> None:
    run.resume()
    for _ in run.events():
        pass


def run_seeds(make_run: Callable[[int], FinetuneRun], seeds: Sequence[int], drive: Drive) -> list[Outcome]:
    """One run after the other; those that are finished are not run again, one that was stopped goes on."""
    return [_outcome(make_run(seed), drive) for seed in seeds]


def _outcome(run: FinetuneRun, drive: Drive) -> Outcome:
    path = run.folder / RESULT
    if path.is_file():
        run.check_settings()
        return _read_outcome(path)
    diverged: str | None = None
    began = made()
    with locked(run.folder / LOCK) if run.ranks.is_main else nullcontext(True) as is_ours:
        if not is_ours:
            raise RunError(f"another process is at {run.folder}: give other tasks, seeds or another --out")
        try:
            drive(run)
        except TrainingDiverged as error:
            diverged = f"diverged: {error}"
    outcome = replace(judge(run, diverged), made=began)
    barrier(run.ranks)
    if run.ranks.is_main:
        write_text(path, json.dumps(asdict(outcome), indent=2) + "\n")
        shutil.rmtree(run.folder / CHECKPOINTS, ignore_errors=True)  # the best model is exported, and large
        (run.folder / LOCK).unlink(missing_ok=True)
    return outcome


def judge(run: FinetuneRun, diverged: str | None = None) -> Outcome:
    """The best evaluation of a run that has ended, and whether it is a failure."""
    logged = read_metrics(run.folder) if (run.folder / METRICS).is_file() else []  # none: diverged at the first step
    found = {} if run.best is None else _evaluation(logged, run)
    scores: dict[str, float] = found.get("scores", {})
    constant = {name: exam.constant_score for name, exam in run.exams.items()}
    failed = {
        name: diverged or f"no better than a constant answer: {scores[name]:.4f} against {least:.4f}"
        for name, least in constant.items()
        if diverged or scores[name] <= least + 1e-9
    }
    return Outcome(
        seed=run.settings.seed,
        folder=str(run.folder),
        step=found.get("step"),
        scores=scores,
        dev=found.get("dev", {}),
        constant=constant,
        failed=failed,
        seconds=round(sum(record.get("seconds", 0.0) for record in logged), 3),
        last=next((record["dev"] for record in reversed(logged) if record["kind"] == "evaluation"), {}),
        constants={part: figures for exam in run.exams.values() for part, figures in exam.constants.items()},
    )


def _evaluation(logged: list[dict[str, Any]], run: FinetuneRun) -> dict[str, Any]:
    """The best one."""
    assert run.best is not None
    for record in logged:
        if record["kind"] == "evaluation" and f"step-{record['step']:08}" == run.best[1]:
            return record
    raise RunError(f"{run.folder / METRICS} has no evaluation of {run.best[1]}: it was changed since it was written")


def _read_outcome(path: Path) -> Outcome:
    try:
        return Outcome(**{**json.loads(path.read_text(encoding="utf-8")), "folder": str(path.parent)})
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}): remove it to run again") from None


def summarise(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": mean(values), "deviation": deviation(values), "best": max(values), "all": list(values)}


def summary(task: str, parts: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the runs say of one task; failed runs count in the figures where they have a score."""
    scored = [o for o in outcomes if task in o.scores]
    good = [o for o in scored if task not in o.failed]
    best = max(scored, key=lambda o: o.scores[task], default=None)
    report: dict[str, Any] = {
        "runs": len(outcomes),
        "failed": [{"seed": o.seed, "reason": o.failed[task]} for o in outcomes if task in o.failed],
        "constant_score": outcomes[0].constant[task],
        "constants": {part: outcomes[0].constants[part] for part in parts if part in outcomes[0].constants},
        "seconds": round(sum(o.seconds for o in outcomes), 3),
        "made": [o.made for o in outcomes],
    }
    if best is not None:
        report |= {
            "score": summarise([o.scores[task] for o in scored]),
            "best_seed": best.seed,
            "best_model": str(best.model),
            "dev": {
                part: {name: summarise([o.dev[part][name] for o in scored]) for name in best.dev[part]}
                for part in parts
                if part in best.dev
            },
            "last": {
                part: {name: summarise([o.last[part][name] for o in scored]) for name in best.dev[part]}
                for part in parts
                if all(part in o.last for o in scored)
            },
        }
    if report["failed"] and good:
        report["score_without_failed"] = summarise([o.scores[task] for o in good])
    return report
