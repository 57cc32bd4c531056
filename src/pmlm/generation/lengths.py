"""How many tokens a blank needs that leaves it open: `___`, `[MASK:5-15]`, `[MASK:*]`.

A length n is as good as log p(n) + log p(context | n hidden slots): the blank is left unrevealed and the text around it
is scored, exactly, under the model's own visibility. The context is the nearest tokens on either side; what lies
further off is taken as given, since it hardly depends on n. A left-to-right model sees no context after a blank, so
there p(n) alone speaks. For words p(n) comes from the training text; for other blanks every length is as likely. Of
many lengths only some are scored, the more sparsely the longer they are, and those between are interpolated.

Shapes: B lengths, L slots.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from pmlm.corpus.framing import row_batch
from pmlm.errors import ConstraintError, TemplateError
from pmlm.generation.canvas import Canvas, make_canvas
from pmlm.generation.template import Blank, Segment, Template
from pmlm.likelihood import order_logp
from pmlm.model import LanguageModel, Visibility
from pmlm.tokenizer import Tokenizer
from pmlm.visibility import NEVER

NEAR = 6
"""How many given tokens on either side of a blank are scored."""
LONGEST = 40
"""The most tokens that `[MASK:*]` considers."""
EACH = 12
"""So many of the lengths of a blank are scored one by one."""
SPARSE = 0.15
"""Beyond them, steps grow by this share."""
PLAIN_WORD_LOGP = (-0.22, -2.1, -2.8, -3.9)
"""log p(n) of a word where no table of words is at hand: 80, 12, 6 and 2 %."""


class Possible(Protocol):
    def __call__(self, canvas: Canvas, *, is_final: bool, is_strict: bool) -> bool:
        """Whether what is asked for can be had on a canvas.

        Not final: other lengths are still open. Strict: with words that the model knows alone.
        """
        ...


def choose_lengths(
    template: Template,
    model: LanguageModel,
    tokenizer: Tokenizer,
    visibility: Visibility,
    word_logp: Sequence[float],
    rng: torch.Generator,
    *,
    is_possible: Possible,
    total: int | None = None,
    likely_total: float | None = None,
    greedy: bool = False,
) -> Template:
    """The template with a number of tokens for every blank that leaves it open, chosen from left to right.

    Lengths for which what is asked for cannot be had are left out. With `total`, all tokens are so many; with
    `likely_total`, about so many.
    """
    segments = [_shortest(segment) for segment in template.segments]
    room, word_prior = model.config.max_length, torch.tensor(word_logp, dtype=torch.float64)
    open_ones = [k for k, s in enumerate(template.segments) if isinstance(s, Blank) and s.num_tokens is None]
    for place, k in enumerate(open_ones):
        blank, later = template.blank_at(k), open_ones[place + 1 :]
        now = make_canvas(Template(tuple(segments)), tokenizer, room)
        lengths = _lengths(blank, room - len(now.row.ids), has_total=total is not None)
        if total is not None:
            lengths = _within_total(lengths, now, k, [template.blank_at(i) for i in later], total)
        canvases = [_with_length(segments, k, blank, n, tokenizer, room) for n in lengths]
        tried = _tried(len(canvases))
        scored = length_scores([canvases[i] for i in tried], k, model, tokenizer, visibility)
        scores = torch.from_numpy(np.interp(range(len(canvases)), tried, scored.cpu().numpy()))
        if blank.is_word:
            scores += word_prior[[n - 1 for n in lengths]]
        if likely_total is not None:
            totals = torch.tensor([len(canvas.row.ids) - 2 for canvas in canvases], dtype=torch.float64)
            off = (totals - likely_total) / (1 + 0.1 * likely_total)
            scores -= 0.5 * (off.clamp(min=0) if later else off) ** 2
        ranked = scores.argsort(descending=True, stable=True).tolist() if greedy else _drawn(scores, rng)
        judged = canvases
        if later:  # what is asked of blanks of open length is not asked yet
            free = [replace(s, limits=()) if i in later and isinstance(s, Blank) else s for i, s in enumerate(segments)]
            judged = [_with_length(free, k, blank, n, tokenizer, room) for n in lengths]
        best = _first_possible(ranked, judged, is_possible, is_final=not later)
        segments[k] = canvases[best].template.segments[k]
    return Template(tuple(segments))


def _drawn(scores: torch.Tensor, rng: torch.Generator) -> list[int]:
    """All of them, drawn one after the other without putting back: leaving some out changes nothing for the others."""
    chances = scores.softmax(0)
    likely = int((chances > 0).sum())
    first = torch.multinomial(chances, likely, generator=rng).tolist()
    return first + [i for i in scores.argsort(descending=True).tolist() if i not in set(first)]


def _first_possible(ranked: Sequence[int], canvases: Sequence[Canvas], is_possible: Possible, *, is_final: bool) -> int:
    for is_strict in (True, False):
        for i in ranked:
            if is_possible(canvases[i], is_final=is_final, is_strict=is_strict):
                return i
    return ranked[0]


def _tried(count: int) -> list[int]:
    """Which of so many lengths are scored: the first ones, then ever fewer; between them scores are interpolated."""
    steps, at = list(range(min(count, EACH))), EACH
    while at < count:
        steps.append(at)
        at += max(1, round(at * SPARSE))
    return steps if steps[-1] == count - 1 else [*steps, count - 1]


def length_scores(
    canvases: Sequence[Canvas], segment: int, model: LanguageModel, tokenizer: Tokenizer, visibility: Visibility
) -> torch.Tensor:
    """[B] log p(context | n), up to a constant, for canvases that differ in the length of one blank."""
    if visibility == "causal":
        return torch.zeros(len(canvases), dtype=torch.float64)
    return context_logp(canvases, segment, model, tokenizer, visibility)


def barest(template: Template) -> Template:
    """Blanks of open length as short as may be, and with nothing asked of them."""
    segments = []
    for segment in template.segments:
        is_open = isinstance(segment, Blank) and segment.num_tokens is None
        shortest = _shortest(segment)
        segments.append(replace(shortest, limits=()) if is_open and isinstance(shortest, Blank) else shortest)
    return Template(tuple(segments))


def _shortest(segment: Segment) -> Segment:
    if isinstance(segment, Blank) and segment.num_tokens is None:
        assert segment.sizes is not None
        return replace(segment, num_tokens=segment.sizes[0])
    return segment


def _lengths(blank: Blank, spare: int, *, has_total: bool) -> list[int]:
    """The lengths of a blank that fit the model, which has room for so many tokens beyond the least."""
    assert blank.sizes is not None
    least, most = blank.sizes
    if most is None:
        most = least + (spare if has_total else LONGEST - 1)
    longest = min(most, least + spare)
    if longest < least:
        raise TemplateError("the template is too long for the model")
    return list(range(least, longest + 1))


def _within_total(lengths: Sequence[int], now: Canvas, k: int, later: Sequence[Blank], total: int) -> list[int]:
    """The lengths of blank k with which all tokens can still be `total`; the later blanks are at their shortest."""
    start, end = now.spans[k]
    others = len(now.row.ids) - 2 - (end - start)
    slack = 0
    for blank in later:
        assert blank.sizes is not None
        least, most = blank.sizes
        slack += total if most is None else most - least
    fitting = [n for n in lengths if others + n <= total <= others + n + slack]
    if not fitting:
        raise ConstraintError(f"no length of the blank at position {start - 1} makes a text of {total} tokens in all")
    return fitting


def _with_length(
    segments: Sequence[Segment], k: int, blank: Blank, length: int, tokenizer: Tokenizer, room: int
) -> Canvas:
    sized = replace(blank, num_tokens=length)
    return make_canvas(Template((*segments[:k], sized, *segments[k + 1 :])), tokenizer, room)


def context_logp(
    canvases: Sequence[Canvas], segment: int, model: LanguageModel, tokenizer: Tokenizer, visibility: Visibility
) -> torch.Tensor:
    """[B] log-probability of the given tokens nearest to a blank while every blank stays hidden, left to right."""
    batch = row_batch([canvas.row for canvas in canvases], tokenizer)
    rank_BL = torch.where(batch.maskable_BL, NEVER, 0)
    for b, canvas in enumerate(canvases):
        before, after = canvas.spans[segment]
        hidden = set(canvas.hidden)
        given = [i for i in range(1, len(canvas.row.ids) - 1) if i not in hidden]
        near = [i for i in given if i < before][-NEAR:] + [i for i in given if i >= after][:NEAR]
        rank_BL[b, near] = torch.arange(1, len(near) + 1)
    return order_logp(model, batch, rank_BL, visibility).sum(1)
