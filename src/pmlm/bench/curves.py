"""Curves of training runs, drawn from their metrics.jsonl."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmlm.errors import ConfigError, DataError


@dataclass(frozen=True)
class Curves:
    name: str
    tokens: list[int]
    loss: list[float]
    heldout: dict[str, list[tuple[int, float]]]
    """By visibility: (tokens, bits per byte at the longest windows)."""


def read_curves(run: Path) -> Curves:
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise DataError(f"{run} is no run: it has no metrics.jsonl")
    tokens: list[int] = []
    loss: list[float] = []
    heldout: dict[str, list[tuple[int, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line of a run that was killed
        if record["kind"] == "step":
            tokens.append(record["tokens"])
            loss.append(record["loss"])
        elif record["kind"] == "evaluation":
            for visibility, figures in record.get("bits_per_byte", {}).items():
                longest = max(figures, key=int)
                heldout.setdefault(visibility, []).append((tokens[-1] if tokens else 0, figures[longest]))
    if not tokens:
        raise DataError(f"{path} holds no steps yet")
    return Curves(run.name, tokens, loss, heldout)


def smooth(values: list[float], window: int) -> list[float]:
    """A running mean over the last `window` values."""
    sums, out = 0.0, []
    for i, value in enumerate(values):
        sums += value - (values[i - window] if i >= window else 0.0)
        out.append(sums / min(i + 1, window))
    return out


def new_figure(columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """A figure with axes side by side, drawn without a screen."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'pmlm[plot]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
    return figure, list(axes[0])


def save_figure(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    finally:
        plt.close(figure)


def draw_curves(curves: list[Curves], path: Path) -> None:
    """Training loss and held-out bits per byte against tokens, to .png or .svg."""
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a plot is written as .png or .svg, not {path.suffix or path.name!r}")
    figure, (left, right) = new_figure(2, (11, 4.2))
    for run in curves:
        window = max(1, len(run.loss) // 50)
        (line,) = left.plot(run.tokens, smooth(run.loss, window), label=run.name)
        for style, (visibility, points) in zip(("-", "--", ":"), run.heldout.items(), strict=False):
            right.plot(
                *zip(*points, strict=True), style, marker=".", color=line.get_color(), label=f"{run.name}, {visibility}"
            )
    left.set(title="training loss", xlabel="tokens", ylabel="nats per token")
    right.set(title="held out, order-averaged", xlabel="tokens", ylabel="bits per byte")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    save_figure(figure, path)
