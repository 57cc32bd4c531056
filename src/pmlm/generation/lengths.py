"""How many tokens a blank of one word needs.

A length n is as good as log p(n) + log p(context | n hidden slots): the blank is left unrevealed and the text around it
is scored, exactly, under the model's own visibility. The context is the nearest tokens on either side; what lies
further off is taken as given, since it hardly depends on n. A left-to-right model sees no context after a blank, so
there p(n) alone speaks.

Shapes: B lengths, L slots.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pmlm.corpus.framing import row_batch
from pmlm.generation.canvas import Canvas, make_canvas
from pmlm.generation.template import Blank, Template
from pmlm.likelihood import NEVER, order_logp
from pmlm.model import LanguageModel, Visibility
from pmlm.tokenizer import Tokenizer

MOST_PIECES = 4
NEAR = 6
"""How many given tokens on either side of a blank are scored."""
PLAIN_LENGTH_LOGP = (-0.22, -2.1, -2.8, -3.9)
"""log p(n) where no table of words is at hand: 80, 12, 6 and 2 %."""


def choose_lengths(
    template: Template,
    model: LanguageModel,
    tokenizer: Tokenizer,
    visibility: Visibility,
    length_logp: Sequence[float],
    rng: torch.Generator,
    *,
    greedy: bool = False,
) -> Template:
    """The template with a number of tokens for every blank of one word, chosen one after the other."""
    segments = [replace(s, num_tokens=1) if isinstance(s, Blank) and s.is_word else s for s in template.segments]
    for k, segment in enumerate(segments):
        if not isinstance(segment, Blank) or not segment.is_word:
            continue
        options = [
            Template((*segments[:k], replace(segment, num_tokens=n), *segments[k + 1 :]))
            for n in range(1, MOST_PIECES + 1)
        ]
        most = model.config.max_length
        canvases = [make_canvas(o, tokenizer, most) for o in options[:1]]
        canvases += [make_canvas(o, tokenizer, most) for o in options[1:] if _fits(canvases[0], o, most)]
        scores = torch.tensor(length_logp[: len(canvases)], dtype=torch.float64)
        if visibility != "causal":
            scores = scores + context_logp(canvases, k, model, tokenizer, visibility)
        best = int(scores.argmax()) if greedy else int(torch.multinomial(scores.softmax(0), 1, generator=rng))
        segments[k] = replace(segment, num_tokens=best + 1)
    return Template(tuple(segments))


def _fits(shortest: Canvas, option: Template, max_length: int) -> bool:
    def size(template: Template) -> int:
        return sum(blank.num_tokens or 0 for blank in template.blanks)

    return len(shortest.row.ids) + size(option) - size(shortest.template) <= max_length


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
