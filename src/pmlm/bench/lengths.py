"""How long is a blank? Scores of a length, compared on held-out sentences in which a word or a span is hidden.

For every length n the sentence is laid out with n hidden slots, and each score names the length it likes best:

- *context*: log p(n) + log p(context | n hidden slots), what `[MASK:*]` and `___` use (pmlm.generation.lengths); for
  words also without p(n), and p(n) alone;
- *filling, sum* and *filling, mean*: the log-probability of the model's own best filling of n slots, greedily from
  left to right; in total, or per token;
- *chance* draws a length at random, *commonest* always says the most frequent true length.

The product draws a length in proportion to exp(score); here the best one is taken, for every score alike.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from pmlm.bench.material import Passage, Unit, read_units, sentences, template_of
from pmlm.bench.study import Advance, Notes
from pmlm.errors import ConfigError, DataError
from pmlm.generation.canvas import make_canvas
from pmlm.generation.lengths import PLAIN_WORD_LOGP, context_logp
from pmlm.generation.template import LONGEST_WORD, Blank, Template
from pmlm.likelihood import check_visibility
from pmlm.lm import LM
from pmlm.model import Visibility
from pmlm.runtime import generator

Kind = Literal["word", "long word", "span"]
KINDS: tuple[Kind, ...] = ("word", "long word", "span")
"""A long word has two tokens or more: most words have one, and then saying so is enough."""


@dataclass(frozen=True, kw_only=True)
class LengthSettings:
    items: int = 300
    """Blanks of each kind."""
    longest_span: int = 12
    """Tokens of a hidden span, at most; lengths from 1 to this are compared."""
    visibility: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("items", "longest_span"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Item:
    """A sentence with one blank, and how many tokens stood there."""

    template: Template
    segment: int
    true: int


def draw_items(documents: Sequence[str], lm: LM, kind: Kind, settings: LengthSettings) -> list[Item]:
    """One blank in each of the sentences, drawn at random; sentences too short or too long for the model are not.

    Words are as long as words are. Spans have every length equally often, since before the context speaks every
    length is as likely to the model too: a score that always says "short" must not win by the choice of spans.
    """
    rng = generator(settings.seed, "lengths", kind)
    room = lm.model.config.max_length - 2 - settings.longest_span
    every = [(i, sentence) for i, text in enumerate(documents) for sentence in sentences(text)]
    items: list[Item] = []
    for k in torch.randperm(len(every), generator=rng).tolist():
        if len(items) == settings.items:
            return items
        document, text = every[k]
        passage = Passage(text, document, True, read_units(text, lm.tokenizer))
        if len(passage.units) < 4 or passage.num_tokens > room:
            continue
        size = 1 + len(items) % settings.longest_span
        spans = _spans(passage, size) if kind == "span" else _words(passage, least=2 if kind == "long word" else 1)
        if spans:
            items.append(_item(passage, spans[_draw(len(spans), rng)], kind))
    if len(items) < settings.items:
        raise DataError(f"the text has {len(items)} sentences with a {kind} to hide, {settings.items} are needed")
    return items


def _words(passage: Passage, least: int) -> list[range]:
    fit = [i for i, u in enumerate(passage.units) if _is_plain_word(u) and least <= u.num_tokens <= LONGEST_WORD]
    return [range(i, i + 1) for i in fit]


def _spans(passage: Passage, size: int) -> list[range]:
    """Neighbouring units that have so many tokens together, two units or more being left."""
    found = []
    for first in range(len(passage.units)):
        total = 0
        for last in range(first, len(passage.units)):
            total += passage.units[last].num_tokens
            if not passage.units[last].is_hideable or total > size:
                break
            if total == size and last - first + 1 <= len(passage.units) - 2:
                found.append(range(first, last + 1))
    return found


def _item(passage: Passage, span: range, kind: Kind) -> Item:
    template = template_of(passage, span)
    (segment,) = (k for k, part in enumerate(template.segments) if isinstance(part, Blank))
    if kind != "span":
        blank = Blank(None, starts_word=True, is_word=True, sizes=(1, LONGEST_WORD))
        template = _with(template, segment, blank)
    return Item(template, segment, sum(passage.units[i].num_tokens for i in span))


def _is_plain_word(unit: Unit) -> bool:
    return unit.is_hideable and unit.is_word


def _draw(count: int, rng: torch.Generator) -> int:
    return int(torch.randint(count, (1,), generator=rng))


def _with(template: Template, segment: int, blank: Blank) -> Template:
    return Template((*template.segments[:segment], blank, *template.segments[segment + 1 :]))


def length_choices(item: Item, lm: LM, visibility: Visibility, longest: int) -> dict[str, int]:
    """The length that each score likes best."""
    blank = item.template.segments[item.segment]
    assert isinstance(blank, Blank)
    templates = [_with(item.template, item.segment, replace(blank, num_tokens=n)) for n in range(1, longest + 1)]
    canvases = [make_canvas(t, lm.tokenizer, lm.model.config.max_length) for t in templates]
    context = context_logp(canvases, item.segment, lm.model, lm.tokenizer, visibility)
    filled = lm.fill_batch(templates, seeds=[0] * longest, order="l2r", temperature=0, visibility=visibility)
    total = torch.tensor([math.fsum(f.logp) for f in filled], dtype=torch.float64)
    scores = {
        "context": context,
        "filling, sum": total,
        "filling, mean": total / torch.arange(1, longest + 1),
    }
    if blank.is_word:
        logp = PLAIN_WORD_LOGP if lm.words is None else lm.words.length_logp
        prior = torch.tensor(logp[:longest], dtype=torch.float64)
        scores |= {"context + p(n)": context + prior, "p(n)": prior}
    return {name: int(score.argmax()) + 1 for name, score in scores.items()}


def study_lengths(
    lm: LM, documents: Sequence[str], settings: LengthSettings, notes: Notes, advance: Advance
) -> dict[str, Any]:
    """Each score's choices on all items, and how often they are right."""
    visibility = check_visibility(settings.visibility, lm.model.config)
    if visibility == "causal":
        raise ConfigError("a left-to-right model sees nothing after a blank: lengths cannot be compared with it")
    result: dict[str, Any] = {"visibility": visibility, "settings": asdict(settings)}
    drawn = {kind: draw_items(documents, lm, kind, settings) for kind in KINDS}
    for kind, items in drawn.items():
        longest = settings.longest_span if kind == "span" else LONGEST_WORD
        choices: list[dict[str, int]] = []
        for i, item in enumerate(items):
            choices.append(notes.get(f"{kind}/{i}", length_choices, item, lm, visibility, longest))
            advance(1)
        result[kind] = summarise_choices([item.true for item in items], choices, longest)
    return result


def summarise_choices(true: Sequence[int], choices: Sequence[dict[str, int]], longest: int) -> dict[str, Any]:
    """How often each score names the true length, or one next to it; over all, and by the true length."""
    by_score = {name: [choice[name] for choice in choices] for name in choices[0]}
    commonest = Counter(true).most_common(1)[0][0]
    by_score["commonest"] = [commonest] * len(true)
    scores: dict[str, dict[str, float | None]] = {name: _accuracy(true, chosen) for name, chosen in by_score.items()}
    near = [sum(abs(n - t) <= 1 for n in range(1, longest + 1)) / longest for t in true]
    error = [sum(abs(n - t) for n in range(1, longest + 1)) / longest for t in true]
    scores["chance"] = {
        "exact": 1 / longest, "exact_stderr": None, "within_one": _mean(near), "mean_error": _mean(error)
    }  # fmt: skip
    by_length: dict[str, Any] = {}
    for n in sorted(set(true)):
        here = [i for i, t in enumerate(true) if t == n]
        by_length[str(n)] = {
            "items": len(here),
            **{
                name: _accuracy([n] * len(here), [chosen[i] for i in here])["exact"]
                for name, chosen in by_score.items()
            },
        }
    return {"items": len(true), "lengths": [1, longest], "scores": scores, "exact_by_true_length": by_length}


def _accuracy(true: Sequence[int], chosen: Sequence[int]) -> dict[str, float | None]:
    exact = _mean([float(t == c) for t, c in zip(true, chosen, strict=True)])
    return {
        "exact": exact,
        "exact_stderr": math.sqrt(exact * (1 - exact) / len(true)),
        "within_one": _mean([float(abs(t - c) <= 1) for t, c in zip(true, chosen, strict=True)]),
        "mean_error": _mean([abs(t - c) for t, c in zip(true, chosen, strict=True)]),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
