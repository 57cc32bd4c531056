"""What every study shares: results that say where they come from, and runs that go on after they were stopped.

A study is a sequence of named measurements. Each is written down the moment it is made, beside the file that the study
will become; a second run with the same settings takes what is there and goes on.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pmlm.corpus.framing import Row
from pmlm.errors import ConfigError, DataError
from pmlm.evaluation import Scorer, silent, sum_figures
from pmlm.keeping import git_commit, machine, write_text
from pmlm.lm import LM
from pmlm.model.checkpoint import read_config
from pmlm.orders import Order

P = ParamSpec("P")
T = TypeVar("T")
Advance = Callable[[int], None]
TRAINING = ("steps", "tokens_seen", "tokens_before", "heldout_bits_per_byte")
"""How far a model was trained: what another state of the same run differs in, whatever its weights are stored as."""


class Notes:
    """Measurements by name. `path` None keeps them in memory alone."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.known: dict[str, Any] = {}
        begin = {"settings": json.loads(json.dumps(settings))}
        if path is None:
            return
        lines = _read_lines(path) if path.is_file() else []
        if not lines:
            write_text(path, json.dumps(begin) + "\n")
            return
        if lines[0] != begin:
            raise ConfigError(f"{path} was begun with other settings: remove it, or give another --out")
        self.known = {line["name"]: line["value"] for line in lines[1:]}
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))  # without a last line that was cut off

    def get(self, name: str, measure: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What was measured under this name; measured now where it was not."""
        if name not in self.known:
            value = json.loads(json.dumps(measure(*args, **kwargs)))  # the same whether measured now or read back
            self.known[name] = value
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps({"name": name, "value": value}) + "\n")
        return self.known[name]


def _read_lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the last line of a run that was killed
    return found


def notes_path(out: Path) -> Path:
    return out.with_name(f".{out.stem}.part.jsonl")


def write_document(out: Path, document: Mapping[str, Any]) -> None:
    """The finished study, in one step; its notes are not needed any more."""
    write_text(out, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    notes_path(out).unlink(missing_ok=True)


def read_document(path: Path) -> dict[str, Any]:
    """A finished study."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON document: {error}") from None
    if not isinstance(document, dict) or "study" not in document:
        raise DataError(f"{path} is no study: see `pmlm bench --help` for the commands that make one")
    return document


def exact_in_parts(
    scorer: Scorer,
    rows: Sequence[Row],
    order: Order,
    notes: Notes,
    name: str,
    advance: Advance = silent,
    chunk: int = 8,
) -> dict[str, Any]:
    """The exact figure along an order, with a note for every few rows: some orders take long.

    The rows' own nats are kept, so that orders which scored the same rows can be compared row by row.
    """
    nats: list[float] = []
    for start in range(0, len(rows), chunk):
        part = rows[start : start + chunk]
        nats += notes.get(f"{name}/{start}", scorer.exact_nll, part, order, first=start)
        advance(len(part))
    return {
        **sum_figures(rows, nats).to_dict(),
        "row_nll": [round(value, 4) for value in nats],
        "row_documents": [row.document for row in rows],
        "row_tokens": [row.num_tokens for row in rows],
    }


def run_study(
    name: str,
    out: Path,
    lm: LM,
    text: Path,
    settings: Mapping[str, Any],
    command: str,
    work: Callable[[Notes], dict[str, Any]],
    beside: Mapping[str, object] | None = None,
    grow: Callable[[Notes, dict[str, Any]], dict[str, Any]] | None = None,
    **others: object,
) -> dict[str, Any]:
    """Make a study's document and write it; a run that was stopped goes on where it was.

    `others` are what else decides the figures (the judge): notes of other ones are not taken. `beside`: what is
    measured beside the model, under names of its own in the notes. `grow`: makes the result of a study that stands
    finished at `out` into this one, so that what comes beside later costs nothing but itself.
    """
    about = {"file": text.name, "sha256": hashlib.sha256(text.read_bytes()).hexdigest()}
    where = provenance(lm, command)
    decides = {"study": name, "settings": settings, "text": about, "model": where["model"], **others}
    known = None if grow is None else _finished(out, decides)
    notes = Notes(notes_path(out), decides)
    origin: dict[str, Any] = {"provenance": where}
    if grow is None or known is None:
        result = work(notes)
    else:
        result = grow(notes, known["result"])
        origin = {"provenance": known["provenance"], "added": where}
    document = {"study": name, **origin, "text": about, **others, **(beside or {}), "result": result}
    write_document(out, document)
    return document


def _finished(out: Path, decides: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document at `out`, where all that decides its figures is the same."""
    if not out.is_file():
        return None
    document = read_document(out)
    there = {key: document.get(key) for key in decides if key not in ("settings", "model")}
    there |= {"settings": document["result"].get("settings"), "model": document["provenance"]["model"]}
    return document if there == json.loads(json.dumps(decides)) else None


def provenance(lm: LM, command: str) -> dict[str, Any]:
    """Where figures come from."""
    return {
        "command": command,
        "commit": git_commit(),
        "model": model_identity(lm),
        "machine": machine(),
    }


def model_identity(lm: LM) -> dict[str, Any]:
    """What a model is, so that it can be known again."""
    weights = None if lm.folder is None else read_config(lm.folder).get("weights_sha256")
    trained = {key: lm.about[key] for key in TRAINING if key in lm.about}
    return {**lm.describe(), **trained, "weights_sha256": weights, "tokenizer": lm.tokenizer.fingerprint}
