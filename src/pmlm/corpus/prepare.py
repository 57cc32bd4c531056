"""Documents -> token shards: filtered, split by document, encoded by several processes, restartable, deterministic.

Work is cut into parts of about `part_tokens` tokens. A finished part is on disk with its checksum and recorded; a run
that is started again skips the documents of finished parts. Which split a document belongs to follows from its text
alone, so copies of one text never stand on both sides.
"""

import hashlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pmlm.config import to_dict
from pmlm.corpus.documents import Document, Split, iter_documents, read_text
from pmlm.corpus.shards import (
    FORMAT,
    MANIFEST,
    Shard,
    SplitName,
    shard_dict,
    token_dtype,
    verify_shard,
    write_json,
    write_shard,
)
from pmlm.errors import ConfigError, DataError, RunError
from pmlm.keeping import file_sha256
from pmlm.tokenizer import Tokenizer, load_tokenizer

PARTIAL = "manifest.partial.json"
VOCAB_SIZE = 8192
"""Of a vocabulary that is learnt, where nothing else is asked for."""
_CHUNK = 64
_MOST_PROCESSES = 61
"""More cannot be waited for on Windows, and nothing is gained by more elsewhere: one process reads and writes."""
_GRAM = 13
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, kw_only=True)
class PrepareSettings:
    split: Split = "auto"
    field: str = "text"
    """jsonl: where the text stands."""
    heldout: float = 0.005
    """The share of documents held out."""
    min_chars: int = 40
    """Shorter documents are dropped."""
    max_overlap: float = 0.3
    """A document sharing more than this of its 13-word runs with the protected files is dropped."""
    part_tokens: int = 4_000_000
    vocab_size: int | None = None
    """Of a vocabulary that is learnt for the folder, as it was asked for; none where one is given."""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout < 1:
            raise ConfigError(f"heldout must be in [0, 1), got {self.heldout}")
        if not 0 <= self.max_overlap <= 1:
            raise ConfigError(f"max_overlap must be in [0, 1], got {self.max_overlap}")
        if self.part_tokens < 1:
            raise ConfigError(f"part_tokens must be at least 1, got {self.part_tokens}")
        if self.min_chars < 0:
            raise ConfigError(f"min_chars must not be negative, got {self.min_chars}")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, got {self.vocab_size}")


@dataclass(frozen=True)
class Encoded:
    """What a worker makes of one document."""

    ids: npt.NDArray[Any] | None
    """None: dropped."""
    split: SplitName
    num_bytes: int
    reason: str = ""


class _Worker:
    """One process's tokenizer and filters."""

    def __init__(
        self, folder: Path, settings: PrepareSettings, dropped: frozenset[str], protected: frozenset[int]
    ) -> None:
        self.tokenizer = load_tokenizer(folder)
        self.settings, self.dropped, self.protected = settings, dropped, protected
        self.dtype = token_dtype(self.tokenizer.vocab_size)

    def encode(self, documents: list[Document]) -> list[Encoded]:
        reasons = [self._reason(document) for document in documents]
        kept = [d.text for d, reason in zip(documents, reasons, strict=True) if not reason]
        encodings = iter(self.tokenizer.encode_many(kept))
        return [
            Encoded(None, "train", 0, reason)
            if reason
            else Encoded(
                np.asarray(next(encodings), dtype=self.dtype),
                split_of(document.text, self.settings.heldout),
                len(document.text.encode()),
            )
            for document, reason in zip(documents, reasons, strict=True)
        ]

    def _reason(self, document: Document) -> str:
        if document.id is not None and document.id in self.dropped:
            return "listed"
        if len(document.text) < self.settings.min_chars:
            return "short"
        if self.protected and overlap(document.text, self.protected) > self.settings.max_overlap:
            return "overlap"
        return ""


_worker: _Worker | None = None


def _start_worker(*arguments: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(*arguments)


def _end_with_parent() -> None:
    """A parent that is killed takes its workers along: nobody else would end them."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(documents: list[Document]) -> list[Encoded]:
    assert _worker is not None
    return _worker.encode(documents)


def split_of(text: str, heldout: float) -> SplitName:
    """By the text alone: the same on every machine, in every order, for every copy."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return "heldout" if number < heldout * 2**64 else "train"


def grams(text: str) -> set[int]:
    """Hashes of all runs of 13 words, whatever marks stand between them and however those are spaced."""
    words = _WORD.findall(text.lower())
    runs = (" ".join(words[i : i + _GRAM]) for i in range(len(words) - _GRAM + 1))
    return {int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "big") for run in runs}


def overlap(text: str, protected: frozenset[int]) -> float:
    """The share of a text's 13-word runs that are protected."""
    own = grams(text)
    return len(own & protected) / len(own) if own else 0.0


def read_ids(path: Path) -> list[str]:
    """Ids of documents: one a line, or a tab-separated table with a column called id or something_id."""
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    header = lines[0].split("\t") if lines else []
    column = next((i for i, name in enumerate(header) if name == "id" or name.endswith("_id")), None)
    if column is None:
        return [line.split("\t")[0].strip() for line in lines]
    return [line.split("\t")[column].strip() for line in lines[1:]]


def prepare(
    sources: list[Path],
    out: Path,
    tokenizer: Tokenizer,
    settings: PrepareSettings,
    *,
    drop_ids: Iterable[str] = (),
    protect: Iterable[str] = (),
    processes: int = 1,
    progress: Callable[[int, int, float], None] = lambda _documents, _tokens, _share: None,
) -> dict[str, Any]:
    """Write the corpus folder and return its manifest.

    `progress` hears how many documents and tokens were done since it last heard, and what share of the files is read.
    """
    dropped = frozenset(drop_ids)
    protected = frozenset(itertools.chain.from_iterable(grams(text) for text in protect))
    recipe = _recipe(sources, tokenizer, settings, dropped, protected)
    if _finished(out, recipe):
        return dict(json.loads((out / MANIFEST).read_text()))
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(out)
    state = _load_state(out, recipe)
    reading = _Reading(sources, settings)
    chunks = _chunks(itertools.islice(reading, state["documents_read"], None), _CHUNK)
    arguments = (out, settings, dropped, protected)
    writer = _PartWriter(out, recipe, state, token_dtype(tokenizer.vocab_size), settings.part_tokens)
    batches = _encoded_by(processes, chunks, arguments) if processes > 1 else map(_Worker(*arguments).encode, chunks)
    for batch in batches:
        progress(len(batch), writer.add(batch), reading.share)
    return writer.finish()


def _encoded_by(
    processes: int, chunks: Iterator[list[Document]], arguments: tuple[Any, ...]
) -> Iterator[list[Encoded]]:
    """The chunks' results in their order; a few more than the processes are at are read ahead."""
    context = multiprocessing.get_context("spawn")
    processes = min(processes, _MOST_PROCESSES)
    pool = ProcessPoolExecutor(processes, context, initializer=_start_worker, initargs=arguments)
    pending: deque[Future[list[Encoded]]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_work, chunk))
            if len(pending) > 4 * processes:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "a process that encodes text has died (killed, or out of memory): start the same command again, with fewer "
            "--processes if need be. Finished parts are kept."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _PartWriter:
    """Collects encoded documents and writes a part whenever enough have come together."""

    def __init__(
        self, folder: Path, recipe: dict[str, Any], state: dict[str, Any], dtype: str, part_tokens: int
    ) -> None:
        self.folder, self.recipe, self.state, self.dtype, self.part_tokens = folder, recipe, state, dtype, part_tokens
        self._empty()

    def _empty(self) -> None:
        self.pending: dict[SplitName, list[npt.NDArray[Any]]] = {"train": [], "heldout": []}
        self.bytes: dict[SplitName, int] = {"train": 0, "heldout": 0}
        self.read, self.reasons, self.tokens = 0, dict[str, int](), 0

    def add(self, batch: list[Encoded]) -> int:
        """Take a batch; returns how many tokens it had."""
        before = self.tokens
        for item in batch:
            self.read += 1
            if item.ids is None:
                self.reasons[item.reason] = self.reasons.get(item.reason, 0) + 1
                continue
            self.pending[item.split].append(item.ids)
            self.bytes[item.split] += item.num_bytes
            self.tokens += len(item.ids)
        added = self.tokens - before
        if self.tokens >= self.part_tokens:
            self._flush()
        return added

    def _flush(self) -> None:
        number = self.state["parts"]
        splits: tuple[SplitName, ...] = ("train", "heldout")
        for split in splits:
            if self.pending[split]:
                shard = write_shard(
                    self.folder, f"{split}-{number:05}", split, self.pending[split], self.bytes[split], self.dtype
                )
                self.state["shards"].append(shard_dict(shard))
        for reason, count in self.reasons.items():
            self.state["dropped"][reason] = self.state["dropped"].get(reason, 0) + count
        self.state["documents_read"] += self.read
        self.state["parts"] = number + 1
        write_json(self.folder / PARTIAL, {"recipe": self.recipe, "state": self.state})
        self._empty()

    def finish(self) -> dict[str, Any]:
        if self.read:
            self._flush()
        if not any(shard["split"] == "train" for shard in self.state["shards"]):
            raise DataError("no document was left to train on: all were dropped or held out")
        manifest = {
            "format": FORMAT,
            "dtype": self.dtype,
            "tokenizer": self.recipe["tokenizer"],
            "recipe": self.recipe,
            "documents_read": self.state["documents_read"],
            "dropped": self.state["dropped"],
            "shards": self.state["shards"],
        }
        write_json(self.folder / MANIFEST, manifest)
        (self.folder / PARTIAL).unlink(missing_ok=True)
        return manifest


def _recipe(
    sources: list[Path],
    tokenizer: Tokenizer,
    settings: PrepareSettings,
    dropped: frozenset[str],
    protected: frozenset[int],
) -> dict[str, Any]:
    """All that the result depends on; a folder made by another recipe is not continued."""
    if not sources:
        raise DataError("no source files were given")
    return {
        "sources": [_source(path) for path in sources],
        "tokenizer": tokenizer.fingerprint,
        "pipeline": hashlib.sha256(tokenizer.to_json().encode()).hexdigest(),
        "settings": to_dict(settings),
        "dropped_ids": hashlib.sha256("\n".join(sorted(dropped)).encode()).hexdigest() if dropped else None,
        "protected_runs": hashlib.sha256(repr(sorted(protected)).encode()).hexdigest() if protected else None,
    }


def _source(path: Path) -> dict[str, str]:
    try:
        return {"name": path.name, "sha256": file_sha256(path)}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _finished(out: Path, recipe: dict[str, Any]) -> bool:
    path = out / MANIFEST
    if not path.is_file():
        return False
    manifest = _read_json(path)
    if manifest.get("recipe") == recipe:
        return _are_sound(out, manifest.get("shards", []))
    raise DataError(f"{out} holds a corpus made from other files or settings: choose another folder, or remove it")


def _are_sound(out: Path, shards: list[dict[str, Any]]) -> bool:
    """Whether all are as they were written; those of a damaged corpus are written again."""
    try:
        for shard in shards:
            verify_shard(out, Shard(**shard))
    except DataError:
        return False
    return True


def asked_vocab_size(out: Path, sources: list[Path], split: Split, field: str) -> int | None:
    """The size of the vocabulary that was learnt for a folder, also where it is not finished; None: not known.

    What was left unfinished from other files is none of theirs.
    """
    finished = (out / MANIFEST).is_file()
    path = out / (MANIFEST if finished else PARTIAL)
    if not path.is_file():
        return None
    recipe = _read_json(path).get("recipe", {})
    settings = recipe.get("settings", {})
    read = (recipe.get("sources"), settings.get("split"), settings.get("field"))
    if not finished and read != ([_source(source) for source in sources], split, field):
        return None
    size = settings.get("vocab_size")
    return None if size is None else int(size)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise DataError(f"{path} is damaged: remove the folder and prepare the corpus anew") from None


def _load_state(out: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    fresh: dict[str, Any] = {"documents_read": 0, "parts": 0, "dropped": {}, "shards": []}
    path = out / PARTIAL
    if not path.is_file():
        return fresh
    saved = _read_json(path)
    if saved.get("recipe") != recipe or not _are_sound(out, saved["state"]["shards"]):
        return fresh
    return dict(saved["state"])


class _Reading:
    """The documents of all files, one after another, and what share of the files has been read."""

    def __init__(self, sources: list[Path], settings: PrepareSettings) -> None:
        self.sources, self.settings = sources, settings
        self.total = max(1, sum(path.stat().st_size for path in sources))
        self.before, self.here = 0, 0

    @property
    def share(self) -> float:
        return min(1.0, (self.before + self.here) / self.total)

    def __iter__(self) -> Iterator[Document]:
        for path in self.sources:
            yield from iter_documents(path, self.settings.split, self.settings.field, self._meter)
            self.before, self.here = self.before + path.stat().st_size, 0

    def _meter(self, read: int) -> None:
        self.here = read


def _chunks(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    while chunk := list(itertools.islice(documents, size)):
        yield chunk
