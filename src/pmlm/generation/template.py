r"""Templates: plain text with blanks.

- `[MASK]`     one token
- `[MASK:20]`  twenty tokens
- `___`        one word, as many tokens as it needs (three underscores or more)
- `\[`, `\_` and `\\` stand for the character itself

A space before a blank belongs to the blank: what fills it starts a word. Without that space the filling goes on
where the text stopped. A blank at the very beginning starts a word.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pmlm.errors import TemplateError
from pmlm.tokenizer import Tokenizer

_TOKEN = re.compile(r"\\(?P<escaped>[\[_\\])|(?P<word>_{3,})|(?P<open>\[MASK)(?P<rest>(?::[^\]\[]*)?\])?")
_MOST_ALIGNMENTS = 10_000


@dataclass(frozen=True)
class Given:
    """Text that stays as it is."""

    text: str


@dataclass(frozen=True)
class Blank:
    num_tokens: int | None
    """None: one word."""
    starts_word: bool


Segment = Given | Blank


@dataclass(frozen=True)
class Template:
    segments: tuple[Segment, ...]

    @property
    def blanks(self) -> list[Blank]:
        return [segment for segment in self.segments if isinstance(segment, Blank)]


def parse_template(source: str) -> Template:
    """Raises TemplateError with the place of what is wrong."""
    parts: list[str | int | None] = [""]  # texts, and blanks as their number of tokens
    end = 0
    for match in _TOKEN.finditer(source):
        parts = _append_text(parts, source[end : match.start()])
        if match["escaped"]:
            parts = _append_text(parts, match["escaped"])
        else:
            parts += [None if match["word"] else _blank_size(source, match), ""]
        end = match.end()
    parts = _append_text(parts, source[end:])
    return Template(tuple(_place_spaces(parts)))


def _append_text(parts: list[str | int | None], text: str) -> list[str | int | None]:
    return [*parts[:-1], f"{parts[-1]}{text}"]


def _blank_size(source: str, match: re.Match[str]) -> int:
    if match["rest"] is None:
        raise TemplateError(
            f"the blank that opens at character {match.start()} is not closed: write [MASK], [MASK:20], or \\[ for a "
            "bracket"
        )
    size = match["rest"].removeprefix(":").removesuffix("]")
    if match["rest"] == "]":
        return 1
    if not re.fullmatch(r"[0-9]{1,6}", size) or int(size) < 1:
        raise TemplateError(
            f"a blank takes a whole number of tokens from 1 on, got {source[match.start() : match.end()]!r}"
        )
    return int(size)


def _place_spaces(parts: list[str | int | None]) -> Iterator[Segment]:
    """Give each blank the space before it; drop texts that are empty then."""
    for i, part in enumerate(parts):
        if isinstance(part, str):
            text = part.removesuffix(" ") if i + 1 < len(parts) else part
            if text:
                yield Given(text)
        else:
            before = parts[i - 1]
            assert isinstance(before, str)
            yield Blank(part, before.endswith(" ") or (i == 1 and not before))


@dataclass(frozen=True)
class FilledPart:
    """A segment of a template with the text and the ids that stand there."""

    is_blank: bool
    text: str
    ids: tuple[int, ...]


def fit(template: Template, text: str, tokenizer: Tokenizer) -> list[FilledPart]:
    """The ids of `text`, cut where the template's blanks are; TemplateError where it does not fit."""
    first_problem: TemplateError | None = None
    for spans in itertools.islice(_alignments(template.segments, text, 0, set()), _MOST_ALIGNMENTS):
        try:
            return _encode_parts(template, spans, tokenizer)
        except TemplateError as problem:
            first_problem = first_problem or problem
    raise first_problem or TemplateError(f"the text does not fit the template: {_mismatch(template, text)}")


def _alignments(
    segments: tuple[Segment, ...], text: str, at: int, dead: set[tuple[int, int]]
) -> Iterator[tuple[str, ...]]:
    """Every way to cut `text[at:]` into the segments' texts; `dead` remembers where there is none."""
    if (len(segments), at) in dead:
        return
    if not segments:
        if at == len(text):
            yield ()
        return
    found = False
    for end in _ends(segments, text, at):
        for rest in _alignments(segments[1:], text, end, dead):
            found = True
            yield (text[at:end], *rest)
    if not found:
        dead.add((len(segments), at))


def _ends(segments: tuple[Segment, ...], text: str, at: int) -> Iterator[int]:
    """Where the first segment may end if it begins at `at`."""
    head = segments[0]
    if isinstance(head, Given):
        if text.startswith(head.text, at):
            yield at + len(head.text)
        return
    with_space = head.starts_word and at > 0
    if (text[at : at + 1] == " ") if with_space else not text[at : at + 1].isspace():
        yield from range(at + 1 + with_space, len(text) + 1)


def _encode_parts(template: Template, spans: tuple[str, ...], tokenizer: Tokenizer) -> list[FilledPart]:
    parts: list[FilledPart] = []
    numbers = itertools.count(1)
    for segment, span in zip(template.segments, spans, strict=True):
        ids = tuple(encode_part(span, tokenizer, is_first=not parts))
        if isinstance(segment, Blank):
            _check_filling(next(numbers), segment, span, ids)
        parts.append(FilledPart(isinstance(segment, Blank), span, ids))
    return parts


def encode_part(text: str, tokenizer: Tokenizer, *, is_first: bool) -> list[int]:
    """The ids of a part of a text that is cut at blanks."""
    return tokenizer.encode(text) if is_first else tokenizer.encode_inner(text, continues=True)


def _check_filling(number: int, blank: Blank, span: str, ids: tuple[int, ...]) -> None:
    if blank.num_tokens is None:
        if len(span.split()) != 1:
            raise TemplateError(f"blank {number} (___) takes one word, not {span.strip()!r}")
    elif len(ids) != blank.num_tokens:
        tokens = "1 token" if blank.num_tokens == 1 else f"{blank.num_tokens} tokens"
        raise TemplateError(
            f"blank {number} takes {tokens}, but {span.strip()!r} has {len(ids)}. Write [MASK:{len(ids)}], or ___ for "
            "a word of any length."
        )


def _mismatch(template: Template, text: str) -> str:
    at = 0
    for segment in template.segments:
        if isinstance(segment, Given):
            found = text.find(segment.text, at)
            if found < 0:
                return f"{segment.text.strip()!r} is not found in it (from character {at} on)"
            at = found + len(segment.text)
    return "its blanks or its end do not match"


def filled_text(template: Template, fillings: list[str]) -> str:
    """The template with its blanks filled, spaces restored: the inverse of `fit`."""
    if len(fillings) != len(template.blanks):
        raise TemplateError(f"the template has {len(template.blanks)} blanks, but {len(fillings)} fillings were given")
    words = iter(fillings)
    text = ""
    for segment in template.segments:
        if isinstance(segment, Given):
            text += segment.text
        else:
            text += (" " if segment.starts_word and text else "") + next(words)
    return text
