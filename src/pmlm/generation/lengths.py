"""How many tokens a blank needs that leaves it open: `___`, `[MASK:5-15]`, `[MASK:*]`.

A length n is as good as log p(n) + log p(context | n hidden slots): the blank is left unrevealed and the text around it
is scored, exactly, under the model's own visibility. The context is the nearest tokens on either side; what lies
further off is taken as given, since it hardly depends on n. A left-to-right model sees no context after a blank, so
there p(n) alone speaks. For words p(n) comes from the training text; for other blanks every length is as likely.

Shapes: B lengths, L slots.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from pmlm.corpus.framing import row_batch
from pmlm.errors import TemplateError
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
PLAIN_WORD_LOGP = (-0.22, -2.1, -2.8, -3.9)
"""log p(n) of a word where no table of words is at hand: 80, 12, 6 and 2 %."""


def choose_lengths(
    template: Template,
    model: LanguageModel,
    tokenizer: Tokenizer,
    visibility: Visibility,
    word_logp: Sequence[float],
    rng: torch.Generator,
    *,
    is_possible: Callable[[Canvas], bool],
    greedy: bool = False,
) -> Template:
    """The template with a number of tokens for every blank that leaves it open, chosen from left to right.

    `is_possible` says whether the options of a canvas's blanks can be had: lengths for which they cannot are left out.
    """
    segments = [_shortest(segment) for segment in template.segments]
    for k, segment in enumerate(segments):
        original = template.segments[k]
        if not isinstance(segment, Blank) or not isinstance(original, Blank) or original.num_tokens is not None:
            continue
        canvases = _canvases(segments, k, original, tokenizer, model.config.max_length)
        scores = length_scores(canvases, k, model, tokenizer, visibility, word_logp if original.is_word else None)
        if original.limits:
            free = [replace(s, limits=()) if isinstance(s, Blank) and i != k else s for i, s in enumerate(segments)]
            only = _canvases(free, k, original, tokenizer, model.config.max_length)
            possible = torch.tensor([is_possible(canvas) for canvas in only])
            if possible.any():
                scores = scores.masked_fill(~possible, -torch.inf)
        best = int(scores.argmax()) if greedy else int(torch.multinomial(scores.softmax(0), 1, generator=rng))
        segments[k] = canvases[best].template.segments[k]
    return Template(tuple(segments))


def length_scores(
    canvases: Sequence[Canvas],
    segment: int,
    model: LanguageModel,
    tokenizer: Tokenizer,
    visibility: Visibility,
    prior: Sequence[float] | None,
) -> torch.Tensor:
    """[B] log p(n) + log p(context | n), up to a constant, for canvases that differ in the length of one blank."""
    scores = torch.zeros(len(canvases), dtype=torch.float64)
    if prior is not None:
        scores += torch.tensor(prior[: len(canvases)], dtype=torch.float64)
    if visibility == "causal":
        return scores
    return scores + context_logp(canvases, segment, model, tokenizer, visibility)


def _shortest(segment: Segment) -> Segment:
    if isinstance(segment, Blank) and segment.num_tokens is None:
        assert segment.sizes is not None
        return replace(segment, num_tokens=segment.sizes[0])
    return segment


def _canvases(segments: Sequence[Segment], k: int, blank: Blank, tokenizer: Tokenizer, room: int) -> list[Canvas]:
    """One canvas for each length that fits the model."""
    assert blank.sizes is not None
    least, most = blank.sizes
    first = make_canvas(Template(tuple(segments)), tokenizer, room)
    longest = min(least + LONGEST - 1 if most is None else most, least + room - len(first.row.ids))
    if longest < least:
        raise TemplateError("the template is too long for the model")
    templates = [
        Template((*segments[:k], replace(blank, num_tokens=n), *segments[k + 1 :])) for n in range(least, longest + 1)
    ]
    return [make_canvas(template, tokenizer, room) for template in templates]


def context_logp(
    canvases: Sequence[Canvas], segment: int, model: LanguageModel, tokenizer: Tokenizer, visibility: Visibility
) -> torch.Tensor:
    """[B] log-probability of the given tokens nearest to a blank while every blank stays hidden, left to right."""
    batch = row_batch([canvas.row for canvas in canvases], tokenizer).to(model.device)
    rank_BL = torch.where(batch.maskable_BL, NEVER, 0)
    for b, canvas in enumerate(canvases):
        before, after = canvas.spans[segment]
        hidden = set(canvas.hidden)
        given = [i for i in range(1, len(canvas.row.ids) - 1) if i not in hidden]
        near = [i for i in given if i < before][-NEAR:] + [i for i in given if i >= after][:NEAR]
        rank_BL[b, near] = torch.arange(1, len(near) + 1, device=rank_BL.device)
    return order_logp(model, batch, rank_BL, visibility).sum(1)
