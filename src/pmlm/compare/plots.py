"""Learning curves of all models: against tokens, against arithmetic and against time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmlm.bench.plots import open_plot
from pmlm.compare.arms import ARMS
from pmlm.compare.budgets import YARDSTICK, arithmetic, runs, seconds
from pmlm.compare.layout import Results, longest, title
from pmlm.compare.records import Record

COLOURS = ("C0", "C1", "k", "C3", "C2", "C4", "C5", "C6", "C7", "C8", "C9", "#7a4a00", "#004a7a")
"""One for each model, whatever has been trained already."""


def draw_comparison(results: Results, path: Path) -> None:
    """Held-out bits per byte, order-averaged (GPT: left to right), to .png or .svg. Further seeds are thin lines."""
    trained = runs(results)
    if not trained:
        return
    work, time = arithmetic(results), seconds(results)
    axes: list[tuple[str, Callable[[Record], float | None]]] = [
        ("tokens, millions", lambda _run: 1e-6),
        ("arithmetic, 10¹² operations", lambda run: work[run["model"]] / 1e12 if run["model"] in work else None),
    ]
    whole = next((r["curve"][-1]["tokens"] for r in trained if r["model"] == YARDSTICK), None)
    if YARDSTICK in time and whole:
        unit = whole * time[YARDSTICK]
        axes.append(
            ("time, BERT's whole run = 1", lambda run: time[run["model"]] / unit if run["model"] in time else None)
        )
    first = min(run["seed"] for run in trained)
    with open_plot(path, len(axes)) as panels:
        for panel, (name, cost) in zip(panels, axes, strict=True):
            for run in trained:
                if (scale := cost(run)) is not None:
                    _draw(panel, run, scale, is_first=run["seed"] == first)
            panel.set(xlabel=name)
            panel.grid(alpha=0.3)
        panels[0].set(ylabel="held-out bits per byte")
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)


def _draw(panel: Any, run: Record, scale: float, *, is_first: bool) -> None:
    points, colour = run["curve"], COLOURS[list(ARMS).index(run["model"]) % len(COLOURS)]
    for style, visibility in zip(("-", "--", ":"), points[-1]["bits_per_byte"], strict=False):
        panel.plot(
            [p["tokens"] * scale for p in points], [longest(p["bits_per_byte"][visibility]) for p in points],
            color=colour, linestyle=style, linewidth=1.6 if is_first else 0.7,
            marker="." if is_first else None, label=f"{title(run)}, {visibility}" if is_first else None,
        )  # fmt: skip
