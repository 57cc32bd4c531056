"""Words that must appear: the model chooses where.

Each word in turn is tried at every place of a free blank that has room for it, and put where the model, given all that
stands on the canvas so far, finds its first piece likely: the place is drawn in proportion to that probability. The
word then counts as given, so it cannot fail to appear.

Shapes: L slots, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pmlm.corpus.framing import row_batch
from pmlm.errors import ConstraintError
from pmlm.generation.canvas import Canvas, make_canvas
from pmlm.generation.template import Blank, Given, Segment, Template, encode_part
from pmlm.likelihood import hidden_logp
from pmlm.model import LanguageModel, Slots, Visibility
from pmlm.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Place:
    segment: int
    offset: int
    """Tokens of the blank before the word."""
    slot: int
    first_piece: int


@torch.no_grad()
def place_words(
    template: Template,
    words: Sequence[str],
    model: LanguageModel,
    tokenizer: Tokenizer,
    visibility: Visibility,
    rng: torch.Generator,
    *,
    greedy: bool = False,
) -> Template:
    """The template with each word standing in one of its free blanks; the longest words are placed first."""
    by_size = sorted(words, key=lambda word: -len(tokenizer.encode_inner(" " + word)))
    for word in by_size:
        if not word.strip() or word != word.strip():
            raise ConstraintError(f"a word that must appear is a text without spaces around it, got {word!r}")
        canvas = make_canvas(template, tokenizer, model.config.max_length)
        places = _places(canvas, word, tokenizer)
        if not places:
            raise ConstraintError(f"there is no free blank with room for {word!r}")
        batch = row_batch([canvas.row], tokenizer).to(model.device)
        slots = torch.tensor([place.slot for place in places], device=model.device)
        at = Slots(torch.zeros_like(slots), slots)
        logp_MV = hidden_logp(model, batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL), visibility, at).cpu()
        pieces = torch.tensor([place.first_piece for place in places])
        logp_M = logp_MV.gather(1, pieces[:, None])[:, 0].double()
        pick = int(logp_M.argmax()) if greedy else int(torch.multinomial(logp_M.softmax(0), 1, generator=rng))
        template = _put(template, places[pick], word, tokenizer)
    return template


def _places(canvas: Canvas, word: str, tokenizer: Tokenizer) -> list[_Place]:
    places = []
    for number, (segment, (start, end)) in enumerate(zip(canvas.template.segments, canvas.spans, strict=True)):
        if not isinstance(segment, Blank) or segment.is_word or segment.limits:
            continue
        is_first = start == 1
        for offset in range(end - start):
            if offset == 0 and segment.starts_word is False:
                continue  # the blank goes on with a word
            ids = _word_ids(word, tokenizer, is_first=is_first and offset == 0)
            if offset + len(ids) <= end - start:
                places.append(_Place(number, offset, start + offset, ids[0]))
    return places


def _word_ids(word: str, tokenizer: Tokenizer, *, is_first: bool) -> list[int]:
    return encode_part(word if is_first else " " + word, tokenizer, is_first=is_first)


def _put(template: Template, place: _Place, word: str, tokenizer: Tokenizer) -> Template:
    blank = template.segments[place.segment]
    assert isinstance(blank, Blank)
    assert blank.num_tokens is not None
    is_first = place.segment == 0 and place.offset == 0
    size = len(_word_ids(word, tokenizer, is_first=is_first))
    rest = blank.num_tokens - place.offset - size
    parts: list[Segment] = []
    if place.offset:
        parts.append(replace(blank, num_tokens=place.offset))
    parts.append(Given(word if is_first else " " + word))
    if rest:
        parts.append(replace(blank, num_tokens=rest, starts_word=None))
    return Template((*template.segments[: place.segment], *parts, *template.segments[place.segment + 1 :]))
