"""Options and habits that the commands share."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from pmlm.errors import DataError

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        help="Checkpoint folder. Without it: PMLM_MODEL, else the model inside the package.",
        metavar="DIR",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")]
VisibilityOption = Annotated[
    str | None,
    typer.Option(
        "--visibility", help="bidirectional, order-causal, … as the model was trained for. Without it: its default."
    ),
]
EngineOption = Annotated[
    str, typer.Option("--engine", help="torch, or onnx: the graph in a folder made by `pmlm export`.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 …")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads. Without it: torch's choice.")]
SetsOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override a setting: optim.lr=0.0002", metavar="NAME=VALUE")
]
RunOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="The run's folder. Without it: runs/PRESET.", metavar="DIR")
]
TokensOption = Annotated[int | None, typer.Option("--tokens", help="Train on about so many tokens instead.")]
VocabularyOption = Annotated[
    Path | None,
    typer.Option("--tokenizer", "-t", help="Folder with the vocabulary, where that is another.", metavar="DIR"),
]


def use_threads(threads: int | None) -> None:
    """As `--threads` says."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=_is_plain(), indent=2))


def print_json_line(document: Any) -> None:
    """One document on one line, out at once."""
    print(json.dumps(document, ensure_ascii=_is_plain(), separators=(",", ":")), flush=True)


def _is_plain() -> bool:
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"


def read_records(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """The named fields of a JSON-lines file, in the order of their names here; `-` is stdin."""
    from pmlm.corpus.documents import read_text

    text = read_argument("-") if str(path) == "-" else read_text(path)
    records: list[dict[str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            found = {name: record[name] for name in (*needed, *optional) if name in needed or name in record}
        except (ValueError, RecursionError, TypeError, KeyError):
            raise DataError(f"{path}, line {number}: no JSON object with {', '.join(needed)}") from None
        if not all(isinstance(value, str) for value in found.values()):
            raise DataError(f"{path}, line {number}: {', '.join(found)} must be texts")
        records.append(found)
    if not records:
        raise DataError(f"{path} holds no lines")
    return records


def talk(message: str, *, quiet: bool, logged: bool = False) -> None:
    """A line for a person who is looking on; `logged`: and for one who reads it later in a file."""
    if not quiet and (logged or sys.stderr.isatty()):
        print(message, file=sys.stderr, flush=True)


def read_argument(text: str) -> str:
    """A text given on the command line; `-` reads it from stdin, without the last line end."""
    if text != "-":
        return text
    try:
        read = sys.stdin.read() if sys.stdin is not None else ""
    except (UnicodeDecodeError, OSError, ValueError) as error:
        raise DataError(f"cannot read stdin: {error}") from None
    return read.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")


class Advance(Protocol):
    def __call__(self, steps: int = 1, /) -> None: ...


def _no_advance(_steps: int = 1, /) -> None:
    pass


@contextmanager
def progress_bar(title: str, total: int, *, quiet: bool) -> Iterator[Advance]:
    """A bar on stderr where that is a terminal, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield _no_advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps=1, /: bar.advance(task, steps)


@contextmanager
def reading_bar(first: str, second: str, *, quiet: bool) -> Iterator[Callable[[int, int, float], None]]:
    """A bar for the share of what is read, with two running counts; on a terminal's stderr, and nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda _first, _second, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = f"{{task.fields[one]:,}} {first}  {{task.fields[two]:,}} {second}"
    columns = (BarColumn(), TaskProgressColumn(), TextColumn(text), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, one=0, two=0)
        counts = [0, 0]

        def advance(one: int, two: int, share: float) -> None:
            counts[0] += one
            counts[1] += two
            bar.update(task, completed=share, one=counts[0], two=counts[1])

        yield advance
