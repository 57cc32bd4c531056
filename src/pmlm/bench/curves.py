"""Curves of training runs, drawn from their metrics.jsonl."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pmlm.bench.plots import open_plot
from pmlm.errors import DataError
from pmlm.training.loop import METRICS, read_metrics


@dataclass(frozen=True)
class Curves:
    name: str
    tokens: list[int]
    loss: list[float]
    heldout: dict[str, list[tuple[int, float]]]
    """By visibility: (tokens, bits per byte at the longest windows)."""


def read_curves(run: Path) -> Curves:
    tokens: list[int] = []
    loss: list[float] = []
    heldout: dict[str, list[tuple[int, float]]] = {}
    try:
        for record in read_metrics(run):
            if record["kind"] == "step":
                tokens.append(int(record["tokens"]))
                loss.append(float(record["loss"]))
            elif record["kind"] == "evaluation":
                for visibility, figures in record.get("bits_per_byte", {}).items():
                    longest = max(figures, key=int)
                    heldout.setdefault(visibility, []).append((tokens[-1] if tokens else 0, figures[longest]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{run / METRICS} is not the log of a training run: {error!r}") from None
    if not tokens:
        raise DataError(f"{run} holds no steps yet")
    return Curves(run.name, tokens, loss, heldout)


def read_all(runs: Sequence[Path]) -> list[Curves]:
    """The curves of several runs; those in folders of one name are called by their whole paths."""
    names = Counter(run.name for run in runs)
    return [replace(read_curves(run), name=str(run) if names[run.name] > 1 else run.name) for run in runs]


def smooth(values: list[float], window: int) -> list[float]:
    """A running mean over the last `window` values."""
    sums, out = 0.0, []
    for i, value in enumerate(values):
        sums += value - (values[i - window] if i >= window else 0.0)
        out.append(sums / min(i + 1, window))
    return out


def draw_curves(curves: list[Curves], path: Path) -> None:
    """Training loss and held-out bits per byte against tokens, to .png or .svg."""
    with open_plot(path, 2) as (left, right):
        for run in curves:
            window = max(1, len(run.loss) // 50)
            (line,) = left.plot(run.tokens, smooth(run.loss, window), label=run.name)
            for style, (visibility, points) in zip(("-", "--", ":"), run.heldout.items(), strict=False):
                label = f"{run.name}, {visibility}"
                right.plot(*zip(*points, strict=True), style, marker=".", color=line.get_color(), label=label)
        left.set(title="training loss", xlabel="tokens", ylabel="nats per token")
        right.set(title="held out, order-averaged", xlabel="tokens", ylabel="bits per byte")
        for axes in (left, right):
            axes.grid(alpha=0.3)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
