"""Exported graphs beside torch: how much sooner a whole pass and a whole text are there, and what int8 costs.

Contenders take turns within each round, so that whatever else the machine does hits all of them alike; a ratio is the
median over the rounds. The loss is that of the order-averaged bound on one text, with the same draws for all.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pmlm.batch import Batch
from pmlm.corpus.framing import Row
from pmlm.evaluation import Scorer
from pmlm.likelihood import check_visibility, hidden_logp
from pmlm.lm import LM, load
from pmlm.model import Slots
from pmlm.model.graph import GRAPH
from pmlm.runtime import generator


@dataclass(frozen=True, kw_only=True)
class ExportBench:
    rows: tuple[int, ...] = (1, 16)
    lengths: tuple[int, ...] = (64, 128)
    rounds: int = 7
    repeats: int = 4
    """Passes of a contender in a round, at one row; fewer with more rows."""
    seed: int = 0


def bench_export(
    folder: Path | None, texts: Sequence[Row], settings: ExportBench, advance: Callable[[int], None]
) -> dict[str, Any]:
    """The graphs of a model in both precisions, made for this alone."""
    with tempfile.TemporaryDirectory(prefix="pmlm-bench-") as scratch:
        lms = {"torch": load(folder, device="cpu")}
        size = {}
        for precision in ("fp32", "int8"):
            lms["torch"].export(Path(scratch) / precision, precision=precision)
            lms[f"onnx {precision}"] = load(Path(scratch) / precision, engine="onnx")
            size[precision] = (Path(scratch) / precision / GRAPH).stat().st_size
        advance(1)
        return compare(lms, texts, settings, advance) | {"graph_bytes": size}


def compare(
    lms: dict[str, LM], texts: Sequence[Row], settings: ExportBench, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Passes and a whole text timed for every engine, torch among them; bits per byte where there are texts."""
    config = lms["torch"].model.config
    visibility = check_visibility("bidirectional", config)
    report: dict[str, Any] = {
        "model": lms["torch"].describe(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "passes": [],
    }
    for rows in settings.rows:
        for length in (n for n in settings.lengths if n <= config.max_length):
            report["passes"].append(_passes(lms, rows, length, settings))
            advance(1)
    report["text"] = _whole_text(lms, min(40, config.max_length - 2), settings)
    if texts:
        report["bits_per_byte"] = _losses(lms, texts, visibility, settings)
    advance(1)
    return report


def _alternate(lms: dict[str, LM], turn: Callable[[LM], object], rounds: int, repeats: int) -> dict[str, Any]:
    """Seconds of each, and how many times sooner than torch it is, by the clock and by processor time."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in lms}
    for lm in lms.values():
        turn(lm)
    for _ in range(rounds):
        for name, lm in lms.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeats):
                turn(lm)
            taken[name].append(((time.perf_counter() - wall) / repeats, (time.process_time() - cpu) / repeats))
    return {
        name: {
            "seconds": statistics.median(w for w, _ in seconds),
            "ratio": statistics.median(a[0] / b[0] for a, b in zip(taken["torch"], seconds, strict=True)),
            "cpu_ratio": statistics.median(a[1] / b[1] for a, b in zip(taken["torch"], seconds, strict=True)),
        }
        for name, seconds in taken.items()
    }


def _passes(lms: dict[str, LM], rows: int, length: int, settings: ExportBench) -> dict[str, Any]:
    """Half of the tokens hidden, and all of those asked for."""
    config = lms["torch"].model.config
    rng = generator(settings.seed, "bench", rows * length)
    ids = torch.randint(config.vocab_size, (rows, length), generator=rng)
    hidden = torch.rand(rows, length, generator=rng) < 0.5
    batch = Batch(ids, torch.ones_like(hidden), torch.zeros_like(ids))
    at = Slots.where(hidden)

    def answer(lm: LM) -> torch.Tensor:
        with torch.no_grad():
            return hidden_logp(lm.model, batch, hidden, torch.zeros_like(ids), "bidirectional", at)

    engines = _alternate(lms, answer, settings.rounds, max(1, settings.repeats // rows))
    truth = answer(lms["torch"]).exp()
    for name, lm in lms.items():
        engines[name]["largest_difference"] = float((answer(lm).exp() - truth).abs().max())
    return {"rows": rows, "length": length, "engines": engines}


def _whole_text(lms: dict[str, LM], tokens: int, settings: ExportBench) -> dict[str, Any]:
    """A text written from nothing, a token at a time in random order."""

    def write(lm: LM) -> object:
        return lm.fill(
            f"[MASK:{tokens}]", order="random", seed=settings.seed, visibility="bidirectional", whole_words=False
        )

    return {"tokens": tokens, "engines": _alternate(lms, write, settings.rounds, 1)}


def _losses(lms: dict[str, LM], texts: Sequence[Row], visibility: Any, settings: ExportBench) -> dict[str, Any]:
    figures = {
        name: Scorer(lm.model, lm.tokenizer, visibility, settings.seed).bound(texts).to_dict()
        for name, lm in lms.items()
    }
    bits = {name: float(figure["bits_per_byte"] or 0.0) for name, figure in figures.items()}
    return {
        "windows": len(texts),
        "tokens": figures["torch"]["tokens"],
        "engines": {name: {"bits": b, "loss": b / bits["torch"] - 1} for name, b in bits.items()},
    }
