"""GLUE's files: the official TSV layout with its quirks, from a local folder; every part that is missing is noted.

Quotes mean nothing in these files, lines end at a line feed alone, CoLA's labelled files have no header, some begin
with a byte-order mark, and a few rows have lost a column. Columns are found by their names. An example of the training
file that also stands in the dev or test files is left out, and counted.
"""

import hashlib
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pmlm.corpus.documents import read_text
from pmlm.errors import DataError
from pmlm.nlu.tasks import GlueTask


@dataclass(frozen=True)
class Example:
    id: str
    texts: tuple[str, ...]
    label: float | None = None
    """The number of the class, or the number itself."""


@dataclass(frozen=True)
class Split:
    examples: list[Example]
    broken: int = 0
    """Rows that were left out: a column or the label is missing."""


@dataclass(frozen=True)
class GlueData:
    task: GlueTask
    train: Split | None
    dev: Mapping[str, Split]
    test: Mapping[str, Split]
    notes: tuple[str, ...] = ()
    """What is missing, incomplete or left out, for the report."""

    @property
    def can_train(self) -> bool:
        return self.train is not None and bool(self.dev)


def load_glue(task: GlueTask, folder: Path) -> GlueData:
    """What the folder has of a task."""
    if not folder.is_dir():
        raise DataError(f"no data folder {folder}")
    notes: list[str] = []

    def read(names: Sequence[str], what: str, *, labelled: bool) -> Split | None:
        path = find_file(folder, names)
        if path is None:
            notes.append(f"{task.name}: {what} is missing ({names[0]})")
            return None
        return parse_tsv(read_text(path), task, labelled=labelled, where=str(path))

    train = read(task.train, "train", labelled=True)
    dev = {name: read(files, f"{name} dev", labelled=True) for name, files in task.dev.items()}
    test = {name: read(files, f"{name} test", labelled=False) for name, files in task.test.items()}
    return assemble(task, train, _present(dev), _present(test), notes)


def assemble(
    task: GlueTask, train: Split | None, dev: Mapping[str, Split], test: Mapping[str, Split], notes: Iterable[str]
) -> GlueData:
    """Splits of a task together: training examples that others hold are dropped, sizes are compared."""
    said = list(notes)
    found = {f"{name} dev": split for name, split in dev.items()} | {f"{n} test": s for n, s in test.items()}
    if train is not None:
        found = {"train": train, **found}
        held = {fingerprint(e) for split in (*dev.values(), *test.values()) for e in split.examples}
        kept = [e for e in train.examples if fingerprint(e) not in held]
        if len(kept) < len(train.examples):
            said.append(
                f"{task.name}: {len(train.examples) - len(kept)} training examples are in dev or test: left out"
            )
        train = replace(train, examples=kept)
    for what, split in found.items():
        if split.broken:
            said.append(f"{task.name}: {split.broken} broken rows of {what} left out")
        if len(split.examples) != task.sizes[what]:
            said.append(
                f"{task.name}: {what} has {len(split.examples):,} examples, not the {task.sizes[what]:,} published"
            )
    return GlueData(task, train, dev, test, tuple(said))


def fingerprint(example: Example) -> str:
    """Of the texts, without regard to case and spacing."""
    plain = "\x1f".join(" ".join(text.casefold().split()) for text in example.texts)
    return hashlib.blake2b(plain.encode(), digest_size=16).hexdigest()


def loose_key(example: Example) -> tuple[str, ...]:
    """Of the letters and digits of the texts, in any order of the texts: the same pair as two tasks write it.

    STS-B took pairs from MRPC and wrote their quotes and spaces in its own way. Within a task `fingerprint` decides:
    there a comma may be what an example is about (CoLA).
    """
    plain = (unicodedata.normalize("NFKC", text).casefold() for text in example.texts)
    return tuple(sorted("".join(c for c in text if c.isalnum()) or text for text in plain))


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of the files that is there, packed by xz or not."""
    return next((path for name in names for path in (folder / name, folder / f"{name}.xz") if path.is_file()), None)


def parse_tsv(text: str, task: GlueTask, *, labelled: bool, where: str) -> Split:
    rows = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    columns, first = _columns(rows[0], task, labelled, where)
    wanted = [columns.index(name) for name in task.texts]
    label_at = columns.index(task.label) if labelled else None
    id_at = next((columns.index(name) for name in ("index", "id") if name in columns), None)
    examples: list[Example] = []
    broken = 0
    for number, row in enumerate(rows[first:]):
        if len(row) != len(columns) or (label_at is not None and row[label_at] == "-"):  # "-": the annotators disagree
            if not labelled:
                raise DataError(f"{where}, line {number + first + 1}: {len(row)} columns, not {len(columns)}")
            broken += 1
            continue
        label = None if label_at is None else parse_label(row[label_at], task, f"{where}, line {number + first + 1}")
        key = str(number) if id_at is None else row[id_at]
        examples.append(Example(key, tuple(row[i].strip() for i in wanted), label))
    if not examples:
        raise DataError(f"{where} holds no examples")
    return Split(examples, broken)


def parse_label(text: str, task: GlueTask, where: str) -> float:
    if text in task.labels:
        return task.labels.index(text)
    if task.is_number:
        low, high = task.scale
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if low <= value <= high:
            return value
    allowed = ", ".join(task.labels) or f"a number from {task.scale[0]:g} to {task.scale[1]:g}"
    raise DataError(f"{where}: {task.label} is {text!r}; {task.name} has {allowed}")


def _columns(head: list[str], task: GlueTask, labelled: bool, where: str) -> tuple[list[str], int]:
    """The columns, and the number of the first row of data."""
    wanted = [*task.texts, *([task.label] if labelled else [])]
    if all(name in head for name in wanted):
        return head, 1
    if task.headless and not set(wanted) & set(head):
        return list(task.headless), 0
    missing = [name for name in wanted if name not in head]
    raise DataError(f"{where} has no column {missing[0]!r}; its first line has {', '.join(map(repr, head[:12]))}")


def _present(splits: Mapping[str, Split | None]) -> dict[str, Split]:
    return {name: split for name, split in splits.items() if split is not None}
