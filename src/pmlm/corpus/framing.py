"""Rows as every model reads them: markers at the true edges of a document, and windows cut from long ones.

The start and end markers are given and never hidden. A window cut inside a document carries none, so that a model is
never told of an edge that is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pmlm.batch import Batch, make_batch
from pmlm.tokenizer import Piece, Tokenizer


@dataclass(frozen=True)
class Row:
    """One framed row: ids, what may be hidden, and what it stands for."""

    ids: tuple[int, ...]
    maskable: tuple[bool, ...]
    num_bytes: int
    document: int = 0

    @property
    def num_tokens(self) -> int:
        """What may be hidden: the content tokens, and what else is predicted like them."""
        return sum(self.maskable)


def frame(
    ids: Sequence[int],
    tokenizer: Tokenizer,
    *,
    hidden: Sequence[bool] | None = None,
    at_start: bool = True,
    at_end: bool = True,
    num_bytes: int = 0,
    document: int = 0,
) -> Row:
    """Content ids between the markers that are due; `hidden` says which of them may be hidden (by default all)."""
    flags = [True] * len(ids) if hidden is None else list(hidden)
    start = [tokenizer.start_id] if at_start else []
    end = [tokenizer.end_id] if at_end else []
    maskable = [False] * len(start) + flags + [False] * len(end)
    return Row((*start, *ids, *end), tuple(maskable), num_bytes, document)


def end_predicted(row: Row) -> Row:
    """The row with its end marker among what is predicted."""
    return replace(row, maskable=(*row.maskable[:-1], True))


def padding_as_text(row: Row, tokenizer: Tokenizer, length: int, *, predicted: bool) -> Row:
    """The row with padding up to `length` that is part of the text: given, or predicted like it."""
    room = length - len(row.ids)
    return replace(row, ids=(*row.ids, *[tokenizer.pad_id] * room), maskable=(*row.maskable, *[predicted] * room))


def windows(text: str, tokenizer: Tokenizer, context: int, document: int = 0) -> list[Row]:
    """The whole document as consecutive rows of at most `context` slots; their bytes add up to the document's."""
    pieces = tokenizer.pieces(text)
    rows: list[Row] = []
    at = 0
    while at < len(pieces):
        is_first = at == 0
        room = context - is_first
        left = len(pieces) - at
        is_last = left <= room - 1
        take = left if is_last else room if left > room else left - 1  # room is left for the end marker
        begin, end = _char(pieces, at, text), _char(pieces, at + take, text)
        rows.append(
            frame(
                [piece.id for piece in pieces[at : at + take]],
                tokenizer,
                at_start=is_first,
                at_end=is_last,
                num_bytes=len(text[begin:end].encode()),
                document=document,
            )
        )
        at += take
    return rows


def _char(pieces: list[Piece], index: int, text: str) -> int:
    if index == 0:
        return 0
    return pieces[index].start if index < len(pieces) else len(text)


def row_batch(rows: Sequence[Row], tokenizer: Tokenizer, length: int | None = None) -> Batch:
    """A padded batch, one text per row."""
    return make_batch([row.ids for row in rows], [row.maskable for row in rows], pad_id=tokenizer.pad_id, length=length)
