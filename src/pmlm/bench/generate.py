"""The paper's latency table: time to write 100 sequences of 128 tokens, beside Hugging Face's GPT-2, in one process.

All contenders have the same layers, width, vocabulary and length, random weights and plain sampling. They take turns,
round after round, so that whatever else the machine does hits all alike. Unless `full`, a few steps are timed at
stages spread over the length, with caches filled as they would be there, and scaled to the whole; where a step
recomputes everything, a few rows stand for the batch. With random weights nothing is ever certain, so how many passes
a token takes by `parallel` and `speculative` is taken from what a trained model wrote (pmlm.bench.quality).
"""

import itertools
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from pmlm.bench.contenders import BERT_BASE, LAPTOP, Models, Seconds, Size, transformers_library
from pmlm.bench.quality import QualityBench, Written, bench_quality
from pmlm.generation.parallel import Parallel

BASE = "Hugging Face GPT-2"


@dataclass(frozen=True, kw_only=True)
class GenerateBench:
    sizes: tuple[Size, ...] = (LAPTOP, BERT_BASE)
    batches: tuple[int, ...] = (1, 100)
    length: int = 128
    lengths: tuple[int, ...] = (64, 128, 256, 512)
    """For time and memory against length, at batch 1."""
    stages: int = 4
    steps: int = 4
    """Timed at each stage; four times as many at batch 1, where a step is short and its time uncertain."""
    rounds: int = 3
    full: bool = False
    """Whole sequences, 100 of them, whatever that takes."""
    quality: QualityBench = field(default_factory=QualityBench)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Contender:
    name: str
    seconds: Seconds
    is_exact: bool
    passes_per_token: float = 1.0
    recomputes: bool = False
    """Each step runs the whole canvas of each row, so that time is proportional to rows."""
    steps: int | None = None
    """How many steps a stage must have, where they are not alike."""


def bench_generation(settings: GenerateBench, advance: Callable[[int], None]) -> dict[str, Any]:
    """Everything that results/speed shows, in plain data."""
    written = bench_quality(settings.quality, advance)
    rows, growth = [], []
    for size in settings.sizes:
        models = Models(size, max(settings.length, *settings.lengths), settings.seed)
        contenders = make_contenders(models, written, settings.length)
        for batch in settings.batches:
            rows += _table(settings, size, contenders, batch, advance)
        growth += _growth(settings, models, advance)
    return {
        "settings": asdict(settings),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers_library().__version__,
        "latency": rows,
        "length": growth,
        "quality": [asdict(each) for each in written],
    }


def num_parts(settings: GenerateBench) -> int:
    """How often `advance` is called."""
    timed = sum(
        len(settings.batches) * _NUM_CONTENDERS + len(settings.lengths) * 3 * s.readings for s in settings.sizes
    )
    return settings.rounds * timed + len(settings.quality.trials)


def _table(
    settings: GenerateBench, size: Size, contenders: Sequence[Contender], batch: int, advance: Callable[[int], None]
) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    for _ in range(settings.rounds):
        for contender in contenders:
            seconds[contender.name].append(_seconds_per_token(settings, size, contender, batch))
            advance(1)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {
        name: statistics.median(x / base for x, base in zip(values, seconds[BASE], strict=True))
        for name, values in seconds.items()
    }
    return [
        {
            "size": size.name,
            "batch": batch,
            "name": c.name,
            "exact": c.is_exact,
            "ratio": ratios[c.name],
            "seconds_for_100": median[c.name] * settings.length * (100 / batch),
            "milliseconds_per_token": 1000 * median[c.name],
            "passes_per_token": c.passes_per_token,
            "rows_timed": batch if settings.full or not c.recomputes else min(batch, size.few_rows),
            "rounds": seconds[c.name],
        }
        for c in contenders
    ]


def _seconds_per_token(settings: GenerateBench, size: Size, contender: Contender, batch: int) -> float:
    """Of the whole batch, for one token of each row."""
    if settings.full:
        runs = [contender.seconds(batch, 0, settings.length) for _ in range(max(1, 100 // batch))]
        return statistics.mean(runs) * contender.passes_per_token
    rows = min(batch, size.few_rows) if contender.recomputes else batch
    steps = contender.steps or (1 if contender.recomputes and size.width > 500 else settings.steps)
    if batch == 1 and not contender.recomputes:
        steps *= 4
    stages = [int(settings.length * (i + 0.5) / settings.stages) for i in range(settings.stages)]
    timed = [contender.seconds(rows, min(stage, settings.length - steps - 1), steps) for stage in stages]
    return statistics.mean(timed) * (batch / rows) * contender.passes_per_token


def _growth(settings: GenerateBench, models: Models, advance: Callable[[int], None]) -> list[dict[str, Any]]:
    """Time per token and memory of the cache at batch 1, for texts of different lengths."""
    ways: dict[str, Callable[[int], Seconds]] = {
        BASE: models.hugging_face, "pmlm GPT": models.gpt, "order-causal cache": models.order_causal,
    }  # fmt: skip
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(settings.rounds * models.size.readings):
        for length, (name, make) in itertools.product(settings.lengths, ways.items()):
            plain = Contender(name=name, seconds=make(length), is_exact=True)
            part = GenerateBench(length=length, stages=settings.stages, steps=settings.steps, full=settings.full)
            seconds.setdefault((name, length), []).append(_seconds_per_token(part, models.size, plain, 1))
            advance(1)
    return [
        {
            "size": models.size.name,
            "name": name,
            "length": length,
            "milliseconds_per_token": 1000 * statistics.median(values),
            "cache_megabytes": models.cache_bytes(length + (0 if name == BASE else 2)) / 1e6,
            "rounds": values,
        }
        for (name, length), values in seconds.items()
    ]


_NUM_CONTENDERS = 9


def make_contenders(models: Models, written: Sequence[Written], length: int) -> list[Contender]:
    """All, with shortcuts as `pmlm.bench.quality` found them to serve best."""
    by_kind = {each.kind: each for each in written if each.is_chosen}
    parallel, cache, both, guess = (by_kind[k] for k in ("parallel", "cache", "both", "speculative"))

    def tokens_a_pass(each: Written) -> Parallel | None:
        count = round(1 / each.passes_per_token)
        return Parallel("count", count) if count > 1 else None

    found = [
        Contender(name=BASE, seconds=models.hugging_face(length), is_exact=True),
        Contender(name="pmlm GPT", seconds=models.gpt(length), is_exact=True),
        Contender(name="u-PMLM, naive", seconds=models.naive(length), is_exact=True, recomputes=True),
        Contender(name="u-PMLM, exact", seconds=models.exact(length), is_exact=True, recomputes=True),
        Contender(
            name=f"u-PMLM, {parallel.options}",
            seconds=models.exact(length, tokens_a_pass(parallel)),
            is_exact=False,
            passes_per_token=parallel.passes_per_token,
            recomputes=True,
        ),
        *(
            Contender(
                name=f"u-PMLM, {each.options}",
                seconds=models.stale(length, each.refresh or 1, tokens_a_pass(each)),
                is_exact=False,
                passes_per_token=each.passes_per_token,
                recomputes=True,
                steps=each.refresh,
            )
            for each in (cache, both)
        ),
        Contender(name="order-causal cache", seconds=models.order_causal(length), is_exact=True),
        Contender(
            name=f"order-causal, {guess.options}",
            seconds=models.speculative(length, guess.drafts or 1, guess.passes_per_token),
            is_exact=True,
            passes_per_token=guess.passes_per_token,
            steps=2,
        ),
    ]
    assert len(found) == _NUM_CONTENDERS
    return found
