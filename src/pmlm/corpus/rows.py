"""Shards -> training rows: an endless, shuffled, exactly resumable stream.

An epoch goes through the shards block by block in a drawn order. Within a block the documents are shuffled and laid end
to end into rows, cut where a row is full, and the rows are shuffled. All of that is a function of (seed, epoch,
block), so a position in the stream is three numbers, and every rank can compute the same plan and take its own rows.
Each token of an epoch is in exactly one row.

Shapes: B rows, L slots.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pmlm.batch import Batch
from pmlm.corpus.framing import Row, frame
from pmlm.corpus.shards import Corpus, Ids, Shard
from pmlm.errors import ConfigError, DataError
from pmlm.runtime import generator, stream_seed

MAX_TEXTS = 16
"""The most texts packed into one row."""


Packing = Literal["packed", "padded", "padding-seen", "padding-predicted"]


@dataclass(frozen=True, kw_only=True)
class RowSettings:
    length: int = 128
    """Slots of a row, markers included."""
    short_share: float = 0.3
    """The share of documents cut at sentence ends into pieces of random length: people's canvases are short."""
    shortest: int = 8
    """The fewest slots such a piece aims at."""
    packing: Packing = "packed"
    """Short pieces side by side in one row, unseen by each other, or each in a row of its own with padding that nobody
    sees. The others are for study: padding that is part of the text, never hidden, or hidden and predicted like it."""
    predict_end: bool = False
    """The end marker is a token to predict like any other, so that a left-to-right model says where a text ends."""
    block_shards: int = 4
    """How many shards are shuffled together."""

    def __post_init__(self) -> None:
        if not 0 <= self.short_share <= 1:
            raise ConfigError(f"short_share must be in [0, 1], got {self.short_share}")
        if not 4 <= self.shortest <= self.length:
            raise ConfigError(f"shortest must be from 4 to length {self.length}, got {self.shortest}")
        if self.block_shards < 1:
            raise ConfigError(f"block_shards must be at least 1, got {self.block_shards}")

    @property
    def max_texts(self) -> int:
        return MAX_TEXTS if self.packing == "packed" else 1

    @property
    def padding_is_text(self) -> bool:
        return self.packing in ("padding-seen", "padding-predicted")


@dataclass(frozen=True)
class PieceRef:
    """A run of one document's tokens."""

    shard: int
    start: int
    stop: int
    at_start: bool
    at_end: bool

    @property
    def slots(self) -> int:
        return self.stop - self.start + self.at_start + self.at_end


RowRef = tuple[PieceRef, ...]


class Span(NamedTuple):
    """A whole document within a shard."""

    shard: int
    begin: int
    end: int


@dataclass
class StreamState:
    """A position in the stream: the next row."""

    epoch: int = 0
    block: int = 0
    row: int = 0


class RowStream:
    def __init__(self, corpus: Corpus, settings: RowSettings, seed: int) -> None:
        self.corpus, self.settings, self.seed = corpus, settings, seed
        self.shards = corpus.of("train")
        if not self.shards:
            raise DataError(f"{corpus.folder} has no training shards")
        self.num_blocks = -(-len(self.shards) // settings.block_shards)
        self.state = StreamState()
        self._ends = np.zeros(corpus.tokenizer.vocab_size, dtype=bool)
        self._ends[list(corpus.tokenizer.sentence_end_ids)] = True
        self._plan: tuple[tuple[int, int], list[RowRef]] | None = None
        self._opened: dict[int, tuple[Ids, npt.NDArray[np.int64]]] = {}
        self._starts_word = torch.tensor(corpus.tokenizer.starts_word)

    def take(self, num: int) -> list[RowRef]:
        """The next rows, by reference; the position moves on."""
        rows: list[RowRef] = []
        while len(rows) < num:
            plan = self._current_plan()
            part = plan[self.state.row : self.state.row + num - len(rows)]
            rows += part
            self.state.row += len(part)
            if self.state.row >= len(plan):
                self.state.block, self.state.row = self.state.block + 1, 0
            if self.state.block >= self.num_blocks:
                self.state.epoch, self.state.block = self.state.epoch + 1, 0
        return rows

    def build(self, rows: Sequence[RowRef]) -> Batch:
        """Read the rows' tokens. The width is always `length`, whatever the rows hold."""
        tokenizer, width = self.corpus.tokenizer, self.settings.length
        ids = np.full((len(rows), width), tokenizer.pad_id, dtype=np.int64)
        group = np.full((len(rows), width), -1, dtype=np.int64)
        maskable = np.zeros((len(rows), width), dtype=bool)
        for b, row in enumerate(rows):
            at = 0
            for number, piece in enumerate(row):
                end = at + piece.slots
                group[b, at:end] = number
                if piece.at_start:
                    ids[b, at] = tokenizer.start_id
                    at += 1
                if piece.at_end:
                    ids[b, end - 1] = tokenizer.end_id
                size = piece.stop - piece.start
                ids[b, at : at + size] = self._open(piece.shard)[0][piece.start : piece.stop]
                maskable[b, at : at + size] = True
                maskable[b, end - 1] |= piece.at_end and self.settings.predict_end
                at = end
            if self.settings.padding_is_text:
                group[b, at:] = 0
                maskable[b, at:] = self.settings.packing == "padding-predicted"
        ids_BL = torch.from_numpy(ids)
        return Batch(
            ids_BL,
            torch.from_numpy(maskable),
            torch.from_numpy(group),
            self._starts_word[ids_BL],
            self.settings.max_texts,
        )

    def state_dict(self) -> dict[str, int]:
        return dict(vars(self.state))

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = StreamState(**state)

    def _open(self, shard: int) -> tuple[Ids, npt.NDArray[np.int64]]:
        if shard not in self._opened:
            self._opened[shard] = self.corpus.read(self.shards[shard])
        return self._opened[shard]

    def _current_plan(self) -> list[RowRef]:
        key = (self.state.epoch, self.state.block)
        if self._plan is None or self._plan[0] != key:
            self._plan = (key, self._make_plan(*key))
        return self._plan[1]

    def _make_plan(self, epoch: int, block: int) -> list[RowRef]:
        order = torch.randperm(len(self.shards), generator=generator(self.seed, "shards", epoch)).tolist()
        size = self.settings.block_shards
        rng = np.random.default_rng(stream_seed(self.seed, "rows", epoch, block))
        documents = [span for shard in order[block * size : (block + 1) * size] for span in self._documents(shard)]
        filler = _Filler(self.settings)
        for i in rng.permutation(len(documents)).tolist():
            at_sentences = rng.random() < self.settings.short_share
            filler.add(documents[i], self._sentence_ends if at_sentences else None, rng)
        rows = filler.finish()
        return [rows[i] for i in rng.permutation(len(rows)).tolist()]

    def _documents(self, shard: int) -> list[Span]:
        starts = self._open(shard)[1].tolist()
        return [Span(shard, begin, end) for begin, end in itertools.pairwise(starts)]

    def _sentence_ends(self, span: Span) -> list[int]:
        """Where sentences of a document end, as positions in its shard."""
        ids = self._open(span.shard)[0][span.begin : span.end]
        return (np.flatnonzero(self._ends[ids]) + span.begin + 1).tolist()


class _Filler:
    """Lays documents end to end into rows. A document is cut where a row is full, so little is left empty, and since
    the documents come in another order each time, the cuts fall elsewhere in each epoch."""

    def __init__(self, settings: RowSettings) -> None:
        self.settings = settings
        self.rows: list[RowRef] = []
        self.open: list[PieceRef] = []
        self.room = settings.length

    def add(self, span: Span, sentence_ends: Callable[[Span], list[int]] | None, rng: np.random.Generator) -> None:
        ends = None if sentence_ends is None else sentence_ends(span)
        at = span.begin
        while at < span.end:
            if self.room < min(self.settings.shortest, span.end - at + 2) or len(self.open) >= self.settings.max_texts:
                self._close()
            aim = self.room
            if ends is not None:
                aim = min(aim, int(rng.integers(self.settings.shortest, self.settings.length + 1)))
            piece = cut_piece(span, at, aim, ends)
            self.open.append(piece)
            self.room -= piece.slots
            at = piece.stop
            if self.settings.packing != "packed":
                self._close()
        self._flush_if_full()

    def _flush_if_full(self) -> None:
        if self.room == 0:
            self._close()

    def _close(self) -> None:
        if self.open:
            self.rows.append(tuple(self.open))
        self.open, self.room = [], self.settings.length

    def finish(self) -> list[RowRef]:
        self._close()
        return self.rows


def cut_piece(span: Span, at: int, aim: int, sentence_ends: list[int] | None = None) -> PieceRef:
    """What of a document, from `at` on, fits into `aim` slots; up to the last sentence end in them, where wanted."""
    is_first = at == span.begin
    is_last = span.end - at + is_first + 1 <= aim
    stop = span.end if is_last else max(at + 1, min(at + aim - is_first, span.end - 1))  # the end comes with its marker
    if not is_last and sentence_ends is not None:
        i = bisect.bisect_right(sentence_ends, stop) - 1
        stop = sentence_ends[i] if i >= 0 and sentence_ends[i] > at else stop
    return PieceRef(span.shard, at, stop, is_first, is_last)


def check_heldout(corpus: Corpus) -> None:
    """DataError where nothing is held out."""
    if not corpus.tokens("heldout"):
        raise DataError(f"{corpus.folder} has no held-out documents: prepare it with a larger --heldout")


def heldout_rows(corpus: Corpus, context: int, limit: int, seed: int = 0) -> list[Row]:
    """Windows of held-out documents, `limit` of them drawn at random, framed as in evaluation."""
    check_heldout(corpus)
    tokenizer = corpus.tokenizer
    refs: list[tuple[Shard, PieceRef, int]] = []
    opened: dict[str, tuple[Ids, Any]] = {}
    rng = np.random.default_rng(stream_seed(seed, "heldout", context))
    document = 0
    for shard in corpus.of("heldout"):
        opened[shard.name] = corpus.read(shard)
        starts = opened[shard.name][1]
        for begin, end in itertools.pairwise(starts.tolist()):
            at = begin
            while at < end:
                piece = cut_piece(Span(0, begin, end), at, context)
                refs.append((shard, piece, document))
                at = piece.stop
            document += 1
    rows = []

    def ids_of(shard: Shard, piece: PieceRef) -> list[int]:
        return [int(x) for x in opened[shard.name][0][piece.start : piece.stop]]

    scale = 1.0
    if tokenizer.kind != "reversible":  # pieces alone do not say what stood between them
        counted = sum(tokenizer.num_bytes(ids_of(shard, piece)) for shard, piece, _ in refs)
        scale = sum(shard.num_bytes for shard in corpus.of("heldout")) / max(1, counted)
    for i in sorted(rng.permutation(len(refs))[:limit].tolist()):
        shard, piece, number = refs[i]
        ids = ids_of(shard, piece)
        num_bytes = round(scale * tokenizer.num_bytes(ids)) - (piece.at_start and tokenizer.kind == "reversible")
        rows.append(
            frame(ids, tokenizer, at_start=piece.at_start, at_end=piece.at_end, num_bytes=num_bytes, document=number)
        )
    return rows
