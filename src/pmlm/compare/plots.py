"""Learning curves of all models: against tokens, against arithmetic and against time."""

from pathlib import Path
from typing import Any

from pmlm.bench.plots import open_plot
from pmlm.compare.protocol import record_work
from pmlm.compare.tables import Results, in_order

COLOURS = [f"C{number}" for number in range(10)] + ["k", "r", "g", "b", "m", "c", "y", "0.5"]


def draw_comparison(results: Results, path: Path) -> None:
    """Held-out bits per byte, order-averaged (GPT: left to right), to .png or .svg."""
    runs = [r for r in in_order(results["pretrain"]) if r["curve"]]
    if not runs:
        return
    with open_plot(path, 3) as panels:
        for number, run in enumerate(runs):
            for style, visibility in zip(("-", "--"), run["curve"][-1]["bits_per_byte"], strict=False):
                _draw(panels, run, visibility, {"color": COLOURS[number % len(COLOURS)], "linestyle": style})
        panels[0].set(xlabel="tokens, millions", ylabel="held-out bits per byte")
        panels[1].set(xlabel="arithmetic, 10¹² operations")
        panels[2].set(xlabel="minutes of training")
        panels[2].legend(fontsize=8)
        for axes in panels:
            axes.grid(alpha=0.3)


def _draw(panels: Any, run: dict[str, Any], visibility: str, style: dict[str, str]) -> None:
    points = run["curve"]
    bits = [p["bits_per_byte"][visibility] for p in points]
    values = [figures[max(figures, key=int)] for figures in bits]
    seed = "" if run["seed"] == 1 else f", seed {run['seed']}"
    label, work = f"{run['title']}{seed}, {visibility}", record_work(run)
    panels[0].plot([p["tokens"] / 1e6 for p in points], values, marker=".", **style)
    if work is not None:
        panels[1].plot([p["tokens"] * work / 1e12 for p in points], values, marker=".", **style)
    panels[2].plot([p["seconds"] / 60 for p in points], values, marker=".", label=label, **style)
