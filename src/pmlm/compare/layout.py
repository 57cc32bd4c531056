"""Results as they lie in a folder, and cells, rows and tables in Markdown."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmlm.compare.arms import ARMS
from pmlm.compare.records import Record, read_record
from pmlm.compare.units import FOLDERS, TIMING
from pmlm.errors import DataError
from pmlm.keeping import markdown_table

Results = dict[str, list[Record]]
"""Records by folder; under "timing" the one of how long steps take, where it is there."""


def has_results(out: Path) -> bool:
    return any(any((out / folder).glob("*.json")) for folder in FOLDERS.values())


def read_results(out: Path) -> Results:
    if not has_results(out):
        raise DataError(f"{out} holds no results yet")
    results = {folder: [_known(path) for path in sorted((out / folder).glob("*.json"))] for folder in FOLDERS.values()}
    return results | {"timing": [read_record(out / TIMING)] if (out / TIMING).is_file() else []}


def _known(path: Path) -> Record:
    record = read_record(path)
    if record.get("model") not in ARMS:
        raise DataError(f"{path} is of no model that is compared: {record.get('model')!r}")
    return record


def in_order(records: Iterable[Record]) -> list[Record]:
    places = {name: i for i, name in enumerate(ARMS)}
    return sorted(records, key=lambda r: (places[r["model"]], r["seed"]))


def title(record: Record) -> str:
    return ARMS[record["model"]].title


def visibilities(figures: dict[str, Any]) -> list[str]:
    return [name for name, value in figures.items() if isinstance(value, dict)]


def titled(record: Record, visibility: str, figures: dict[str, Any]) -> str:
    """The model, and which of its visibilities where it has several."""
    return title(record) + (f", {visibility}" if len(visibilities(figures)) > 1 else "")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Empty where there are no rows."""
    lines = [list(row) for row in rows]
    if not lines:
        return ""
    table = markdown_table(header, lines)
    return f"{table}\n\n{note}" if note else table


@dataclass(frozen=True)
class Cell:
    value: float | None = None
    error: float | None = None
    digits: int = 1
    label: str = ""
    signed: bool = False

    def text(self) -> str:
        if self.value is None:
            return "–"
        error = "" if self.error is None else f" ± {self.error:.{self.digits}f}"
        value = f"{self.value:+.{self.digits}f}" if self.signed else f"{self.value:.{self.digits}f}"
        return value + error + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True)
class Line:
    """A row of a table before it is text."""

    title: str
    seed: int
    stage: tuple[str, ...]
    cells: list[Cell]
    end: list[str]


def with_means(lines: Iterable[Line]) -> list[list[str]]:
    """Rows as text; behind those of a model with several seeds, their mean ± standard deviation."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.title, *line.stage), []).append(line)
    rows = []
    for (name, *stage), group in groups.items():
        rows += [[name, str(x.seed), *stage, *(cell.text() for cell in x.cells), *x.end] for x in group]
        if len(group) > 1:
            means = [_mean(cells).text() for cells in zip(*(x.cells for x in group), strict=True)]
            rows.append([name, f"mean of {len(group)} ± deviation", *stage, *means, *group[0].end])
    return rows


def _mean(cells: Sequence[Cell]) -> Cell:
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) < len(cells):
        return Cell()
    return Cell(statistics.fmean(values), statistics.stdev(values), cells[0].digits, cells[0].label)


def perplexity(figure: dict[str, Any] | None, label: str = "") -> Cell:
    return Cell() if figure is None else Cell(figure["perplexity"], figure["perplexity_stderr"] or 0.0, label=label)


def bits(figure: dict[str, Any] | None) -> Cell:
    return Cell() if figure is None else Cell(figure["bits_per_byte"], figure.get("bits_per_byte_stderr"), digits=3)


def longest(figures: dict[str, float]) -> float:
    """Of figures by length, that of the greatest."""
    return figures[max(figures, key=int)]
