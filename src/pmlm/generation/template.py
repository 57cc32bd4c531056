r"""Templates: plain text with blanks.

- `[MASK]`     one token
- `[MASK:20]`  twenty tokens
- `[MASK:5-15]`, `[MASK:*]`  as many tokens as fit best, within bounds or not
- `___`, `[WORD]`  one word, as many tokens as it needs (three underscores or more); `[WORD:2]`  one of two tokens
- `\[`, `\_` and `\\` stand for the character itself

A space before a blank belongs to the blank: what fills it starts a word. Without that space the filling goes on
where the text stopped. A blank at the very beginning starts a word.

Options follow a bar, several of them one after the other, with `\|`, `\[`, `\]` and `\,` for the characters
themselves:

- `[MASK:3|open]`       the model decides: a space or a mark may follow, but the word before stays whole
- `[MASK:3|starts=T]`   the filling starts with T; `ends=s` likewise
- `[WORD|in=cat,dog]`   the filling is one of these
- `[MASK:2|digits]`     digits only; `[MASK:9|line]` no new line within
- `[WORD|regex=\[a-z\]+]` the filling matches, from beginning to end
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pmlm.errors import TemplateError
from pmlm.tokenizer import Tokenizer

_TOKEN = re.compile(
    r"\\(?P<escaped>[\[_\\])|(?P<word>_{3,})|\[(?P<name>MASK|WORD)(?P<rest>(?:[:|](?:\\.|[^\]\[\\])*)?\])?",
    re.DOTALL,
)
LONGEST_WORD = 4
"""Pieces of a blank of one word, at most."""
LIMITS = ("starts", "ends", "in", "regex", "digits", "line")
_BARE = ("digits", "line")


@dataclass(frozen=True)
class Given:
    """Text that stays as it is."""

    text: str


@dataclass(frozen=True)
class Blank:
    num_tokens: int | None
    """None: one word of any number of tokens."""
    starts_word: bool | None
    """True: with a space; False: without; None: as the model likes, but the word before it is whole."""
    is_word: bool = False
    """One word and nothing else."""
    sizes: tuple[int, int | None] | None = None
    """Where num_tokens is None: the least and the most tokens that may be chosen; None: as many as there is room."""
    limits: tuple[tuple[str, str], ...] = ()
    """What the filling must look like: names of LIMITS with their values."""


Segment = Given | Blank


@dataclass(frozen=True)
class Template:
    segments: tuple[Segment, ...]

    @property
    def blanks(self) -> list[Blank]:
        return [segment for segment in self.segments if isinstance(segment, Blank)]

    def blank_at(self, segment: int) -> Blank:
        blank = self.segments[segment]
        assert isinstance(blank, Blank)
        return blank


def parse_template(source: str) -> Template:
    """Raises TemplateError with the place of what is wrong."""
    texts, blanks, end = [""], list[_Mark](), 0
    for match in _TOKEN.finditer(source):
        texts[-1] += source[end : match.start()]
        if match["escaped"]:
            texts[-1] += match["escaped"]
        else:
            blanks.append(_Mark(_WORD_SIZES, is_word=True) if match["word"] else _read_blank(source, match))
            texts.append("")
        end = match.end()
    texts[-1] += source[end:]
    return Template(tuple(_place_spaces(texts, blanks)))


_WORD_SIZES = (1, LONGEST_WORD)


@dataclass(frozen=True)
class _Mark:
    """A blank as it is written."""

    sizes: tuple[int, int | None]
    is_word: bool = False
    is_open: bool = False
    limits: tuple[tuple[str, str], ...] = ()


def _read_blank(source: str, match: re.Match[str]) -> _Mark:
    written = source[match.start() : match.end()]
    if match["rest"] is None:
        raise TemplateError(
            f"the blank that opens at character {match.start()} is not closed: write [MASK], [MASK:20], or \\[ for a "
            "bracket (inside a blank \\[ and \\] too)"
        )
    size, *options = re.split(r"(?<!\\)\|", match["rest"].removesuffix("]"))
    is_word = match["name"] == "WORD"
    sizes = _WORD_SIZES if is_word and not size else _read_size(size, written)
    limits = tuple(_read_limit(option, written) for option in options if option != "open")
    if is_word and size and sizes[0] != sizes[1]:
        raise TemplateError(f"[WORD] takes as many tokens as it needs, or a number of them: got {written!r}")
    return _Mark(sizes, is_word, "open" in options, limits)


def _read_size(size: str, written: str) -> tuple[int, int | None]:
    if size == ":*":
        return 1, None
    found = re.fullmatch(r":([0-9]{1,6})(?:-([0-9]{1,6}))?", size or ":1")
    if found is None or int(found[1]) < 1:
        raise TemplateError(f"a blank takes a whole number of tokens from 1 on, got {written!r}")
    least, most = int(found[1]), int(found[2] or found[1])
    if most < least:
        raise TemplateError(f"a blank takes from few to many tokens, got {written!r}")
    return least, most


def _read_limit(option: str, written: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if name not in LIMITS or (name in _BARE and equals):
        raise TemplateError(
            f"unknown option {option!r} in {written!r}. Known: open, digits, line, starts=…, ends=…, in=…,…, regex=…"
        )
    if name not in _BARE and not value:
        raise TemplateError(f"the option {name} in {written!r} lacks its value: write {name}=…")
    return name, re.sub(r"\\([\[\]|])", r"\1", value)


def _place_spaces(texts: list[str], marks: list[_Mark]) -> Iterator[Segment]:
    """Give each blank the space before it; drop texts that are empty then."""
    for i, text in enumerate(texts):
        is_last = i == len(marks)
        lends = not is_last and text.endswith(" ") and not (i == 0 and text == " ")
        if given := text[:-1] if lends else text:
            yield Given(given)
        if not is_last:
            starts_word: bool | None = lends or (i == 0 and not text)
            mark = marks[i]
            if mark.is_open and not starts_word:
                starts_word = True if mark.is_word else None  # a word of its own has a space before it
            least, most = mark.sizes
            is_fixed = least == most
            yield Blank(
                least if is_fixed else None, starts_word, mark.is_word, None if is_fixed else mark.sizes, mark.limits
            )


_SPECIAL = re.compile(r"\[(?=MASK|WORD)|\\(?=[\[_\\]|$)|^_|_$|_(?=_)|(?<=_)_")


def template_source(template: Template) -> str:
    """A template as a person would write it; `parse_template` reads it back."""
    written = ""
    for segment in template.segments:
        if isinstance(segment, Given):
            written += _SPECIAL.sub(r"\\\g<0>", segment.text)
            continue
        written += (" " if segment.starts_word and written else "") + _blank_source(segment)
    return written


def with_lengths(template: Template) -> Template:
    """The same, once lengths are chosen, for asking again: no draw chooses others."""
    fixed = [replace(s, sizes=None) if isinstance(s, Blank) and s.num_tokens else s for s in template.segments]
    return Template(tuple(fixed))


def _blank_source(blank: Blank) -> str:
    is_open_word = blank.is_word and blank.sizes is not None
    if is_open_word and not blank.limits and blank.starts_word is not None:
        return "___"
    size = ""
    if not is_open_word and blank.num_tokens is not None:
        size = "" if blank.num_tokens == 1 and not blank.is_word else f":{blank.num_tokens}"
    elif not blank.is_word and blank.sizes is not None:
        size = ":*" if blank.sizes[1] is None else f":{blank.sizes[0]}-{blank.sizes[1]}"
    options = ["open"] if blank.starts_word is None else []
    for name, value in blank.limits:
        escaped = re.sub(r"[\[\]|]", r"\\\g<0>", value)
        options.append(name if name in _BARE else f"{name}={escaped}")
    return "".join(["[WORD" if blank.is_word else "[MASK", size, *(f"|{option}" for option in options), "]"])


def acrostic(word: str, size: str = "6-14") -> str:
    """The template of a text whose lines start with the letters of a word; `size` is a line's, in tokens."""
    if not word.isalpha():
        raise TemplateError(f"an acrostic is of one word of letters, got {word!r}")
    template = "\n".join(f"[MASK:{size}|starts={letter}|line]" for letter in word.upper())
    parse_template(template)  # refuses what is no size
    return template


@dataclass(frozen=True)
class FilledPart:
    """A segment of a template with the text and the ids that stand there."""

    is_blank: bool
    text: str
    ids: tuple[int, ...]


def fit(template: Template, text: str, tokenizer: Tokenizer) -> list[FilledPart]:
    """The ids of `text`, cut where the template's blanks are; TemplateError where it does not fit."""
    spans = _Cutter(template.segments, text, tokenizer).first()
    if spans is None:  # say which blank is at fault, if the text could be cut at all
        spans = _Cutter(template.segments, text, None).first()
    if spans is None:
        raise TemplateError(f"the text does not fit the template: {_mismatch(template, text)}")
    return encode_parts(template, spans, tokenizer)


class _Cutter:
    """Finds a way to cut a text into the texts of segments; with a tokenizer, one in which every blank's size fits."""

    def __init__(self, segments: tuple[Segment, ...], text: str, tokenizer: Tokenizer | None) -> None:
        self.segments, self.text, self.tokenizer = segments, text, tokenizer
        self.dead: set[tuple[int, int]] = set()

    def first(self) -> list[str] | None:
        """Depth first, by hand: texts have more segments than Python has stack."""
        trail: list[tuple[int, Iterator[int]]] = [(0, self._ends(0, 0))]
        while trail:
            at, ends = trail[-1]
            end = next(ends, None)
            if end is None:
                self.dead.add((len(trail) - 1, at))
                trail.pop()
            elif len(trail) == len(self.segments):
                if end == len(self.text):
                    starts = [start for start, _ in trail]
                    return [self.text[a:b] for a, b in itertools.pairwise([*starts, end])]
            elif (len(trail), end) not in self.dead:
                trail.append((end, self._ends(len(trail), end)))
        return None

    def _ends(self, number: int, at: int) -> Iterator[int]:
        """Where segment `number` may end if it begins at `at`."""
        if number >= len(self.segments):
            return
        segment, text = self.segments[number], self.text
        if isinstance(segment, Given):
            if text.startswith(segment.text, at):
                yield at + len(segment.text)
            return
        with_space = segment.starts_word is True and at > 0
        first = text[at : at + 1]
        is_refused = first.isspace() if segment.is_word else first == " "  # a blank that is no word may begin a line
        if first != " " if with_space else is_refused and segment.starts_word is not None:
            return
        is_last = number == len(self.segments) - 1
        ends = [len(text)] if is_last else range(at + 1 + with_space, len(text) + 1)
        for end in ends:
            if end <= at + with_space:
                continue
            room = self._room(segment, text[at:end], is_first=at == 0)
            if room == 0:
                yield end
            elif room < 0:
                return

    def _room(self, blank: Blank, span: str, *, is_first: bool) -> int:
        """0: the span fits the blank. Above: it is too short. Below: it is too long, and so is every longer one."""
        if self.tokenizer is None:
            return 0
        if blank.is_word and (len(span.split()) > 1 or span[-1].isspace()):
            return -1
        if blank.is_word and blank.sizes is not None:
            return 0
        count = len(encode_part(span, self.tokenizer, is_first=is_first))
        least, most = _bounds(blank)
        if least <= count and (most is None or count <= most):
            return 0
        return 1 if most is None or count < most + _SLACK else -1


def _bounds(blank: Blank) -> tuple[int, int | None]:
    if blank.num_tokens is not None:
        return blank.num_tokens, blank.num_tokens
    return blank.sizes or _WORD_SIZES


_SLACK = 8
"""A longer text can have fewer tokens (a word is completed), but not by more than a word's worth."""


def encode_parts(template: Template, spans: Sequence[str], tokenizer: Tokenizer) -> list[FilledPart]:
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
    least, most = _bounds(blank)
    if blank.is_word and len(span.split()) != 1:
        raise TemplateError(f"blank {number} (___) takes one word, not {_short(span.strip())}")
    if blank.is_word and blank.sizes is not None:
        return
    if len(ids) < least or (most is not None and len(ids) > most):
        tokens = f"{least} token{'s' * (least > 1)}" if least == most else f"{least} to {most} tokens"
        raise TemplateError(
            f"blank {number} takes {tokens}, but {_short(span.strip())} has {len(ids)}. Write [MASK:{len(ids)}], or "
            "___ for a word of any length."
        )


def _mismatch(template: Template, text: str) -> str:
    at = 0
    for segment in template.segments:
        if isinstance(segment, Given):
            found = text.find(segment.text, at)
            if found < 0:
                return f"{_short(segment.text)} is not found in it (from character {at} on)"
            at = found + len(segment.text)
    return "its blanks or its end do not match"


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")


def filled_spans(template: Template, fillings: Sequence[str]) -> list[str]:
    """The text of every segment with the blanks filled, spaces restored; joined, they are the whole text."""
    if len(fillings) != len(template.blanks):
        raise TemplateError(f"the template has {len(template.blanks)} blanks, but {len(fillings)} fillings were given")
    words = iter(fillings)
    spans: list[str] = []
    for segment in template.segments:
        if isinstance(segment, Given):
            spans.append(segment.text)
            continue
        word = next(words)
        if not word:
            raise TemplateError("a filling is empty")
        spans.append((" " if segment.starts_word and spans else "") + word)
    return spans
