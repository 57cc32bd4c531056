"""A question with its paragraph as windows that fit the model, and the scores of windows back as answers.

A window is start question end part-of-the-paragraph end; parts overlap. The first slot stands for "no answer". Spans
are pieces on the way in and characters on the way out: an answer is always a stretch of the paragraph, to the letter.
A piece that stands in several windows is believed in the one that shows most of what surrounds it.

Shapes: L slots, K pieces of the paragraph that a window shows.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.errors import ConfigError, DataError
from pmlm.nlu.framing import PairRow, frame_pair
from pmlm.nlu.squad import Answer, Question
from pmlm.tokenizer import Piece, Tokenizer


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    question: int = 32
    """The most pieces of a question that are read."""
    stride: int = 48
    """Pieces from one window to the next."""
    answer: int = 30
    """The most pieces of an answer."""
    best: int = 20
    """How many answers are kept for each question."""

    def __post_init__(self) -> None:
        if min(self.question, self.stride, self.answer, self.best) < 1:
            raise ConfigError("windows.question, windows.stride, windows.answer and windows.best are at least 1")


@dataclass(frozen=True)
class Window:
    row: PairRow
    first: int
    """The number of the first piece of the paragraph that it shows."""
    count: int


@dataclass(frozen=True)
class Asked:
    """A question cut into windows."""

    question: Question
    pieces: list[Piece]
    windows: list[Window]


@dataclass(frozen=True)
class Candidate:
    text: str
    start: int
    end: int
    """Characters of the paragraph."""
    score: float


@dataclass(frozen=True)
class Found:
    """What the windows of a question say."""

    best: list[Candidate]
    none_score: float

    @property
    def no_answer(self) -> float:
        """How much "no answer" scores above the best span: answered where this is at most the threshold."""
        return self.none_score - self.best[0].score if self.best else float("inf")


def cut_questions(
    questions: Sequence[Question], tokenizer: Tokenizer, length: int, settings: WindowSettings
) -> list[Asked]:
    """Each paragraph is encoded once, whatever the number of its questions."""
    pieces = {context: tokenizer.pieces(context) for context in dict.fromkeys(q.context for q in questions)}
    asked = []
    for question in questions:
        if not question.context.strip():
            raise DataError(f"question {question.id!r} has an empty paragraph")
        ids = tokenizer.encode(question.text)[: settings.question]
        context = pieces[question.context]
        places = window_places(len(context), length - 3 - len(ids), settings.stride)
        rows = [frame_pair(ids, [p.id for p in context[at : at + n]], tokenizer, length) for at, n in places]
        asked.append(Asked(question, context, [Window(row, at, n) for row, (at, n) in zip(rows, places, strict=True)]))
    return asked


def window_places(num_pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first, count) of windows that together show every piece."""
    if room < 1:
        raise DataError("the question leaves no room for its paragraph: lower windows.question, or raise the length")
    places = [(0, min(room, num_pieces))]
    while sum(places[-1]) < num_pieces:
        first = places[-1][0] + min(stride, room)
        places.append((first, min(room, num_pieces - first)))
    return places


def answer_pieces(answer: Answer, pieces: Sequence[Piece]) -> tuple[int, int] | None:
    """The first and last piece of the least stretch that covers the answer's characters."""
    first = bisect_right([p.end for p in pieces], answer.start)
    last = bisect_left([p.start for p in pieces], answer.start + len(answer.text)) - 1
    return (first, last) if first <= last else None


def target_slots(asked: Asked) -> list[tuple[int, int]]:
    """For each window the slots of the first gold answer; (0, 0) where it does not show the whole of it."""
    answers = asked.question.answers
    found = answer_pieces(answers[0], asked.pieces) if answers else None
    slots = []
    for window in asked.windows:
        shown = found is not None and window.first <= found[0] and found[1] < window.first + window.count
        lead = window.row.second_at - window.first
        slots.append((found[0] + lead, found[1] + lead) if shown and found is not None else (0, 0))
    return slots


def find_answers(asked: Asked, scores: Sequence[Tensor], settings: WindowSettings) -> Found:
    """The best spans over all windows; `scores` holds [L, 2] for each."""
    candidates: list[Candidate] = []
    for number, (window, score_L2) in enumerate(zip(asked.windows, scores, strict=True)):
        part_K2 = score_L2[window.row.second_at : window.row.second_at + window.count]
        for first, last, score in _best_spans(part_K2, _believed(asked.windows, number), settings):
            span = char_span(asked, window.first + first, window.first + last)
            if span is not None:
                candidates.append(Candidate(asked.question.context[span[0] : span[1]], *span, score))
    none = min(float(score_L2[0].sum()) for score_L2 in scores)
    unique: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: -c.score):
        unique.setdefault(candidate.text, candidate)
    return Found(list(unique.values())[: settings.best], none)


def char_span(asked: Asked, first: int, last: int) -> tuple[int, int] | None:
    """The characters of a stretch of pieces without the spaces at its ends; None where nothing is left."""
    start, end = asked.pieces[first].start, asked.pieces[last].end
    text = asked.question.context[start:end]
    start, end = start + len(text) - len(text.lstrip()), end - (len(text) - len(text.rstrip()))
    return (start, end) if start < end else None


def _believed(windows: list[Window], number: int) -> Tensor:
    """[K] whether this window is the one that shows most around each of its pieces."""
    window = windows[number]
    piece_K = torch.arange(window.first, window.first + window.count)
    return torch.stack([_around(piece_K, other) for other in windows]).argmax(dim=0) == number


def _around(piece_K: Tensor, window: Window) -> Tensor:
    """The lesser of what a window shows on the left and on the right of pieces; its size decides between equals."""
    left_K, right_K = piece_K - window.first, window.first + window.count - 1 - piece_K
    inside_K = (left_K >= 0) & (right_K >= 0)
    return torch.where(inside_K, torch.minimum(left_K, right_K) + 0.01 * window.count, -1.0)


def _best_spans(part_K2: Tensor, believed_K: Tensor, settings: WindowSettings) -> list[tuple[int, int, float]]:
    """(first, last, score) of the best spans that begin at a believed piece and are not too long."""
    count = len(part_K2)
    if not count:
        return []
    score_KK = part_K2[:, None, 0] + part_K2[None, :, 1]
    fits_KK = torch.ones_like(score_KK, dtype=torch.bool).triu().tril(settings.answer - 1) & believed_K[:, None]
    score_KK = score_KK.masked_fill(~fits_KK, -torch.inf)
    best = score_KK.flatten().topk(min(settings.best, score_KK.numel()))
    return [
        (i // count, i % count, score)
        for score, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        if score > -torch.inf
    ]
