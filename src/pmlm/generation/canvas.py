"""The canvas: ids with explicit hidden flags, and what each hidden slot may become.

Free generation, continuation, infilling and scattered words differ only in the canvas. A hidden slot is known by its
flag, never by its id.

Shapes: B canvases, L slots, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.corpus.framing import Row, frame
from pmlm.errors import TemplateError
from pmlm.generation.template import Given, Template, encode_part
from pmlm.tokenizer import Tokenizer

FREE, STARTS_WORD, CONTINUES = 0, 1, 2
"""What may stand at a hidden slot: any piece, one that starts a word, one that does not."""


@dataclass(frozen=True)
class Canvas:
    """One framed row to be filled, with the template that it came from."""

    row: Row
    """Its maskable slots are the hidden ones."""
    role: tuple[int, ...]
    """For each slot one of FREE, STARTS_WORD, CONTINUES."""
    template: Template

    @property
    def hidden(self) -> list[int]:
        return [i for i, flag in enumerate(self.row.maskable) if flag]


def make_canvas(template: Template, tokenizer: Tokenizer, max_length: int) -> Canvas:
    """Encode what is given, leave room for what is not; TemplateError where it does not fit the model."""
    ids: list[int] = []
    hidden: list[bool] = []
    role: list[int] = []
    for segment in template.segments:
        if isinstance(segment, Given):
            part = encode_part(segment.text, tokenizer, is_first=not ids)
            ids += part
            hidden += [False] * len(part)
            role += [FREE] * len(part)
            continue
        if segment.num_tokens is None:
            raise TemplateError("a blank of one word (___) can be scored, but not yet filled: write [MASK:n]")
        ids += [tokenizer.mask_id] * segment.num_tokens
        hidden += [True] * segment.num_tokens
        role += [STARTS_WORD if segment.starts_word else CONTINUES] + [FREE] * (segment.num_tokens - 1)
    if len(ids) + 2 > max_length:
        raise TemplateError(
            f"the template needs {len(ids) + 2} tokens (markers included) but the model reads {max_length}. "
            "Shorten it, or give fewer blanks."
        )
    return Canvas(frame(ids, tokenizer, hidden=hidden), (FREE, *role, FREE), template)


def allowed_pieces(tokenizer: Tokenizer, *, allow_bytes: bool = False) -> Tensor:
    """[3, V] which ids may be generated at a slot of each role; never special ones, bytes only where allowed."""
    plain_V = torch.ones(tokenizer.vocab_size, dtype=torch.bool)
    plain_V[list(tokenizer.special_ids)] = False
    if not allow_bytes:
        plain_V[list(tokenizer.byte_ids)] = False
    starts_V = torch.tensor(tokenizer.starts_word)
    return torch.stack([plain_V, plain_V & starts_V, plain_V & ~starts_V])


def canvas_text(canvas: Canvas, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The finished text: what was given letter for letter, what was generated between it."""
    text, at = "", 1  # after the start marker
    for segment in canvas.template.segments:
        if isinstance(segment, Given):
            at += len(encode_part(segment.text, tokenizer, is_first=at == 1))
            text += segment.text
            continue
        assert segment.num_tokens is not None
        part = ids[at : at + segment.num_tokens]
        filling = tokenizer.decode(part) if at == 1 else tokenizer.decode_inner(part)
        needs_space = tokenizer.kind == "wordpiece" and segment.starts_word and text
        text += (" " if needs_space else "") + filling
        at += segment.num_tokens
    return text
