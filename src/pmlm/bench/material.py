"""Texts to measure on: passages of held-out documents that fit a model, templates made by hiding their words, and the
texts that a model writes into them.

A *unit* is a word with what is glued to it (`Mia's`, `"Where`), or a mark. Hiding whole units cuts a text only where
its tokenizer cuts it too, so that what stays given keeps its ids.
"""

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pmlm.bench.study import Notes
from pmlm.corpus.framing import Row, windows
from pmlm.errors import ConstraintError, DataError
from pmlm.generation.template import Blank, Given, Segment, Template
from pmlm.lm import LM
from pmlm.options import FillOptions
from pmlm.results import candidate_seeds, likeliest
from pmlm.runtime import generator
from pmlm.tokenizer import Piece, Tokenizer

SHORTEST = 16
"""Tokens of a passage, at least."""
_SENTENCE_END = re.compile(r"[.!?][\"'”’)]*(?=\s|$)")


@dataclass(frozen=True)
class Unit:
    """A word or a mark: the characters and the tokens it takes; its space belongs to it."""

    start: int
    end: int
    num_tokens: int
    is_hideable: bool
    is_word: bool


@dataclass(frozen=True)
class Passage:
    text: str
    document: int
    is_whole: bool
    """False: the beginning of a document, up to the end of a sentence."""
    units: tuple[Unit, ...]

    @property
    def num_tokens(self) -> int:
        return sum(unit.num_tokens for unit in self.units)


def sentence_ends(text: str) -> list[int]:
    """After the marks that end a sentence."""
    return [match.end() for match in _SENTENCE_END.finditer(text)]


def sentences(text: str) -> list[str]:
    """Cut after marks that end a sentence; what follows the last one is left out."""
    ends = sentence_ends(text)
    return [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]


def read_units(text: str, tokenizer: Tokenizer) -> tuple[Unit, ...]:
    pieces, byte_ids = tokenizer.pieces(text), set(tokenizer.byte_ids)
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and (piece.id in byte_ids or _goes_on(text, piece, groups[-1][-1])):
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return tuple(_unit(text, group, keeps_spaces=tokenizer.kind == "reversible") for group in groups)


def _goes_on(text: str, piece: Piece, before: Piece) -> bool:
    """Whether a piece belongs to the unit before it: letters and digits, or an apostrophe inside a word, unspaced."""
    if piece.start < before.end or text[before.start : before.end] in ("", " "):
        return True  # bytes of one character, or a word whose space is a piece of its own
    last, here = text[piece.start - 1], text[piece.start : piece.start + 2]
    return not last.isspace() and (here[:1].isalnum() or (here[:1] == "'" and last.isalnum() and here[1:].isalpha()))


def _unit(text: str, group: Sequence[Piece], *, keeps_spaces: bool) -> Unit:
    start, end = group[0].start, group[-1].end
    if not keeps_spaces and start and text[start - 1] == " ":
        start -= 1
    inner = text[start:end].removeprefix(" ")
    is_hideable = bool(inner) and not any(map(str.isspace, inner)) and not text[max(start - 1, 0) : start].isspace()
    return Unit(start, end, len(group), is_hideable, inner.isalpha())


def draw_passages(
    documents: Sequence[str],
    tokenizer: Tokenizer,
    *,
    room: int,
    count: int,
    rng: torch.Generator,
    beginnings: bool = False,
) -> list[Passage]:
    """Documents drawn at random that fit into `room` tokens; where there are too few, beginnings of longer ones.

    `beginnings`: those alone. In an encyclopedia what fits is mostly lists of what a name may mean.
    """
    whole: list[Passage] = []
    longer: list[int] = []
    for i in torch.randperm(len(documents), generator=rng).tolist():
        if len(whole) == count or (beginnings and len(longer) >= 2 * count):
            break
        units = read_units(documents[i], tokenizer)
        size = sum(unit.num_tokens for unit in units)
        if SHORTEST <= size <= room and not beginnings:
            whole.append(Passage(documents[i], i, True, units))
        elif size > room:
            longer.append(i)
    for i in longer:
        if len(whole) == count:
            break
        if text := _beginning(documents[i], tokenizer, room):
            whole.append(Passage(text, i, False, read_units(text, tokenizer)))
    if len(whole) < count:
        raise DataError(f"the text has {len(whole)} passages of {SHORTEST} to {room} tokens, {count} are needed")
    return whole


def _beginning(text: str, tokenizer: Tokenizer, room: int) -> str:
    """As many whole sentences as fit; nothing where that is too short."""
    starts = [piece.start for piece in tokenizer.pieces(text)]
    for end in reversed(sentence_ends(text)):
        size = bisect.bisect_left(starts, end)
        if size <= room:
            return text[:end] if size >= SHORTEST else ""
    return ""


def template_of(passage: Passage, hidden: Sequence[int]) -> Template:
    """The passage with some of its units hidden; neighbours make one blank that begins with a space or a mark."""
    segments: list[Segment] = []
    flags = set(hidden)
    given_from = 0
    for i, unit in enumerate(passage.units):
        if i not in flags:
            continue
        if given := passage.text[given_from : unit.start]:
            segments.append(Given(given))
        given_from = unit.end
        last = segments[-1] if segments else None
        if isinstance(last, Blank):
            assert last.num_tokens is not None
            segments[-1] = Blank(last.num_tokens + unit.num_tokens, last.starts_word)
        else:
            segments.append(Blank(unit.num_tokens, True if unit.start == 0 else None))
    if given := passage.text[given_from:]:
        segments.append(Given(given))
    return Template(tuple(segments))


def hide_words(passage: Passage, share: float, rng: torch.Generator) -> Template:
    """A share of the units hidden at random; all of them where it is 1, as one blank."""
    if share >= 1:
        return Template((Blank(passage.num_tokens, starts_word=True),))
    return template_of(passage, draw_hidden_units(passage, share, rng))


def draw_hidden_units(passage: Passage, share: float, rng: torch.Generator) -> list[int]:
    free = [i for i, unit in enumerate(passage.units) if unit.is_hideable]
    count = min(max(1, round(share * len(passage.units))), len(free))
    return sorted(free[k] for k in torch.randperm(len(free), generator=rng)[:count].tolist())


def hide_middle(passage: Passage) -> Template:
    """The first and the last sentence given, all between them hidden; DataError where there is nothing between."""
    return _hide_after_first(passage, keep_last=True)


def hide_rest(passage: Passage) -> Template:
    """The first sentence given, all after it hidden; DataError where that is next to nothing."""
    return _hide_after_first(passage, keep_last=False)


def _hide_after_first(passage: Passage, *, keep_last: bool) -> Template:
    ends = sentence_ends(passage.text)
    if len(ends) < 3:
        raise DataError("a passage of three sentences or more is needed")
    stop = ends[-2] if keep_last else len(passage.text)
    size = sum(unit.num_tokens for unit in passage.units if unit.start >= ends[0] and unit.end <= stop)
    last = passage.text[stop:]
    return Template((Given(passage.text[: ends[0]]), Blank(size, starts_word=None), *([Given(last)] if last else [])))


def document_rows(documents: Mapping[int, str], tokenizer: Tokenizer, context: int) -> list[Row]:
    """The documents, by number, in windows of at most `context` slots."""
    return [row for i, text in documents.items() for row in windows(text, tokenizer, context, i)]


def draw_documents(documents: Sequence[str], count: int, seed: int) -> dict[int, str]:
    """Some documents by their numbers, drawn by the seed, in their own order; all where there are no more."""
    pick = torch.randperm(len(documents), generator=generator(seed, "documents"))[:count]
    return {i: documents[i] for i in sorted(pick.tolist())}


def shuffle_words(text: str, rng: torch.Generator) -> str:
    """The words of a text in random order: what no judge should like."""
    words = text.split()
    return " ".join(words[i] for i in torch.randperm(len(words), generator=rng).tolist())


def write_texts(
    lm: LM,
    templates: Sequence[Template],
    options: FillOptions,
    notes: Notes,
    name: str,
    *,
    first_seed: int = 0,
    best_of: int = 1,
    chunk: int = 8,
    progress: Callable[[int], None] = lambda _done: None,
) -> list[str | None]:
    """What the model writes into each template, from seeds that count up; None where it found no text at all.

    `best_of`: each is the likeliest of so many.
    """
    texts: list[str | None] = []
    for start in range(0, len(templates), chunk):
        part = templates[start : start + chunk]
        seeds = candidate_seeds(first_seed + start, len(part), best_of)
        texts += notes.get(f"{name}/{start}", _write, lm, part, seeds, options, best_of)
        progress(len(part))
    return texts


def _write(
    lm: LM, templates: Sequence[Template], seeds: Sequence[int], options: FillOptions, best_of: int
) -> list[str | None]:
    try:
        each = [template for template in templates for _ in range(best_of)]
        return [filled.text for filled in likeliest(lm.fill_batch(each, seeds=seeds, **options), best_of)]
    except ConstraintError:
        if len(templates) == 1:
            return [None]
        own = [seeds[i : i + best_of] for i in range(0, len(seeds), best_of)]
        pairs = zip(templates, own, strict=True)
        return [text for template, some in pairs for text in _write(lm, [template], some, options, best_of)]
