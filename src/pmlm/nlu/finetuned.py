"""A fine-tuned model for people: the class of a text or a pair of texts, the answer to a question.

Also where fine-tuning begins: the backbone of any checkpoint, fine-tuned before or not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pmlm.errors import CheckpointError, ConfigError, DataError
from pmlm.lm import LM, default_model_folder, describe, load
from pmlm.model import Backbone, HeadSpec, TaskModel
from pmlm.model.checkpoint import load_checkpoint, load_task_checkpoint, read_config
from pmlm.nlu.exams import find_all
from pmlm.nlu.framing import frame_texts
from pmlm.nlu.predict import decide, predict
from pmlm.nlu.squad import Question
from pmlm.nlu.windows import WindowSettings, cut_questions
from pmlm.runtime import pick_device
from pmlm.tokenizer import Tokenizer, load_tokenizer
from pmlm.writer import check_text

CLASSIFY = ("classes", "number")
"""Kinds of heads that a text or a pair is given to."""
ANSWER = ("span",)
"""Kinds of heads that a question is given to."""


@dataclass(frozen=True)
class Classified:
    texts: list[str]
    task: str
    label: str | None
    """None where the task asks for a number."""
    value: float
    """The probability of the label, or the number."""
    probs: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        says = {"label": self.label, "prob": self.value, "probs": self.probs} if self.label else {"value": self.value}
        return {"texts": self.texts, "task": self.task, **says}


@dataclass(frozen=True)
class Span:
    text: str
    start: int
    end: int
    """Characters of the context."""
    prob: float
    """Among the spans that are listed and no answer."""


@dataclass(frozen=True)
class Answered:
    question: str
    answer: str | None
    """None: the context does not answer it."""
    no_answer: float
    """How much "no answer" scores above the best span (infinitely, where there is none); None is said where this
    exceeds the threshold."""
    threshold: float
    spans: list[Span]

    def to_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "answer": self.answer,
            "no_answer": self.no_answer if math.isfinite(self.no_answer) else None,  # JSON has no infinity
            "threshold": self.threshold,
            "spans": [vars(span) for span in self.spans],
        }


class Finetuned:
    """A model with heads and its tokenizer."""

    def __init__(self, model: TaskModel, tokenizer: Tokenizer, about: dict[str, Any], folder: Path | None) -> None:
        self.model, self.tokenizer, self.about, self.folder = model, tokenizer, about, folder

    def has_head(self, kinds: Sequence[str]) -> bool:
        """Whether it was fine-tuned for a task of these kinds."""
        return any(spec.kind in kinds for spec in self.model.specs.values())

    def row_length(self, spec: HeadSpec) -> int:
        """The most slots of a row, as the head was measured with."""
        return spec.length or self.model.config.max_length

    def describe(self) -> dict[str, Any]:
        """What it is, in plain data."""
        return describe(self.model, self.tokenizer, self.about, self.folder)

    def tasks(self) -> list[dict[str, Any]]:
        """What it was fine-tuned for, in plain data."""
        reads = {spec.name: 2 if spec.is_pair or spec.kind in ANSWER else 1 for spec in self.model.specs.values()}
        return [
            {"name": spec.name, "kind": spec.kind, "texts": reads[spec.name], "labels": list(spec.labels)}
            for spec in self.model.specs.values()
        ]

    def classify(self, text: str, second: str | None = None, *, task: str | None = None) -> Classified:
        """The class (or number) of a text, or of a pair; `task` where the model has several heads."""
        return self.classify_batch([(text,) if second is None else (text, second)], task=task)[0]

    def classify_batch(self, texts: Sequence[Sequence[str]], *, task: str | None = None) -> list[Classified]:
        spec = self._spec(task, CLASSIFY)
        wanted = 2 if spec.is_pair else 1
        for group in texts:
            if len(group) != wanted:
                raise DataError(f"{spec.name} reads {wanted} text{'s' * (wanted > 1)} at a time, got {len(group)}")
            for text in group:
                check_text(text)
        if not texts:
            return []
        rows = frame_texts(texts, self.tokenizer, self.row_length(spec))
        said = predict(self.model, spec.name, rows, self.tokenizer.pad_id)
        values = decide(spec, said)
        if spec.kind == "number":
            return [Classified(list(t), spec.name, None, v) for t, v in zip(texts, values, strict=True)]
        results = []
        for group, out, value in zip(texts, said, values, strict=True):
            probs = dict(zip(spec.labels, out.softmax(0).tolist(), strict=True))
            label = spec.labels[int(value)]
            results.append(Classified(list(group), spec.name, label, probs[label], probs))
        return results

    def answer(
        self, question: str, context: str, *, num: int = 3, threshold: float | None = None, task: str | None = None
    ) -> Answered:
        """A stretch of the context that answers the question, or none; with the best `num` spans."""
        return self.answer_batch([(question, context)], num=num, threshold=threshold, task=task)[0]

    def answer_batch(
        self,
        asked: Sequence[tuple[str, str]],
        *,
        num: int = 3,
        threshold: float | None = None,
        task: str | None = None,
    ) -> list[Answered]:
        spec = self._spec(task, ANSWER)
        if num < 1:
            raise ConfigError(f"num must be at least 1, got {num}")
        if threshold is not None and not math.isfinite(threshold):
            raise ConfigError(f"the threshold must be a finite number, got {threshold}")
        for texts in asked:
            for text in texts:
                check_text(text)
        limit = spec.threshold if threshold is None else threshold
        questions = [Question(str(i), question, context, ()) for i, (question, context) in enumerate(asked)]
        usual = WindowSettings()
        windows = WindowSettings(
            question=spec.question or usual.question, stride=spec.stride or usual.stride,
            answer=spec.answer or usual.answer, best=max(num, usual.best),
        )  # fmt: skip
        cut = cut_questions(questions, self.tokenizer, self.row_length(spec), windows)
        found = find_all(self.model, spec.name, cut, self.tokenizer.pad_id, windows)
        results = []
        for question in questions:
            said = found[question.id]
            shown = said.best[:num]
            scores = torch.tensor([*(c.score for c in shown), said.none_score])
            spans = [
                Span(c.text, c.start, c.end, prob)
                for c, prob in zip(shown, scores.softmax(0).tolist()[:-1], strict=True)
            ]
            answer = said.best[0].text if said.best and said.no_answer <= limit else None
            results.append(Answered(question.text, answer, said.no_answer, limit, spans))
        return results

    def _spec(self, task: str | None, kinds: tuple[str, ...]) -> HeadSpec:
        fitting = {name: spec for name, spec in self.model.specs.items() if spec.kind in kinds}
        has = ", ".join(self.model.specs)
        if not fitting:
            command = "answer" if kinds == CLASSIFY else "classify"
            raise CheckpointError(f"{self.folder} is fine-tuned for {has}: use `pmlm {command}`")
        if task is None and len(fitting) > 1:
            raise DataError(f"the model knows several tasks: name one of {', '.join(fitting)}")
        if task is not None and task not in fitting:
            raise DataError(f"the model does not know the task {task!r}; it knows {', '.join(fitting)}")
        return fitting[task] if task is not None else next(iter(fitting.values()))


def load_finetuned(folder: str | Path, *, device: str = "auto") -> Finetuned:
    """A model that `pmlm finetune` wrote."""
    path = Path(folder)
    read_config(path)
    tokenizer = load_tokenizer(path)
    checkpoint = load_task_checkpoint(
        path, vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.fingerprint, mask_id=tokenizer.mask_id
    )
    checkpoint.model.to(pick_device(device))
    return Finetuned(checkpoint.model, tokenizer, dict(checkpoint.about), path)


def load_any(folder: str | Path | None = None, *, device: str = "auto", engine: str = "torch") -> LM | Finetuned:
    """A checkpoint as what it is: fine-tuned where it has heads, else a language model.

    Without a folder it is the default, as in `load`, and so is `engine`.
    """
    path = default_model_folder() if folder is None else Path(folder)
    if not read_config(path).get("heads"):
        return load(path, device=device, engine=engine)
    if engine != "torch":
        raise ConfigError(f"{path} is fine-tuned: such models are computed by torch, not by {engine}")
    return load_finetuned(path, device=device)


@dataclass(frozen=True)
class Start:
    """What fine-tuning starts from."""

    backbone: Backbone
    tokenizer: Tokenizer
    name: str
    fingerprint: str
    """Of the weights: a run does not go on from a checkpoint of another start."""


def load_start(folder: Path | None) -> Start:
    """The backbone of a checkpoint; of a fine-tuned one, its heads are left behind."""
    path = default_model_folder() if folder is None else folder
    document = read_config(path)
    tokenizer = load_tokenizer(path)
    load = load_task_checkpoint if document.get("heads") else load_checkpoint
    checkpoint = load(
        path, vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.fingerprint, mask_id=tokenizer.mask_id
    )
    name = str(checkpoint.about.get("name", path.name))
    return Start(checkpoint.model.backbone, tokenizer, name, str(document.get("weights_sha256")))
