"""Several tokens a pass, exactly: draft in parallel, verify along the order, resample what is refused.

For ordered visibility and orders that are known beforehand. The next slots of the order are drafted together, each as
if the others were unknown; one more pass reads the drafts and says what each slot's distribution is once the drafts
before it are known. A draft x stays with probability min(1, q(x) / p(x)), p being what it was drawn from and q what it
should have been drawn from; the first that does not is drawn anew from max(0, q - p), and what was drafted after it is
dropped. So every token follows q (Leviathan et al. 2023, Chen et al. 2023; Guo and Ermon 2025 for any order).
Temperature, filters, penalties and constraints make p and q alike. The pass that verifies also asks for the slots after
the drafts, which are the next drafts where all stay.

Shapes: B canvases, N new tokens, Q queries, k drafts, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.generation.decode import Allowed, Course, Reveal, present, slots_at
from pmlm.generation.sampling import Sampling, draw_weighted, sampling_logp
from pmlm.generation.steppers import Columns
from pmlm.model import Slots
from pmlm.orders import Order
from pmlm.visibility import NEVER


class Reader(Protocol):
    """What is asked of a cache: `pmlm.generation.steppers.OrderCached`."""

    count_B: Tensor

    def extend(self, new: Columns, query_BQ: Tensor, query_rank_BQ: Tensor, here: Slots) -> Tensor: ...

    def rewind(self, count_B: Tensor) -> None: ...


@dataclass(eq=False)
class Draft:
    """Tokens that may stay, with what they were drawn from."""

    tokens: list[int] = field(default_factory=list)
    allowed: list[Tensor] = field(default_factory=list)
    present: list[Tensor | None] = field(default_factory=list)
    sampled: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class Line:
    """One canvas on its way."""

    course: Course
    unread: list[tuple[int, int, int]]
    """(slot, token, rank) of what is known and was not read yet."""
    present_V: Tensor | None
    """Which ids stand on the canvas, where that matters."""
    ahead_kV: Tensor | None = None
    """Log-probabilities at the next slots given all that is known."""
    num_done: int = 0
    num_passes: int = 0


@torch.no_grad()
def decode_speculative(
    reader: Reader,
    batch: Batch,
    allowed: Allowed,
    orders: Sequence[Order],
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
    written: Sequence[Sequence[tuple[int, int]]],
    num_drafts: int,
) -> Iterator[list[Reveal]]:
    """As `pmlm.generation.decode.decode`, in distribution; yields what stays after each verification."""
    lines = []
    for b, (order, rng, before) in enumerate(zip(orders, rngs, written, strict=True)):
        row = batch.rows(torch.tensor([b]))
        known_L = ~row.maskable_BL[0] & (row.group_BL[0] >= 0)
        unread = [(slot, int(row.ids_BL[0, slot]), 0) for slot in known_L.nonzero()[:, 0].tolist()]
        vocab_size = allowed.ids_RV.shape[1]
        marks_V = present(row.ids_BL, known_L[None], vocab_size)[0] if sampling.repetition_penalty != 1 else None
        lines.append(Line(Course(order, row, rng, before), unread, marks_V))
    while any(line.course.left for line in lines):
        _look_ahead(reader, lines, num_drafts)
        drafts = [_draft(b, line, allowed, sampling) for b, line in enumerate(lines)]
        yield _verify(reader, lines, drafts, allowed, sampling, num_drafts)


def _look_ahead(reader: Reader, lines: Sequence[Line], num_drafts: int) -> None:
    """Every line that goes on knows the distributions at its next slots."""
    queries: list[list[tuple[int, int]]] = [
        [(slot, NEVER) for slot in line.course.left[:num_drafts]] if line.ahead_kV is None else [] for line in lines
    ]
    if any(queries):
        for line, answer_kV in zip(lines, _read(reader, lines, queries), strict=True):
            line.ahead_kV = answer_kV if len(answer_kV) else line.ahead_kV


def _read(reader: Reader, lines: Sequence[Line], queries: Sequence[Sequence[tuple[int, int]]]) -> list[Tensor]:
    """One pass over what is unread in the lines that ask something; their answers, [k, V] each."""
    device = reader.count_B.device
    unread = [line.unread if asked else [] for line, asked in zip(lines, queries, strict=True)]
    new_BN3 = _padded(unread, 3, device)
    query_BQ2 = _padded(queries, 2, device)
    here = slots_at(
        [b for b, asked in enumerate(queries) for _ in asked],
        [q for asked in queries for q in range(len(asked))],
        device,
    )
    new = Columns(new_BN3[..., 1].clamp(min=0), new_BN3[..., 0], new_BN3[..., 2])
    answers = reader.extend(new, query_BQ2[..., 0], query_BQ2[..., 1], here)
    for line, asked in zip(lines, queries, strict=True):
        if asked:
            line.unread, line.num_passes = [], line.num_passes + 1
    return list(answers.split([len(asked) for asked in queries]))


def _padded(rows: Sequence[Sequence[tuple[int, ...]]], width: int, device: torch.device) -> Tensor:
    """[B, longest, width], filled up with -1."""
    longest = max(map(len, rows))
    blank = (-1,) * width
    return torch.tensor([[*row, *([blank] * (longest - len(row)))] for row in rows], device=device).view(
        len(rows), longest, width
    )


def _draft(b: int, line: Line, allowed: Allowed, sampling: Sampling) -> Draft:
    """Tokens for the next slots, drawn one after the other under the constraints; none where nothing may come out."""
    draft, present_V = Draft(), line.present_V
    if not line.course.left:
        return draft
    assert line.ahead_kV is not None
    tentative = allowed.fork(b)
    for slot, logp_V in zip(line.course.left, line.ahead_kV, strict=False):
        allowed_V = tentative.at(slots_at([b], [slot], logp_V.device))[0]
        if not allowed_V.any():
            break
        line.course.check(slot, allowed_V)
        sampled_V = sampling_logp(logp_V, allowed_V, sampling, present_V)
        token = line.course.forced.get(slot)
        if token is None:
            token = _draw(sampled_V.exp(), line.course)
        draft.tokens.append(token)
        draft.allowed.append(allowed_V)
        draft.present.append(present_V)
        draft.sampled.append(sampled_V)
        tentative.reveal(Reveal(b, slot, token, 0.0, 0.0, 0))
        if present_V is not None:
            present_V = present_V.clone()
            present_V[token] = True
    if not draft.tokens:
        line.course.stop()
    return draft


def _verify(
    reader: Reader,
    lines: Sequence[Line],
    drafts: Sequence[Draft],
    allowed: Allowed,
    sampling: Sampling,
    num_drafts: int,
) -> list[Reveal]:
    """The first draft of a line stays: it was drawn from what is known. Of the others, those that are accepted."""
    queries: list[list[tuple[int, int]]] = []
    for line, draft in zip(lines, drafts, strict=True):
        k, left = len(draft.tokens), line.course.left
        drafted = [(slot, line.num_done + i + 1) for i, slot in enumerate(left[:k])]
        line.unread += [(slot, token, rank) for (slot, rank), token in zip(drafted, draft.tokens, strict=True)]
        queries.append(drafted[1:] + [(slot, NEVER) for slot in left[k : k + num_drafts]] if k > 1 else [])
    count_B = reader.count_B.clone()
    answers = _read(reader, lines, queries) if any(queries) else [torch.empty(0)] * len(lines)
    reveals: list[Reveal] = []
    is_rewound = False
    for b, (line, draft, answer) in enumerate(zip(lines, drafts, answers, strict=True)):
        if not draft.tokens:
            count_B[b] = reader.count_B[b]
            continue
        mine = _accept(b, line, draft, answer, sampling)
        kept = len(mine) if [r.token for r in mine] == draft.tokens[: len(mine)] else len(mine) - 1
        ranks = range(line.num_done + 1, line.num_done + 1 + len(mine))
        line.num_done += len(mine)
        line.ahead_kV = None
        if not queries[b]:
            line.unread = [(mine[0].slot, mine[0].token, ranks[0])]
        elif kept == len(draft.tokens):
            line.ahead_kV = answer[kept - 1 :] if len(answer) >= kept else None
        else:
            is_rewound = True
            line.unread = [(mine[-1].slot, mine[-1].token, ranks[-1])]
        count_B[b] += kept if queries[b] else 0
        for reveal in mine:
            line.course.reveal(reveal.slot)
            allowed.reveal(reveal)
            if line.present_V is not None:
                line.present_V[reveal.token] = True
        reveals += mine
    if is_rewound:
        reader.rewind(count_B)
    return reveals


def _accept(b: int, line: Line, draft: Draft, answer_QV: Tensor, sampling: Sampling) -> list[Reveal]:
    """The drafts that stay, and behind them the token that takes the place of the first that does not."""
    assert line.ahead_kV is not None
    course, slots, reveals = line.course, line.course.left, list[Reveal]()
    for i, (token, p_V) in enumerate(zip(draft.tokens, draft.sampled, strict=True)):
        logp_V, q_V = line.ahead_kV[0], p_V
        if i > 0:
            logp_V = answer_QV[i - 1]
            q_V = sampling_logp(logp_V, draft.allowed[i], sampling, draft.present[i])
        is_forced = slots[i] in course.forced
        rest_V = (q_V.exp() - p_V.exp()).clamp(min=0)
        stays = i == 0 or is_forced or course.uniform() < float((q_V[token] - p_V[token]).exp()) or not rest_V.any()
        if not stays:
            token = _draw(rest_V, course)
        sampled_logp = 0.0 if is_forced else float(q_V[token])
        reveals.append(Reveal(b, slots[i], token, float(logp_V[token]), sampled_logp, line.num_passes))
        if not stays:
            break
    return reveals


def _draw(weight_V: Tensor, course: Course) -> int:
    uniform = torch.tensor([course.uniform()], dtype=torch.float64, device=weight_V.device)
    return int(draw_weighted(weight_V[None], uniform)[0])
