"""Pictures of studies, drawn from their documents; what every plot here shares."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pmlm.errors import ConfigError, DataError


@contextmanager
def open_plot(path: Path, columns: int = 1) -> Iterator[Any]:
    """Axes side by side, drawn to .png or .svg when done; the same drawing gives the same file."""
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a plot is written as .png or .svg, not {path.suffix or path.name!r}")
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'pmlm[plot]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "pmlm"}):
        figure, axes = plt.subplots(1, columns, figsize=(5.5 * columns, 4.2), layout="constrained")
        try:
            yield axes
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from None
        finally:
            plt.close(figure)


def draw_study(document: Mapping[str, Any], path: Path) -> None:
    """One picture of a study."""
    draw = {"lengths": _lengths, "coverage": _coverage, "orders": _orders, "stories": _stories}.get(document["study"])
    if draw is None:
        raise DataError(f"unknown study {document['study']!r}")
    with open_plot(path, 3 if document["study"] == "lengths" else 2) as axes:
        draw(document["result"], axes)


def _bars(axes: Any, values: Mapping[str, float | None], title: str, unit: str) -> None:
    known = {name: value for name, value in values.items() if value is not None}
    axes.barh(list(known), list(known.values()), color="#4878a8")
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit)
    axes.margins(x=0.12)  # room for the numbers
    axes.grid(alpha=0.3, axis="x")
    for i, value in enumerate(known.values()):
        axes.annotate(f" {value:.3g}", (value, i), va="center", fontsize=8)


def _lengths(result: Mapping[str, Any], axes: Sequence[Any]) -> None:
    for place, kind in zip(axes, ("word", "long word", "span"), strict=True):
        scores = dict(sorted(result[kind]["scores"].items(), key=lambda item: -item[1]["exact"]))
        near = [100 * s["within_one"] for s in scores.values()]
        place.barh(list(scores), near, color="#c9d8e8", label="within one")
        place.barh(list(scores), [100 * s["exact"] for s in scores.values()], color="#4878a8", label="true length")
        place.invert_yaxis()
        place.set(title=f"{kind}: length chosen", xlabel="% of blanks", xlim=(0, 100))
        place.grid(alpha=0.3, axis="x")
        place.legend(fontsize=8)


def _judged(each: Mapping[str, Any] | None) -> float | None:
    return None if each is None or each.get("judge") is None else float(each["judge"]["bits_per_byte"])


def _coverage(result: Mapping[str, Any], axes: Sequence[Any]) -> None:
    shares = {name: 100 * result[name] / result["sets"] for name in ("satisfied", "errors", "broken")}
    _bars(axes[0], shares, f"{result['sets']} sets of words that must appear", "%")
    judged = {name: _judged(each) for name, each in result["appraisal"].items()}
    _bars(axes[1], judged, "judge", "bits per byte")


def _orders(result: Mapping[str, Any], axes: Sequence[Any]) -> None:
    exact = sorted(result["exact"].items(), key=lambda item: item[1]["nll"])
    _bars(axes[0], {name: f["bits_per_byte"] for name, f in exact}, "real text, exact NLL", "bits per byte")
    shares = list(result["written"])
    for name in next(iter(result["written"].values())):
        points = [(100 * float(share), _judged(result["written"][share][name])) for share in shares]
        known = [(x, y) for x, y in points if y is not None]
        if known:
            style = "k--" if name not in result["exact"] else ".-"
            axes[1].plot(*zip(*known, strict=True), style, label=name)
    axes[1].set(title="written text, judge", xlabel="% of the words hidden", ylabel="bits per byte")
    axes[1].grid(alpha=0.3)
    if axes[1].get_legend_handles_labels()[0]:
        axes[1].legend(fontsize=8)


def _stories(result: Mapping[str, Any], axes: Sequence[Any]) -> None:
    named = dict(result["likelihood"])
    if result["gpt"] is not None:
        named["GPT"] = result["gpt"]["causal"]
    bars = {
        f"{name}, {order}": figure["bits_per_byte"]
        for name, lengths in named.items()
        for order, figure in lengths[max(lengths, key=int)].items()
    }
    _bars(axes[0], bars, "held-out stories, longest windows", "bits per byte")
    judged = {name: _judged(each) for name, each in result["free_stories"]["appraisal"].items()}
    _bars(axes[1], judged, "free stories, judge", "bits per byte")
