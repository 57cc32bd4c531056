"""Words that must appear: how often they do, and what that costs, on random sets of common words.

Sets of 3 to 5 words are drawn from the common words of a held-out text, independently of each other, so that they need
not go together. Each set is asked of the model once; the same seed and length without any words is the comparison, and
beginnings of real texts of that length stand beside both.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pmlm.bench.judge import Judge, appraise
from pmlm.bench.material import draw_passages, write_texts
from pmlm.bench.study import Advance, Notes
from pmlm.errors import ConfigError, ConstraintError, DataError
from pmlm.generation.template import Blank, Template
from pmlm.likelihood import check_visibility
from pmlm.lm import LM
from pmlm.options import FillOptions
from pmlm.runtime import generator


@dataclass(frozen=True, kw_only=True)
class CoverageSettings:
    sets: int = 200
    fewest: int = 3
    most: int = 5
    common: int = 500
    """The words are drawn from so many of the most frequent ones."""
    length: int = 60
    """Tokens of each text."""
    order: str = "random"
    visibility: str | None = None
    temperature: float = 1.0
    top_p: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise ConfigError(
                f"a set has from 1 word on, and fewest is at most most, got fewest {self.fewest}, most {self.most}"
            )
        if self.common < self.most:
            raise ConfigError(f"--common must be at least {self.most}, the words of the largest set, got {self.common}")
        if self.sets < 1:
            raise ConfigError(f"--sets must be at least 1, got {self.sets}")


def common_words(documents: Sequence[str], count: int) -> list[str]:
    """The most frequent words of three letters or more that are written in small letters."""
    counts = Counter(word for text in documents for word in re.findall(r"(?<![\w'’])[a-z]{3,}(?![\w'’])", text))
    found = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]]
    if len(found) < count:
        raise DataError(f"the text has {len(found)} different words, {count} are needed")
    return found


def draw_sets(words: Sequence[str], settings: CoverageSettings) -> list[list[str]]:
    rng = generator(settings.seed, "coverage")
    sets = []
    for _ in range(settings.sets):
        size = settings.fewest + int(torch.randint(settings.most - settings.fewest + 1, (1,), generator=rng))
        sets.append([words[i] for i in torch.randperm(len(words), generator=rng)[:size].tolist()])
    return sets


def missing_words(text: str, words: Sequence[str]) -> list[str]:
    """Those that do not stand in the text as whole words, letter for letter."""
    return [word for word in words if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)]


def write_with(lm: LM, words: Sequence[str], seed: int, options: FillOptions, length: int) -> dict[str, Any]:
    """A text in which the words must appear, or the error that says why there is none."""
    try:
        asking: FillOptions = {**options, "must": list(words)}
        text = lm.fill(f"[MASK:{length}]", seed=seed, **asking).text
    except ConstraintError as error:
        return {"words": list(words), "text": None, "error": str(error), "missing": list(words)}
    return {"words": list(words), "text": text, "error": None, "missing": missing_words(text, words)}


def study_coverage(
    lm: LM, documents: Sequence[str], judge: Judge | None, settings: CoverageSettings, notes: Notes, advance: Advance
) -> dict[str, Any]:
    """Shares of sets satisfied, refused with an error, and broken in silence; the judge's figures."""
    visibility = check_visibility(settings.visibility, lm.model.config)
    options = FillOptions(
        order=settings.order, visibility=visibility, temperature=settings.temperature, top_p=settings.top_p
    )
    rng = generator(settings.seed, "real")
    real = draw_passages(documents, lm.tokenizer, room=settings.length, count=settings.sets, rng=rng)
    written: list[dict[str, Any]] = []
    for i, words in enumerate(draw_sets(common_words(documents, settings.common), settings)):
        written.append(notes.get(f"with/{i}", write_with, lm, words, settings.seed + i, options, settings.length))
        advance(1)
    blank = Template((Blank(settings.length, starts_word=True),))
    free = write_texts(
        lm, [blank] * settings.sets, options, notes, "without", first_seed=settings.seed, progress=advance
    )
    texts = {
        "with the words": [w["text"] for w in written if w["text"] is not None],
        "without": [text for text in free if text is not None],
        "real": [passage.text for passage in real],
    }
    judged = {
        name: notes.get(f"judged/{name}", appraise, each, judge) if each else None for name, each in texts.items()
    }
    satisfied = sum(w["error"] is None and not w["missing"] for w in written)
    errors = sum(w["error"] is not None for w in written)
    return {
        "visibility": visibility,
        "settings": asdict(settings),
        "sets": len(written),
        "satisfied": satisfied,
        "errors": errors,
        "broken": len(written) - satisfied - errors,
        "satisfied_share": satisfied / len(written),
        "satisfied_or_error_share": (satisfied + errors) / len(written),
        "appraisal": judged,
        "first": written[:5],
    }
