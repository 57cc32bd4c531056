"""What shortcuts cost: texts that a trained model writes with and without them, judged by the model itself.

Each way of writing fills the same number of empty canvases from the same seeds. What it wrote is judged by the model's
log-likelihood averaged over all orders (bidirectional; an unbiased estimate from a few masks a text, the same masks for
all), by the entropy of its tokens and by the share of distinct pairs of tokens.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

from pmlm.corpus.framing import frame, row_batch
from pmlm.likelihood import bound_nll
from pmlm.lm import LM, load
from pmlm.options import FillOptions
from pmlm.results import Filled
from pmlm.runtime import RowRandom

Kind = Literal["exact", "parallel", "cache", "both", "order-causal", "speculative"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A way of writing."""

    kind: Kind
    order: str = "random"
    parallel: str | None = None
    approximate_cache: int | None = None
    speculative: int | None = None

    @property
    def options(self) -> str:
        """As the command line has it."""
        parts = [] if self.order == "random" else [f"order {self.order}"]
        parts += [] if self.parallel is None else [f"parallel {self.parallel}"]
        parts += [] if self.approximate_cache is None else [f"approximate cache {self.approximate_cache}"]
        parts += [] if self.speculative is None else [f"speculative {self.speculative}"]
        return ", ".join(parts) or "token by token"

    @property
    def visibility(self) -> str:
        return "order-causal" if self.kind in ("order-causal", "speculative") else "bidirectional"


TRIALS = (
    Trial(kind="exact"),
    Trial(kind="exact", order="entropy"),
    Trial(kind="parallel", parallel="entropy:0.1"),
    Trial(kind="parallel", parallel="entropy:0.5"),
    Trial(kind="parallel", parallel="confidence:0.9"),
    Trial(kind="parallel", parallel="count:4"),
    Trial(kind="parallel", order="entropy", parallel="entropy:0.1"),
    Trial(kind="parallel", order="entropy", parallel="confidence:0.9"),
    Trial(kind="cache", approximate_cache=4),
    Trial(kind="cache", approximate_cache=16),
    Trial(kind="both", parallel="entropy:0.1", approximate_cache=4),
    Trial(kind="both", parallel="entropy:0.5", approximate_cache=4),
    Trial(kind="both", parallel="entropy:0.5", approximate_cache=16),
    Trial(kind="order-causal"),
    Trial(kind="speculative", speculative=4),
    Trial(kind="speculative", speculative=8),
)


@dataclass(frozen=True, kw_only=True)
class QualityBench:
    model: str | None = None
    texts: int = 400
    length: int = 64
    """Tokens of a text, as far as the model reads so many."""
    masks: int = 12
    """Drawn for each text to estimate its log-likelihood."""
    trials: tuple[Trial, ...] = TRIALS
    worst_change: float = 0.01
    """A shortcut that loses more of the log-likelihood is not chosen for the table, where another loses less."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a trial wrote."""

    kind: Kind
    options: str
    order: str
    refresh: int | None
    drafts: int | None
    passes_per_token: float
    seconds_per_token: float
    nll: float
    """Nats per token, averaged over orders."""
    nll_error: float
    """One standard error, over texts."""
    change: float = 0.0
    """Of the log-likelihood against writing token by token along the same order: minus is worse."""
    change_error: float = 0.0
    entropy: float
    """Of the tokens of all texts, in nats."""
    distinct_pairs: float
    """Share of neighbouring pairs that occur once in a text."""
    is_chosen: bool = False


def bench_quality(settings: QualityBench, advance: Callable[[int], None]) -> list[Written]:
    lm = load(settings.model, device="cpu")
    length = min(settings.length, lm.model.config.max_length - 2)
    found: list[Written] = []
    nll_by: dict[tuple[str, str], list[float]] = {}
    for trial in settings.trials:
        texts, seconds = _write(lm, trial, settings.texts, length)
        nll = _nll(lm, texts, settings.masks)
        base = nll_by.setdefault((trial.visibility, trial.order), nll)
        found.append(_judge(trial, texts, seconds, nll, base))
        advance(1)
    return [replace(each, is_chosen=each is _best(found, each.kind, settings.worst_change)) for each in found]


def _best(found: Sequence[Written], kind: Kind, worst: float) -> Written:
    """The fastest of a kind that loses little; the one that loses least, where all lose more."""
    mine = [each for each in found if each.kind == kind]
    good = [each for each in mine if each.change >= -worst]
    return min(good, key=lambda w: w.seconds_per_token) if good else max(mine, key=lambda w: w.change)


def _write(lm: LM, trial: Trial, num: int, length: int) -> tuple[list[Filled], float]:
    """Texts in batches, and the seconds of a token when one text is written alone."""
    options: FillOptions = {
        "order": trial.order, "visibility": trial.visibility, "parallel": trial.parallel, "whole_words": False,
        "approximate_cache": trial.approximate_cache, "speculative": trial.speculative,
    }  # fmt: skip
    template, texts = f"[MASK:{length}]", list[Filled]()
    for first in range(0, num, 100):
        seeds = range(first, min(first + 100, num))
        texts += lm.fill_batch([template] * len(seeds), seeds=seeds, **options)
    times = []
    for seed in range(5):
        begin = time.perf_counter()
        lm.fill(template, seed=seed, **options)
        times.append(time.perf_counter() - begin)
    return texts, statistics.median(times) / length


def _nll(lm: LM, texts: Sequence[Filled], masks: int) -> list[float]:
    """Nats per token of each text."""
    rows = [frame(list(text.ids[1:-1]), lm.tokenizer) for text in texts]
    batch = row_batch(rows, lm.tokenizer)
    total = torch.zeros(len(texts), dtype=torch.float64)
    for number in range(masks):
        total += bound_nll(lm.model, batch, "bidirectional", RowRandom.whole(0, number, len(texts)))
    return (total / masks / batch.maskable_BL.sum(1)).tolist()


def _judge(
    trial: Trial, texts: Sequence[Filled], seconds: float, nll: Sequence[float], base: Sequence[float]
) -> Written:
    tokens = Counter(token for text in texts for token in text.ids[1:-1])
    num = sum(tokens.values())
    mean, base_mean = statistics.mean(nll), statistics.mean(base)
    differences = [x - y for x, y in zip(nll, base, strict=True)]
    return Written(
        kind=trial.kind,
        options=trial.options,
        order=trial.order,
        refresh=trial.approximate_cache,
        drafts=trial.speculative,
        passes_per_token=sum(text.passes for text in texts) / sum(len(text.order) for text in texts),
        seconds_per_token=seconds,
        nll=mean,
        nll_error=_error(nll),
        change=1 - mean / base_mean,
        change_error=_error(differences) / base_mean,
        entropy=-sum(n / num * math.log(n / num) for n in tokens.values()),
        distinct_pairs=statistics.mean(_distinct_pairs(text.ids[1:-1]) for text in texts),
    )


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _distinct_pairs(ids: Sequence[int]) -> float:
    pairs = list(pairwise(ids))
    return len(set(pairs)) / max(len(pairs), 1)
