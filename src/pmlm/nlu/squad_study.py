"""Fine-tuning on SQuAD 2.0: the full protocol where both official files are given, a reduced one by article otherwise.

The reduced protocol takes whole articles of one labelled file to measure on and trains on the others, with whatever
else is given; nothing that shares an article or a paragraph with what is measured on is trained on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pmlm.config import to_dict
from pmlm.errors import ConfigError, DataError
from pmlm.keeping import write_text
from pmlm.model import HeadSpec
from pmlm.nlu.exams import SquadExam, answered, find_all
from pmlm.nlu.finetuned import Start, load_finetuned
from pmlm.nlu.lessons import Lesson
from pmlm.nlu.run import FinetuneRun
from pmlm.nlu.settings import FinetuneSettings
from pmlm.nlu.squad import PUBLISHED_DEV, PUBLISHED_TRAIN, Question, read_squad, split_by_article, without_shared
from pmlm.nlu.study import Drive, drive_quietly, run_seeds, summary
from pmlm.nlu.windows import cut_questions, target_slots
from pmlm.training.distributed import Ranks

NAME = "SQuAD"
TRAIN_SHARE = 0.6
"""Of the articles of a file that is split."""
PREDICTIONS = ("predictions.json", "null_odds.json", "nbest.json")


@dataclass(frozen=True)
class SquadData:
    train: list[Question]
    dev: list[Question]
    protocol: str
    notes: tuple[str, ...] = ()


def load_squad(
    train: Sequence[Path], dev: Path | None, split: Path | None, train_share: float | None = None
) -> SquadData:
    """Training files with a dev file, or with a file whose articles are split: `train_share` of them to train on."""
    if (dev is None) == (split is None):
        raise DataError("SQuAD is measured on a dev file, or on articles split off from a file: give one of the two")
    if split is None and train_share is not None:
        raise DataError("a share of the articles to train on goes with a file that is split")
    train_share = TRAIN_SHARE if train_share is None else train_share
    if not 0 < train_share < 1:
        raise DataError(f"the share of the articles to train on must be between 0 and 1, got {train_share}")
    notes: list[str] = []

    def read(path: Path) -> list[Question]:
        found = read_squad(path)
        if found.broken:
            notes.append(f"{path.name}: {found.broken} questions left out, their answer is not where the file says")
        return found.questions

    given = {q.id: q for path in train for q in read(path)}
    if split is not None:
        ours, held = split_by_article(read(split), train_share)
        given |= {q.id: q for q in ours}
        notes.append(
            f"{split.name}: {len(ours):,} questions to train on, {len(held):,} of other articles to measure on"
        )
    else:
        assert dev is not None
        held = read(dev)
    kept, dropped = without_shared(given.values(), held)
    if dropped:
        notes.append(f"{dropped:,} training questions share an article or a paragraph with dev: left out")
    if not kept:
        raise DataError("no question is left to train on: " + "; ".join(notes or ["no training file was given"]))
    is_full = split is None and len(kept) == PUBLISHED_TRAIN and len(held) == PUBLISHED_DEV
    protocol = "full" if is_full else f"reduced: {len(kept):,} questions to train on, {len(held):,} to measure on"
    return SquadData(kept, held, protocol, tuple(notes))


def prepare_squad(data: SquadData, start: Start, settings: FinetuneSettings) -> tuple[Lesson, SquadExam]:
    if settings.pooling != "auto" or settings.shuffle_labels:
        raise ConfigError("pooling and shuffle_labels are for GLUE: an answer is looked for at every slot")
    length, windows = settings.row_length(start.backbone.config), settings.windows
    spec = HeadSpec(
        name=NAME, kind="span", is_pair=True, length=length, stride=windows.stride, question=windows.question,
        answer=windows.answer,
    )  # fmt: skip
    train = cut_questions(data.train, start.tokenizer, length, windows)
    targets = torch.tensor([slots for asked in train for slots in target_slots(asked)])
    lesson = Lesson(spec, [window.row for asked in train for window in asked.windows], targets)
    dev = cut_questions(data.dev, start.tokenizer, length, windows)
    return lesson, SquadExam(spec, dev, windows)


def run_squad(
    data: SquadData,
    start: Start,
    settings: FinetuneSettings,
    folder: Path,
    *,
    device: torch.device,
    seeds: Sequence[int],
    ranks: Ranks | None = None,
    drive: Drive = drive_quietly,
) -> dict[str, Any]:
    lesson, exam = prepare_squad(data, start, settings)
    lesson = lesson.some(settings.train_rows)
    about, group = {"protocol": data.protocol}, ranks or Ranks()

    def make(seed: int) -> FinetuneRun:
        own = replace(settings, seed=seed)
        where = folder / NAME / f"seed-{seed}"
        return FinetuneRun(
            f"{NAME} seed {seed}", start, [lesson], {NAME: exam}, own, where, device=device, ranks=group, about=about
        )

    outcomes = run_seeds(make, seeds, drive)
    report = {
        "model": start.name,
        "weights": start.fingerprint,
        "protocol": data.protocol,
        "seeds": list(seeds),
        "settings": to_dict(settings),
        "windows_to_train_on": len(lesson.rows),
        "tasks": {NAME: summary(NAME, [NAME], outcomes)},
        "not_run": {},
        "notes": list(data.notes),
    }
    best = report["tasks"][NAME].get("best_model")  # type: ignore[index]
    if best is not None and group.is_main and not (Path(best).parent / PREDICTIONS[-1]).is_file():
        write_predictions(Path(best), exam, device)
    return report


def write_predictions(folder: Path, exam: SquadExam, device: torch.device) -> None:
    """Beside the model: what the official script reads, how sure "no answer" is, and the best answers."""
    lm = load_finetuned(folder, device=str(device))
    found = find_all(lm.model, NAME, exam.asked, lm.tokenizer.pad_id, exam.windows)
    documents: list[dict[str, Any]] = [
        answered(found, lm.model.specs[NAME].threshold),
        {key: f.no_answer for key, f in found.items()},
        {key: [vars(c) for c in f.best] for key, f in found.items()},
    ]
    for name, document in zip(PREDICTIONS, documents, strict=True):
        write_text(folder.parent / name, json.dumps(document, ensure_ascii=False) + "\n")
