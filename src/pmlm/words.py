"""Which pieces make whole words: what a corpus says of neighbouring pieces.

A word is half-written when it stops after a piece that never ends one ("Eliz"), or goes on with a piece that never
follows there ("the" + "abeth"). Both are read off the corpus that a model was trained on, once, and kept beside its
vocabulary:

- *ends*: pieces after which something new begins (a space, a line, a mark, the end of the text) in at least one of 50
  places where they stand; seldom is a slip of the pen.
- *pairs*: neighbours seen side by side where the second goes on without a space (letters, `'s`), or where both are
  marks (`."`).

The relation `a may stand before b` is then: b begins with a space or a new line and a ends; or b begins with a mark or
a digit, a ends and its last character is a letter or digit; or the pair was seen. Every pair that a reversible
vocabulary writes is in it for the corpus's own text, slips aside. What is written by it is spelt as the tokenizer would
spell it: a sequence of byte-pair tokens is the encoding of its text where every two neighbours are.

Shapes: V vocabulary, P pairs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_safetensors

from pmlm.errors import DataError
from pmlm.tokenizer import Tokenizer

FILE = "words.safetensors"
MOST_PIECES = 8
SELDOM = 50
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PieceKinds:
    """What a piece looks like at its edges; specials are none of it."""

    spaced_V: Flags
    """Begins with a space or a new line."""
    glued_V: Flags
    """Goes on with a letter, or with an apostrophe and a letter."""
    marked_V: Flags
    """Begins with a mark or a digit."""
    closed_V: Flags
    """Ends with a letter or digit, so that a mark after it is a piece of its own."""
    blank_V: Flags
    """Ends with white space."""
    curly_V: Flags
    """Is a curly apostrophe."""

    @staticmethod
    def of(tokenizer: Tokenizer) -> "PieceKinds":
        texts = [raw.decode("utf-8", errors="replace") for raw in tokenizer.running_bytes]
        glued = [t[:1].isalpha() or (t[:1] == "'" and t[1:2].isalpha()) for t in texts]
        spaced = [t[:1].isspace() for t in texts]
        marked = [bool(t) and not g and not s for t, g, s in zip(texts, glued, spaced, strict=True)]
        closed, blank = [t[-1:].isalnum() for t in texts], [t[-1:].isspace() for t in texts]
        flags = (spaced, glued, marked, closed, blank, [t == "’" for t in texts])
        return PieceKinds(*(np.array(flag, dtype=bool) for flag in flags))


@dataclass(frozen=True, eq=False)
class WordTable:
    """What a corpus says of neighbouring pieces."""

    ends_V: Flags
    pairs_P2: npt.NDArray[np.int64]
    """Sorted."""
    lengths: tuple[int, ...]
    """How many words of 1, 2, … pieces were seen; the last also counts the longer ones."""

    @cached_property
    def length_logp(self) -> list[float]:
        """log p(n) for words of n = 1, 2, … pieces, smoothed by one of each."""
        counts = np.array(self.lengths, dtype=np.float64) + 1
        return [float(x) for x in np.log(counts / counts.sum())]


def count_words(documents: Iterable[npt.NDArray[np.integer]], tokenizer: Tokenizer) -> WordTable:
    """Read the table off documents of ids; a batch of documents end to end is fine."""
    kinds, size = PieceKinds.of(tokenizer), tokenizer.vocab_size
    ended_V, found_V = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    seen: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    lengths = np.zeros(MOST_PIECES, dtype=np.int64)
    for ids in documents:
        if not len(ids):
            continue
        flat = np.asarray(ids, dtype=np.int64)
        left, right = flat[:-1], flat[1:]
        joined = _joined(left, right, kinds) | _before_apostrophe(flat, kinds)
        ended_V += np.bincount(left[~joined], minlength=size)
        ended_V[flat[-1]] += 1
        found_V += np.bincount(flat, minlength=size)
        seen = np.union1d(seen, np.unique(left[joined] * size + right[joined]))
        lengths += _word_lengths(flat, kinds)
    ends_V = (ended_V > 0) & (SELDOM * ended_V >= found_V) & ~kinds.blank_V
    return WordTable(ends_V, np.stack([seen // size, seen % size], axis=1), tuple(int(n) for n in lengths))


def _joined(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], kinds: PieceKinds) -> Flags:
    """Where a pair must have been seen to be allowed."""
    joined: Flags = kinds.glued_V[right] | (kinds.marked_V[right] & ~kinds.closed_V[left]) | kinds.blank_V[left]
    return joined


def _before_apostrophe(ids: npt.NDArray[np.int64], kinds: PieceKinds) -> Flags:
    """Which pieces but the last stand before a curly apostrophe inside a word, as in `couldn’t`."""
    inside: Flags = kinds.curly_V[ids[1:]] & np.append(
        kinds.glued_V[ids[2:]], np.zeros(min(1, len(ids) - 1), dtype=bool)
    )
    return inside


def _word_lengths(ids: npt.NDArray[np.int64], kinds: PieceKinds) -> npt.NDArray[np.int64]:
    """Words of 1, 2, … pieces: a piece that ends with a letter or digit, and the glued ones after it."""
    first = kinds.closed_V[ids] & ~kinds.glued_V[ids]
    goes_on = kinds.glued_V[ids]
    starts = np.flatnonzero(first)
    if not len(starts):
        return np.zeros(MOST_PIECES, dtype=np.int64)
    stops = np.flatnonzero(~goes_on)
    after = np.append(stops, len(ids))[np.searchsorted(stops, starts, side="right")]
    return np.bincount(np.minimum(after - starts, MOST_PIECES) - 1, minlength=MOST_PIECES)


def save_words(table: WordTable, folder: Path, vocabulary: str) -> None:
    tensors = {
        "ends": torch.from_numpy(table.ends_V.astype(np.uint8)),
        "pairs": torch.from_numpy(table.pairs_P2.astype(np.int32)),
        "lengths": torch.tensor(table.lengths),
    }
    (folder / FILE).write_bytes(dump_safetensors(tensors, metadata={"vocabulary": vocabulary}))


def load_words(folder: Path, vocabulary: str) -> WordTable | None:
    """The table beside a model; None where there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as handle:
            made_for = (handle.metadata() or {}).get("vocabulary")
            ends, pairs, lengths = (handle.get_tensor(name) for name in ("ends", "pairs", "lengths"))
    except (SafetensorError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    if made_for != vocabulary:
        raise DataError(f"{path} was made for another vocabulary")
    return WordTable(ends.numpy().astype(bool), pairs.numpy().astype(np.int64), tuple(lengths.tolist()))
