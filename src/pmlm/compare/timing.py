"""How long a training step of each model takes, all of them alternating in one process.

Times of the trainings themselves are of different days, machines and numbers of threads; only these are compared.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pmlm.corpus.shards import Corpus
from pmlm.evaluation import Bar
from pmlm.training.run import Run
from pmlm.training.settings import TrainSettings
from pmlm.training.trainer import StepReport

ROUNDS = 7
"""Counted steps of each model."""


def time_runs(runs: Mapping[str, TrainSettings], corpus: Corpus, device: torch.device, bar: Bar) -> dict[str, Any]:
    """The first steps of each run in turn; the weights are thrown away."""
    with TemporaryDirectory(prefix="pmlm-timing-") as folder, bar("steps", len(runs) * (ROUNDS + 1)) as advance:
        begun = {name: Run(run, corpus, Path(folder) / name, device=device) for name, run in runs.items()}
        return step_seconds({name: run.trainer.run() for name, run in begun.items()}, ROUNDS, advance)


def step_seconds(
    steps: Mapping[str, Iterator[StepReport]], rounds: int, advance: Callable[[int], None]
) -> dict[str, dict[str, Any]]:
    """By model: the median seconds of a step and of a token. A first round, which warms up, is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    tokens: dict[str, list[int]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, run in steps.items():
            report = next(run)
            seconds[name].append(report.seconds)
            tokens[name].append(report.tokens)
            advance(1)
    return {
        name: {
            "step_seconds": statistics.median(seconds[name][1:]),
            "token_seconds": statistics.median(seconds[name][1:]) * rounds / (tokens[name][-1] - tokens[name][0]),
        }
        for name in steps
    }
