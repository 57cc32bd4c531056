"""Learning curves of all models: against tokens and against time."""

from pathlib import Path
from typing import Any

from pmlm.bench.plots import open_plot
from pmlm.compare.tables import Results, in_order

COLOURS = [f"C{number}" for number in range(10)] + ["k", "r", "g", "b", "m", "c", "y", "0.5"]


def draw_comparison(results: Results, path: Path) -> None:
    """Held-out bits per byte, order-averaged (GPT: left to right), to .png or .svg."""
    runs = [r for r in in_order(results["pretrain"]) if r["curve"]]
    if not runs:
        return
    with open_plot(path, 2) as (left, right):
        for number, run in enumerate(runs):
            for style, visibility in zip(("-", "--"), run["curve"][-1]["bits_per_byte"], strict=False):
                _draw(left, right, run, visibility, {"color": COLOURS[number % len(COLOURS)], "linestyle": style})
        left.set(xlabel="tokens", ylabel="held-out bits per byte")
        right.set(xlabel="seconds of training")
        right.legend(fontsize=8)
        for axes in (left, right):
            axes.grid(alpha=0.3)


def _draw(left: Any, right: Any, run: dict[str, Any], visibility: str, style: dict[str, str]) -> None:
    points = run["curve"]
    bits = [p["bits_per_byte"][visibility] for p in points]
    values = [figures[max(figures, key=int)] for figures in bits]
    seed = "" if run["seed"] == 1 else f", seed {run['seed']}"
    left.plot([p["tokens"] for p in points], values, marker=".", **style)
    label = f"{run['title']}{seed}, {visibility}"
    right.plot([p["seconds"] for p in points], values, marker=".", label=label, **style)
