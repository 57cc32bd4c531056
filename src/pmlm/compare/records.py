"""Results of a comparison: each is made once, by one process, and says where it comes from."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pmlm.errors import DataError
from pmlm.keeping import locked, made, write_text
from pmlm.training.settings import NOT_LEARNED

Record = dict[str, Any]


def once(path: Path, settings: Mapping[str, Any], make: Callable[[], Record], lock: Path) -> Record | None:
    """The record at `path`, made and written whole where it is not there yet. None: another process is at it.

    A record that was made under other settings is refused: rows of one table would not be of one protocol. Settings of
    a run (`run`) that change no figure may differ. A copy of another record says how that one was made.
    """
    if path.is_file():
        return _checked(path, settings)
    with locked(lock) as is_ours:
        if not is_ours:
            return None
        if path.is_file():
            return _checked(path, settings)
        origin = made()
        with timed(lock) as seconds:
            record = {"settings": dict(settings), **make()}
            record.setdefault("made", {**origin, "seconds": round(seconds(), 1)})
            write_text(path, json.dumps(record, indent=2) + "\n")
        return record


@contextlib.contextmanager
def timed(lock: Path) -> Iterator[Callable[[], float]]:
    """The seconds so far of a piece of work, those of earlier stretches that were stopped included."""
    path, began = lock.with_name(f"{lock.name}.seconds"), time.time()
    try:
        before = float(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = 0.0

    def seconds() -> float:
        return before + time.time() - began

    try:
        yield seconds
    except BaseException:
        write_text(path, f"{seconds():.1f}")
        raise
    path.unlink(missing_ok=True)


def amend(path: Path, key: str, entry: Record) -> Record:
    """Add to a list that the record at `path` holds."""
    record = read_record(path)
    record[key] = [*record.get(key, []), entry]
    write_text(path, json.dumps(record, indent=2) + "\n")
    return record


def read_record(path: Path) -> Record:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise ValueError("no JSON object")
        return record
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}): remove it to measure again") from None


def _checked(path: Path, settings: Mapping[str, Any]) -> Record:
    record = read_record(path)
    plain = json.loads(json.dumps(dict(settings)))
    changed = sorted(name for name in _differing(record.get("settings", {}), plain) if not _is_free(name))
    if changed:
        names = ", ".join(changed[:5]) + (" …" if len(changed) > 5 else "")
        raise DataError(f"{path} was made under other settings ({names}): remove it, or give another --out")
    return record


def _is_free(name: str) -> bool:
    """Whether a setting changes no figure. Which weights are exported does."""
    part, _, key = name.partition(".")
    return part == "run" and key.split(".")[0] in NOT_LEARNED and key != "saving.export"


def _differing(before: Mapping[Any, Any], now: Mapping[Any, Any], where: str = "") -> Iterator[str]:
    """Names of settings that both have, with different values."""
    for key in before.keys() & now.keys():
        a, b = before[key], now[key]
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            a, b = dict(enumerate(a)), dict(enumerate(b))
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differing(a, b, f"{where}{key}.")
        elif a != b:
            yield f"{where}{key}"
