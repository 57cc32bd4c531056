"""Fine-tuning on GLUE: each task by itself, all at once (joint), or after other tasks (intermediate).

Sharing data among tasks is what the paper's u-PMLM-R* does. Intermediate: the backbone is first fine-tuned on some
tasks, jointly where there are several, and every other run starts from there. Joint: one model with a head per task.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pmlm.config import to_dict
from pmlm.errors import DataError, RunError
from pmlm.nlu.exams import GlueExam
from pmlm.nlu.finetuned import Start, load_start
from pmlm.nlu.framing import frame_texts
from pmlm.nlu.glue import Example, GlueData, loose_key
from pmlm.nlu.lessons import Lesson
from pmlm.nlu.run import FinetuneRun
from pmlm.nlu.settings import FinetuneSettings
from pmlm.nlu.study import Drive, Outcome, drive_quietly, run_seeds, summary
from pmlm.training.distributed import Ranks
from pmlm.training.loop import MODEL


@dataclass(frozen=True)
class GlueStudy:
    """What is to be run."""

    start: Start
    settings: FinetuneSettings
    folder: Path
    device: torch.device
    seeds: tuple[int, ...] = (1,)
    joint: bool = False
    ranks: Ranks = field(default_factory=Ranks)

    def run(
        self, data: Sequence[GlueData], intermediate: Sequence[GlueData] = (), drive: Drive = drive_quietly
    ) -> dict[str, Any]:
        """Run everything that can be run; the report says what could not."""
        if not any(d.can_train for d in data):
            notes = [note for d in data for note in d.notes]
            raise DataError(f"nothing can be trained on: {'; '.join(notes)}")
        if intermediate and not any(d.can_train for d in intermediate):
            notes = [note for d in intermediate for note in d.notes]
            raise DataError(f"no intermediate task can be trained on: {'; '.join(notes)}")
        sharing = self.joint or bool(intermediate)
        everything = _unique([*intermediate, *data])
        clean = {d.task.name: d for d in (without_held(everything) if sharing else everything)}
        start, before = self._after([clean[d.task.name] for d in intermediate if d.can_train], drive)
        ready = [clean[d.task.name] for d in data if d.can_train]
        groups = [("joint", ready)] if self.joint else [(d.task.name, [d]) for d in ready]
        tasks: dict[str, Any] = {}
        for name, members in groups:
            outcomes = self._runs(name, start, members, drive)
            for d in members:
                tasks[d.task.name] = summary(d.task.name, list(d.task.dev), outcomes)
        return {
            **self.heading(intermediate),
            "tasks": tasks,
            **({"before": before} if before else {}),
            "not_run": {d.task.name: list(d.notes) for d in _unique([*intermediate, *data]) if not d.can_train},
            "notes": [note for d in clean.values() for note in d.notes],
        }

    def heading(self, intermediate: Sequence[GlueData] = ()) -> dict[str, Any]:
        """What is known of the report before anything is run."""
        return {
            "model": self.start.name,
            "weights": self.start.fingerprint,
            "sharing": "joint" if self.joint else "intermediate" if intermediate else "none",
            "intermediate": [d.task.name for d in intermediate if d.can_train],
            "seeds": list(self.seeds),
            "settings": to_dict(self.settings),
        }

    def _after(self, members: list[GlueData], drive: Drive) -> tuple[Start, dict[str, Any]]:
        """Where the runs begin: the model itself, or what became of it on other tasks; and how it did on these."""
        if not members:
            return self.start, {}
        name = "intermediate-" + "-".join(d.task.name for d in members)
        outcomes = run_seeds(lambda seed: self._run(name, self.start, members, seed), self.seeds[:1], drive)
        folder = self.folder / name / f"seed-{self.seeds[0]}"
        if outcomes[0].step is None:
            raise RunError(f"the intermediate run {folder} {next(iter(outcomes[0].failed.values()))}")
        start = load_start(folder / MODEL)
        before = {d.task.name: summary(d.task.name, list(d.task.dev), outcomes) for d in members}
        return replace(start, name=f"{self.start.name} after {', '.join(d.task.name for d in members)}"), before

    def _runs(self, name: str, start: Start, members: list[GlueData], drive: Drive) -> list[Outcome]:
        return run_seeds(lambda seed: self._run(name, start, members, seed), self.seeds, drive)

    def _run(self, name: str, start: Start, members: list[GlueData], seed: int) -> FinetuneRun:
        settings = replace(self.settings, seed=seed)
        prepared = {d.task.name: prepare_task(d, start, settings) for d in members}
        return FinetuneRun(
            f"{name} seed {seed}",
            start,
            [lesson for lesson, _ in prepared.values()],
            {task: exam for task, (_, exam) in prepared.items()},
            settings,
            self.folder / name / f"seed-{seed}",
            device=self.device,
            ranks=self.ranks,
        )


def prepare_task(data: GlueData, start: Start, settings: FinetuneSettings) -> tuple[Lesson, GlueExam]:
    """A task's training file as a lesson, its dev files as an exam."""
    assert data.train is not None
    config = start.backbone.config
    length = settings.row_length(config)
    spec = replace(data.task.head(settings.head_pooling(config), linear=settings.frozen), length=length)

    def rows_and_labels(examples: Sequence[Example]) -> tuple[list[Any], list[float]]:
        labels = [e.label for e in examples if e.label is not None]
        return frame_texts([e.texts for e in examples], start.tokenizer, length), labels

    if not data.train.examples:
        raise DataError(f"{data.task.name}: nothing is left to train on ({'; '.join(data.notes)})")
    rows, labels = rows_and_labels(data.train.examples)
    exam = GlueExam(data.task, spec, {part: rows_and_labels(split.examples) for part, split in data.dev.items()})
    return Lesson(spec, rows, torch.tensor(labels)), exam


def without_held(data: Sequence[GlueData]) -> list[GlueData]:
    """Where tasks share data, none is trained on what one of them holds for dev or test, however that is written."""
    held = {loose_key(e) for d in data for split in (*d.dev.values(), *d.test.values()) for e in split.examples}
    clean = []
    for d in data:
        if d.train is None:
            clean.append(d)
            continue
        kept = [e for e in d.train.examples if loose_key(e) not in held]
        dropped = len(d.train.examples) - len(kept)
        note = (f"{d.task.name}: {dropped} training examples are in dev or test of these tasks: left out",)
        clean.append(replace(d, train=replace(d.train, examples=kept), notes=d.notes + note * bool(dropped)))
    return clean


def _unique(data: Iterable[GlueData]) -> list[GlueData]:
    return list({d.task.name: d for d in data}.values())
