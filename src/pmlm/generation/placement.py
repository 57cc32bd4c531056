"""Words that must appear: the model chooses where.

Each word in turn is tried at every place of a blank that has room for it and leaves room for the others, and put where
the model, given all that stands on the canvas so far, finds its first piece likely: the place is drawn in proportion to
that probability. The word then counts as given, so it cannot fail to appear. A word that stands in the given text has
appeared. A blank that takes one of a list (in=…) takes a word of that list, and then no other.

Shapes: L slots, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pmlm.corpus.framing import row_batch
from pmlm.errors import ConstraintError
from pmlm.generation.canvas import WITHIN_WORDS, Canvas, make_canvas
from pmlm.generation.constraints import choices_value, listed_choices
from pmlm.generation.template import Blank, Given, Segment, Template, encode_part
from pmlm.likelihood import hidden_logp
from pmlm.model import LanguageModel, Slots, Visibility
from pmlm.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Place:
    slot: int
    first_piece: int
    template: Template
    """With the word at this place."""


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
    """The template with each word standing in one of its blanks; the longest words are placed first."""
    for word in words:
        if not word.strip() or word != word.strip():
            raise ConstraintError(f"a word that must appear is a text without spaces around it, got {word!r}")
    missing = [word for word in words if not _stands(template, word)]
    missing.sort(key=lambda word: -_most_tokens(word, tokenizer))
    for number, word in enumerate(missing):
        canvas = make_canvas(template, tokenizer, model.config.max_length)
        places = _places(canvas, word, tokenizer)
        rest = missing[number + 1 :]
        roomy = [place for place in places if has_room(place.template, rest, tokenizer)]
        if not (roomy or places):
            raise ConstraintError(f"there is no free blank with room for {word!r}{_where_blanks_are(canvas)}")
        places = roomy or places
        batch = row_batch([canvas.row], tokenizer).to(model.device)
        slots = torch.tensor([place.slot for place in places], device=model.device)
        at = Slots(torch.zeros_like(slots), slots)
        logp_MV = hidden_logp(model, batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL), visibility, at).cpu()
        pieces = torch.tensor([place.first_piece for place in places])
        logp_M = logp_MV.gather(1, pieces[:, None])[:, 0].double()
        pick = int(logp_M.argmax()) if greedy else int(torch.multinomial(logp_M.softmax(0), 1, generator=rng))
        template = places[pick].template
    return template


def has_room(template: Template, words: Sequence[str], tokenizer: Tokenizer) -> bool:
    """Whether words that must appear find room in the blanks: the longest first, each in the fullest that takes it."""
    room = [b.num_tokens for b in template.blanks if _takes_words(b) and b.num_tokens is not None]
    apart = [template.blank_at(k) for k in range(len(template.segments)) if _is_apart(template, k)]
    listed = [choices for blank in apart if (choices := _choices(blank)) is not None]
    missing = [word for word in words if not _stands(template, word)]
    for word in sorted(missing, key=lambda word: -_most_tokens(word, tokenizer)):
        size = _most_tokens(word, tokenizer)
        if (offer := next((choices for choices in listed if word in choices), None)) is not None:
            listed.remove(offer)
        elif fitting := sorted(n for n in room if n >= size):
            room.remove(fitting[0])
            room.append(fitting[0] - size)
        else:
            return False
    return True


def _stands(template: Template, word: str) -> bool:
    """Whether a word is there already, as a word: in the given text, or as the only choice of a blank."""
    whole = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    for number, segment in enumerate(template.segments):
        if isinstance(segment, Blank):
            if (
                len(choices := _choices(segment) or []) == 1
                and whole.search(choices[0])
                and _is_apart(template, number)
            ):
                return True
            continue
        after = template.segments[number + 1] if number + 1 < len(template.segments) else None
        is_open_end = isinstance(after, Blank) and after.starts_word is False
        for match in whole.finditer(segment.text):
            at_edge = (match.start() == 0 and number > 0) or (match.end() == len(segment.text) and is_open_end)
            if not at_edge:
                return True
    return False


def _is_apart(template: Template, number: int) -> bool:
    """Whether what fills a blank is not glued to letters beside it."""
    blank = template.segments[number]
    return isinstance(blank, Blank) and blank.starts_word is not False and not _goes_on(template, number)


def _goes_on(template: Template, number: int) -> bool:
    """Whether the given text after a segment goes on with its last word."""
    after = template.segments[number + 1] if number + 1 < len(template.segments) else None
    return isinstance(after, Given) and (after.text[0].isalnum() or after.text[0] in WITHIN_WORDS)


def _choices(blank: Blank) -> list[str] | None:
    """What a blank with nothing but a list takes."""
    names = [name for name, _ in blank.limits]
    return listed_choices(blank.limits[0][1]) if names == ["in"] else None


def _takes_words(blank: Blank) -> bool:
    """Whether a word can be put into a blank: its options must say what becomes of what is left of it."""
    return not blank.is_word and all(name in ("starts", "ends", "line") for name, _ in blank.limits)


def _places(canvas: Canvas, word: str, tokenizer: Tokenizer) -> list[_Place]:
    places = []
    template = canvas.template
    for number, (blank, (start, end)) in enumerate(zip(template.segments, canvas.spans, strict=True)):
        if not isinstance(blank, Blank):
            continue
        if word in (_choices(blank) or []) and _is_apart(template, number):
            only = replace(blank, limits=(("in", choices_value([word])),))
            piece = _word_ids(word, tokenizer, is_first=start == 1 or not blank.starts_word)[0]
            places.append(_Place(start, piece, _replaced(template, number, [only])))
        goes_on = _goes_on(template, number)
        for offset in range(end - start) if _takes_words(blank) else ():
            is_first = start == 1 and offset == 0
            ids = _word_ids(word, tokenizer, is_first=is_first)
            parts = _split(blank, offset, len(ids), word if is_first else " " + word)
            is_last = offset + len(ids) == end - start
            if parts is not None and not (is_last and goes_on):
                places.append(_Place(start + offset, ids[0], _replaced(template, number, parts)))
    return places


def _word_ids(word: str, tokenizer: Tokenizer, *, is_first: bool) -> list[int]:
    return encode_part(word if is_first else " " + word, tokenizer, is_first=is_first)


def _most_tokens(word: str, tokenizer: Tokenizer) -> int:
    return max(len(_word_ids(word, tokenizer, is_first=is_first)) for is_first in (True, False))


def _split(blank: Blank, offset: int, size: int, text: str) -> list[Segment] | None:
    """A blank with a text of so many tokens in it; None where that cannot be."""
    assert blank.num_tokens is not None
    rest = blank.num_tokens - offset - size
    if rest < 0 or (offset == 0 and blank.starts_word is False):  # such a blank goes on with a word
        return None
    before = tuple(limit for limit in blank.limits if limit[0] != "ends")
    after = tuple(limit for limit in blank.limits if limit[0] != "starts")
    word = text.strip()
    if "\n" in word and any(name == "line" for name, _ in blank.limits):
        return None
    if offset == 0 and any(name == "starts" and not word.startswith(value) for name, value in before):
        return None
    if rest == 0 and any(name == "ends" and not word.endswith(value) for name, value in after):
        return None
    parts: list[Segment] = [replace(blank, num_tokens=offset, sizes=None, limits=before)] if offset else []
    parts.append(Given(text))
    if rest:
        parts.append(replace(blank, num_tokens=rest, sizes=None, starts_word=None, limits=after))
    return parts


def _replaced(template: Template, number: int, parts: Sequence[Segment]) -> Template:
    """With given texts that now stand side by side as one, as they are when it is read again."""
    segments: list[Segment] = []
    for segment in (*template.segments[:number], *parts, *template.segments[number + 1 :]):
        if segments and isinstance(segment, Given) and isinstance(last := segments[-1], Given):
            segments[-1] = Given(last.text + segment.text)
        else:
            segments.append(segment)
    return Template(tuple(segments))


def _where_blanks_are(canvas: Canvas) -> str:
    spans = zip(canvas.template.segments, canvas.spans, strict=True)
    sizes = [f"{end - start} at position {start - 1}" for blank, (start, end) in spans if isinstance(blank, Blank)]
    return f" (tokens of the blanks: {', '.join(sizes)})" if sizes else " (nothing is left of the blanks)"
