"""One text, or two, as a row that a model reads: start A end, or start A end B end, cut to the model's length.

Of a pair that is too long, the longer text loses its end first. Token types tell the texts apart where the model has
them. Nothing is hidden in such a row.

Shapes: B rows, L slots.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pmlm.batch import make_batch
from pmlm.errors import DataError
from pmlm.model import Inputs, ModelConfig, Visibility
from pmlm.tokenizer import Tokenizer
from pmlm.visibility import reading_inputs


@dataclass(frozen=True)
class PairRow:
    ids: tuple[int, ...]
    second_at: int
    """The slot at which the second text begins; the length of the row where there is none."""

    def __len__(self) -> int:
        return len(self.ids)


def fingerprint(told: object) -> str:
    """Of plain data, such as the ids of rows."""
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


class Reading(NamedTuple):
    inputs: Inputs
    is_token_BL: Tensor


def frame_pair(first: Sequence[int], second: Sequence[int] | None, tokenizer: Tokenizer, length: int) -> PairRow:
    """Content ids between markers, at most `length` slots in all."""
    start, end = tokenizer.start_id, tokenizer.end_id
    if second is None:
        ids = (start, *first[: length - 2], end)
        return PairRow(ids, len(ids))
    keep_first, keep_second = shares(len(first), len(second), length - 3)
    head = (start, *first[:keep_first], end)
    return PairRow((*head, *second[:keep_second], end), len(head))


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of each text is kept: all of one that needs no more than half of the room, the halves otherwise."""
    half = room // 2
    if first + second <= room:
        return first, second
    if second <= half:
        return room - second, second
    return (first, room - first) if first <= room - half else (room - half, half)


def frame_texts(texts: Sequence[Sequence[str]], tokenizer: Tokenizer, length: int) -> list[PairRow]:
    """Rows of several texts or pairs, encoded together."""
    if length < 5:
        raise DataError(f"a pair of texts needs at least 5 slots; the length is {length}")
    columns = [tokenizer.encode_many(column) for column in zip(*texts, strict=True)]
    if len(columns) == 1:
        return [frame_pair(ids, None, tokenizer, length) for ids in columns[0]]
    return [frame_pair(a, b, tokenizer, length) for a, b in zip(*columns, strict=True)]


def read_rows(rows: Sequence[PairRow], pad_id: int, config: ModelConfig, device: torch.device) -> Reading:
    """A padded batch; every text is read both ways, but by a model that was trained left to right alone."""
    batch = make_batch([row.ids for row in rows], [[False] * len(row) for row in rows], pad_id=pad_id).to(device)
    types_BL = None
    if config.num_token_types > 1:
        second_B = torch.tensor([row.second_at for row in rows], device=device)
        types_BL = (torch.arange(batch.length, device=device) >= second_B[:, None]).long() * (batch.group_BL >= 0)
    return Reading(reading_inputs(batch, reading_visibility(config), types_BL), batch.group_BL >= 0)


def reading_visibility(config: ModelConfig) -> Visibility:
    return next((kind for kind in config.visibilities if kind != "causal"), "causal")
