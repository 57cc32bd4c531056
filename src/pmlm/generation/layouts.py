"""Templates made from something else than a text with blanks: words scattered over a length.

Randomness is an argument.
"""

import itertools

import torch

from pmlm.errors import TemplateError
from pmlm.generation.template import Blank, Given, Segment, Template, encode_part
from pmlm.tokenizer import Tokenizer


def scatter(text: str, length: int, tokenizer: Tokenizer, rng: torch.Generator) -> Template:
    """The words of a text in their order, at random places of a canvas of `length` tokens (the paper's Figure 1).

    Every way to place them is as likely as any other. Words stay whole: what follows one is a space or a mark.
    """
    words = text.split()
    if not words:
        raise TemplateError("no words were given to scatter")
    sizes = [len(encode_part(_lead(i) + word, tokenizer, is_first=i == 0)) for i, word in enumerate(words)]
    free = length - sum(sizes)
    if free < 1:
        raise TemplateError(f"the words take {sum(sizes)} tokens: give a length of at least {sum(sizes) + 1}")
    gaps = _composition(free, len(words) + 1, rng)
    segments: list[Segment] = [Blank(gaps[0], starts_word=True)] if gaps[0] else []
    given = ""
    for word, gap in zip(words, gaps[1:], strict=True):
        given += (" " if segments or given else "") + word
        if gap:
            segments += [Given(given), Blank(gap, starts_word=None)]
            given = ""
    return Template((*segments, *([Given(given)] if given else [])))


def _lead(index: int) -> str:
    return " " if index else ""


def _composition(total: int, parts: int, rng: torch.Generator) -> list[int]:
    """`parts` numbers from 0 on that add up to `total`; each way is equally likely."""
    bars = torch.randperm(total + parts - 1, generator=rng)[: parts - 1].sort().values.tolist()
    edges = [-1, *bars, total + parts - 1]
    return [b - a - 1 for a, b in itertools.pairwise(edges)]
