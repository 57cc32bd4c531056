"""A fine-tuning run: lessons to learn from, exams on dev, and the best model exported with its heads."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pmlm.config import from_dict, to_dict
from pmlm.model import TaskModel, build_task_model
from pmlm.model.checkpoint import Checkpoint, save_checkpoint
from pmlm.nlu.exams import Exam, Mark, Scores
from pmlm.nlu.finetuned import Start
from pmlm.nlu.lessons import Finetuning, Lesson
from pmlm.nlu.settings import FinetuneSettings
from pmlm.runtime import generator, training_dtype, tune_allocator
from pmlm.tokenizer import Tokenizer
from pmlm.training.distributed import Ranks, from_main, spread_model
from pmlm.training.loop import MODEL, Pace, RunLoop, differences
from pmlm.training.plan import reading_flops
from pmlm.training.trainer import Trainer

SAVE_EVERY = 200
"""Steps: what a kill loses at most."""


class FinetuneRun(RunLoop[Scores, TaskModel]):
    """One run with one seed; iterate over `events()`."""

    lower_is_better = False

    def __init__(
        self,
        name: str,
        start: Start,
        lessons: Sequence[Lesson],
        exams: Mapping[str, Exam],
        settings: FinetuneSettings,
        folder: Path,
        *,
        device: torch.device,
        ranks: Ranks | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        tune_allocator()
        ranks = ranks or Ranks()
        self.settings, self.start, self.exams, self.about = settings, start, exams, dict(about or {})
        config = start.backbone.config
        if settings.dropout is not None:
            config = replace(config, dropout=settings.dropout)
        lessons = [lesson.some(settings.train_rows) for lesson in lessons]
        if settings.shuffle_labels:
            lessons = [lesson.shuffled(settings.seed) for lesson in lessons]
        specs = [lesson.spec for lesson in lessons]
        model = build_task_model(
            start.backbone, specs, generator(settings.seed, "init"), config=config, frozen=settings.frozen
        )
        self.job = Finetuning(
            lessons,
            config,
            pad_id=start.tokenizer.pad_id,
            seed=settings.seed,
            batch_rows=settings.batch_rows,
            micro_rows=settings.micro_rows,
            sampling=settings.sampling,
            device=device,
        )
        epoch = self.job.steps_per_epoch
        num_steps = settings.num_steps or max(1, round(settings.epochs * epoch))
        num_steps = min(num_steps, settings.most_steps or num_steps)
        trainer = Trainer(
            spread_model(model.to(device), ranks, "ddp", device, partly_used=len(specs) > 1),
            self.job,
            settings.optimizer(num_steps),
            num_steps=num_steps,
            seed=settings.seed,
            layer_decay=settings.layer_decay,
            ranks=ranks,
            autocast=training_dtype(settings.precision, device),
            device=device,
        )
        every = math.ceil(min(epoch, num_steps) / settings.evaluations)
        pace = Pace(
            num_steps=num_steps, evaluate_every=every, save_every=min(every, SAVE_EVERY), keep=1,
            patience=settings.patience,
        )  # fmt: skip
        super().__init__(name, folder, model, trainer, pace)
        self._examples = [{"rows": len(x.rows), "fingerprint": x.fingerprint()} for x in lessons]

    def evaluate(self, model: TaskModel) -> Scores:
        def take() -> dict[str, Mark]:
            return {name: exam.take(model, self.start.tokenizer.pad_id) for name, exam in self.exams.items()}

        return Scores(self.trainer.step, from_main(take, self.ranks))  # one verdict: ranks must stop together

    def export(self, model: TaskModel, measured: Scores) -> None:
        about = {
            "name": f"{self.start.name}, fine-tuned for {', '.join(measured.marks)}",
            "started_from": self.start.name,
            "seed": self.settings.seed,
            "steps": measured.step,
            "dev": measured.record()["dev"],
            **self.about,
        }
        save_task_model(self.folder / MODEL, model, self.start.tokenizer, about, measured.marks)

    def blank_model(self) -> TaskModel:
        return TaskModel(self.model.config, list(self.model.specs.values()))

    def document(self) -> dict[str, Any]:
        return {
            "settings": to_dict(self.settings),
            "start": {"name": self.start.name, "weights": self.start.fingerprint},
            "examples": {lesson.spec.name: self._examples[i] for i, lesson in enumerate(self.job.lessons)},
            "exams": {name: exam.fingerprint() for name, exam in self.exams.items()},
            "about": self.about,
        }

    def changed_settings(self, saved: dict[str, Any]) -> list[str]:
        free = {"micro_rows", "precision"}
        before = to_dict(from_dict(FinetuneSettings, saved["settings"]))
        changed = differences(before, to_dict(self.settings), free)
        now = self.document()
        known = {"exams": now["exams"], **saved}  # runs of before did not say what they were measured on
        return changed + [key for key in ("start", "examples", "exams") if known.get(key) != now[key]]

    def flops_per_token(self) -> float:
        return reading_flops(self.model.config, self.settings.row_length(self.model.config))


def save_task_model(
    folder: Path, model: TaskModel, tokenizer: Tokenizer, about: Mapping[str, Any], marks: Mapping[str, Mark]
) -> None:
    """A checkpoint with the heads as the exams left them."""
    for name, mark in marks.items():
        model.specs[name] = mark.spec
    card = f"# {about['name']}\n\n```json\n{json.dumps(about, indent=2)}\n```\n"
    save_checkpoint(
        folder, Checkpoint(model, about), card=card, add_files=tokenizer.save, vocabulary=tokenizer.fingerprint
    )
