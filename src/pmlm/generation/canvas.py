"""The canvas: ids with explicit hidden flags, and what each hidden slot may become.

Free generation, continuation, infilling and scattered words differ only in the canvas. A hidden slot is known by its
flag, never by its id.

Shapes: B canvases, L slots, V vocabulary, R roles.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pmlm.corpus.framing import Row, frame
from pmlm.errors import TemplateError
from pmlm.generation.template import Blank, Given, Segment, Template, encode_part
from pmlm.tokenizer import Tokenizer
from pmlm.words import Flags, PieceKinds

WITHIN_WORDS = "-'’_"


class Role(IntEnum):
    """What may stand at a hidden slot."""

    FREE = 0
    SPACE = 1
    """Begins with a space."""
    NO_SPACE = 2
    BOUNDARY = 3
    """Leaves the word before it whole: begins with a space or a mark."""
    WORD = 4
    """A space, then letters or digits."""
    LETTERS = 5
    """Letters or digits without a space."""
    GOES_ON = 6
    """Goes on with the word before it."""


@dataclass(frozen=True)
class Canvas:
    """One framed row to be filled, with the template that it came from."""

    row: Row
    """Its maskable slots are the hidden ones."""
    role: tuple[int, ...]
    """A Role for each slot."""
    template: Template
    spans: tuple[tuple[int, int], ...]
    """Where each segment of the template stands: its first slot, and the one after its last."""

    @property
    def hidden(self) -> list[int]:
        return [i for i, flag in enumerate(self.row.maskable) if flag]


def make_canvas(template: Template, tokenizer: Tokenizer, max_length: int) -> Canvas:
    """Encode what is given, leave room for what is not; TemplateError where it does not fit the model."""
    given: list[list[int] | None] = []
    needed = 2  # the markers
    for segment in template.segments:
        is_first = needed == 2
        part = encode_part(segment.text, tokenizer, is_first=is_first) if isinstance(segment, Given) else None
        given.append(part)
        needed += _size(segment) if part is None else len(part)
    if needed > max_length:
        raise TemplateError(
            f"the template needs {needed} tokens (markers included) but the model reads {max_length}. "
            "Shorten it, or give fewer blanks."
        )
    ids: list[int] = []
    hidden: list[bool] = []
    role: list[int] = []
    edges = [1]  # after the start marker
    for segment, part in zip(template.segments, given, strict=True):
        size = _size(segment) if part is None else len(part)
        ids += [tokenizer.mask_id] * size if part is None else part
        role += _roles(segment, size) if isinstance(segment, Blank) else [Role.FREE] * size
        hidden += [part is None] * size
        edges.append(len(ids) + 1)
    return Canvas(
        frame(ids, tokenizer, hidden=hidden),
        (Role.FREE, *role, Role.FREE),
        template,
        tuple(itertools.pairwise(edges)),
    )


def _size(segment: Segment) -> int:
    assert isinstance(segment, Blank)
    assert segment.num_tokens is not None, "lengths are chosen before"
    return segment.num_tokens


def _roles(blank: Blank, size: int) -> list[Role]:
    if blank.is_word:
        return [Role.WORD if blank.starts_word else Role.LETTERS] + [Role.GOES_ON] * (size - 1)
    first = {True: Role.SPACE, False: Role.NO_SPACE, None: Role.BOUNDARY}[blank.starts_word]
    return [first] + [Role.FREE] * (size - 1)


def allowed_pieces(tokenizer: Tokenizer) -> Flags:
    """[R, V] which ids may be written at a slot of each role.

    Never special ones, never bytes that are no text by themselves, never a space that could double the next one.
    """
    texts = [raw.decode("utf-8", errors="replace") for raw in tokenizer.running_bytes]
    plain_V = np.array([bool(text) and not text.endswith(" ") and "  " not in text for text in texts])
    plain_V[[*tokenizer.special_ids, *tokenizer.byte_ids]] = False
    kinds = PieceKinds.of(tokenizer)
    space_V = np.array([text.startswith(" ") for text in texts])
    letters_V = np.array([text.removeprefix(" ").isalnum() for text in texts])
    by_role = {
        Role.FREE: plain_V,
        Role.SPACE: space_V,
        Role.NO_SPACE: ~space_V,
        Role.BOUNDARY: np.array(
            [bool(text) and not text[0].isalnum() and text[0] not in WITHIN_WORDS for text in texts]
        ),
        Role.WORD: space_V & letters_V,
        Role.LETTERS: ~space_V & letters_V,
        Role.GOES_ON: kinds.glued_V,
    }
    return np.stack([plain_V & by_role[role] for role in Role])


def canvas_text(canvas: Canvas, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The finished text: what was given letter for letter, what was generated between it."""
    text = ""
    for segment, (start, end) in zip(canvas.template.segments, canvas.spans, strict=True):
        if isinstance(segment, Given):
            text += segment.text
            continue
        part = ids[start:end]
        filling = tokenizer.decode(part) if start == 1 else tokenizer.decode_inner(part)
        text += _missing_space(segment, text, filling, tokenizer) + filling
    return text


def _missing_space(blank: Blank, before: str, filling: str, tokenizer: Tokenizer) -> str:
    """WordPiece keeps no spaces in its pieces: a word that starts is set apart here."""
    if tokenizer.kind != "wordpiece" or not before or blank.starts_word is False:
        return ""
    return " " if blank.starts_word or filling[:1].isalnum() else ""
