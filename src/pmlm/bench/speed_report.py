"""What `pmlm bench generate` measured, as tables in Markdown, a plot, and the README's lines. Made from JSON alone."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmlm.bench.plots import open_plot
from pmlm.bench.quality import QualityBench
from pmlm.errors import DataError
from pmlm.keeping import write_text

JSON, TABLE, PLOT = "bench.json", "table.md", "quality.png"
COMMAND = "pmlm bench generate --out results/speed"
BEGIN, END = "<!-- generation speed: begin -->", "<!-- generation speed: end -->"


def command_of(report: dict[str, Any]) -> str:
    """What was run to make it."""
    texts = report["settings"]["quality"]["texts"]
    return COMMAND if texts == QualityBench().texts else f"{COMMAND} --texts {texts}"


def write_report(report: dict[str, Any], folder: Path) -> None:
    """The JSON, and what is made from it."""
    write_text(folder / JSON, json.dumps(report, indent=1) + "\n")
    redraw(folder)


def read_report(folder: Path) -> dict[str, Any]:
    path = folder / JSON
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    return report


def redraw(folder: Path, readme: Path | None = None) -> None:
    """Table and plot anew from the JSON; the README's lines too, where one is named."""
    report = read_report(folder)
    write_text(folder / TABLE, tables(report))
    draw_quality(report, folder / PLOT)
    if readme is not None:
        if not readme.is_file():
            raise DataError(f"no file {readme}")
        text = readme.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            raise DataError(f"{readme} has no place for the table: {BEGIN} … {END}")
        before, rest = text.split(BEGIN)
        write_text(readme, f"{before}{BEGIN}\n{readme_lines(report)}{END}{rest.split(END)[1]}")


def tables(report: dict[str, Any]) -> str:
    return "\n".join(_tables(report))


def _tables(report: dict[str, Any]) -> Iterator[str]:
    s = report["settings"]
    yield "# Speed of generation\n"
    again = "`pmlm bench generate --redraw results/speed` makes it anew"
    yield f"Made by `{command_of(report)}` from [{JSON}]({JSON}); {again}.\n"
    how = (
        "100 whole sequences each"
        if s["full"]
        else (
            f"{s['steps']} steps (at batch 1 four times as many) at each of {s['stages']} stages of the text, scaled "
            "to the whole; where every step recomputes the canvas, the rows in brackets stand for the batch"
        )
    )
    yield (
        f"{report['threads']} threads, torch {report['torch']}, transformers {report['transformers']}; median of "
        f"{s['rounds']} alternating rounds; {how}. Random weights; passes per token of the shortcuts are those of the "
        "default model.\n"
    )
    yield f"## 100 sequences of {s['length']} tokens\n"
    for size in dict.fromkeys(row["size"] for row in report["latency"]):
        yield from _latency(size, [row for row in report["latency"] if row["size"] == size])
    yield "## What shortcuts cost, by the default model\n"
    yield from _quality(report)
    yield "\n## Length (batch 1)\n"
    yield "Medians of the readings; the ratio is to the shortest length, reading by reading in turns.\n"
    yield "| | | length | readings | ms per token | ratio | cache, MB |\n|---|---|---|---|---|---|---|"
    for row in report["length"]:
        mine = [r for r in report["length"] if (r["size"], r["name"]) == (row["size"], row["name"])]
        shortest = min(mine, key=lambda r: r["length"])
        ratio = statistics.median(x / base for x, base in zip(row["rounds"], shortest["rounds"], strict=True))
        yield (
            f"| {row['size']} | {row['name']} | {row['length']} | {len(row['rounds'])} | "
            f"{row['milliseconds_per_token']:.2f} | {ratio:.2f} | {row['cache_megabytes']:.1f} |"
        )
    yield ""


def _latency(size: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    yield f"| {size} | exact | passes per token |" + "".join(f" batch {b}: seconds | ratio |" for b in batches)
    yield "|---|---|---|" + "---|---|" * len(batches)
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = {row["batch"]: row for row in rows if row["name"] == name}
        first = next(iter(mine.values()))
        cells = "".join(f" {row['seconds_for_100']:.1f}{_scaled(row)} | {row['ratio']:.2f} |" for row in mine.values())
        exact = "yes" if first["exact"] else "**approximate**"
        yield f"| {name} | {exact} | {first['passes_per_token']:.2f} |{cells}"
    yield ""


def _scaled(row: dict[str, Any]) -> str:
    return "" if row["rows_timed"] == row["batch"] else f" [{row['rows_timed']} rows]"


def _quality(report: dict[str, Any]) -> Iterator[str]:
    q = report["settings"]["quality"]
    yield (
        f"{q['texts']} texts of up to {q['length']} tokens; log-likelihood averaged over orders, ± one standard error; "
        "change against writing token by token along the same order.\n"
    )
    yield "| | passes per token | ms per token | nats per token | change | token entropy | distinct pairs |"
    yield "|---|---|---|---|---|---|---|"
    for w in report["quality"]:
        name = f"{w['kind']}: {w['options']}" + (" (in the table above)" if w["is_chosen"] else "")
        yield (
            f"| {name} | {w['passes_per_token']:.2f} | {1000 * w['seconds_per_token']:.2f} | {w['nll']:.3f} ± "
            f"{w['nll_error']:.3f} | {100 * w['change']:+.1f} ± {100 * w['change_error']:.1f} % | {w['entropy']:.2f} | "
            f"{w['distinct_pairs']:.3f} |"
        )


def readme_lines(report: dict[str, Any]) -> str:
    """Ratios to Hugging Face's GPT-2."""
    columns = list(dict.fromkeys((row["size"], row["batch"]) for row in report["latency"]))
    lines = ["| time to write, ratio to Hugging Face's GPT-2 |" + "".join(f" {s}, batch {b} |" for s, b in columns)]
    lines.append("|---|" + "---|" * len(columns))
    for name in dict.fromkeys(row["name"] for row in report["latency"]):
        mine = [row for row in report["latency"] if row["name"] == name]
        label = name if mine[0]["exact"] else f"{name} (approximate)"
        lines.append(f"| {label} |" + "".join(f" {row['ratio']:.2f} |" for row in mine))
    lines += ["", f"Made by `{command_of(report)}`: 100 sequences of 128 tokens, two threads, turns"]
    lines.append("alternating; quality and length beside it in [results/speed/table.md](results/speed/table.md).")
    return "\n".join(lines) + "\n"


def draw_quality(report: dict[str, Any], path: Path) -> None:
    """Log-likelihood against time per token, batch 1, by the default model."""
    with open_plot(path) as axes:
        markers = {"exact": "o", "parallel": "s", "cache": "^", "both": "D", "order-causal": "*", "speculative": "P"}
        for kind, marker in markers.items():
            mine = [w for w in report["quality"] if w["kind"] == kind]
            x, y = [1000 * w["seconds_per_token"] for w in mine], [-w["nll"] for w in mine]
            axes.errorbar(x, y, yerr=[w["nll_error"] for w in mine], fmt=marker, capsize=2, label=kind)
            for w, left, up in zip(mine, x, y, strict=True):
                axes.annotate(w["options"], (left, up), fontsize=6, xytext=(4, 3), textcoords="offset points")
        axes.set(
            title="what shortcuts cost (default model, batch 1)",
            xlabel="milliseconds per token",
            ylabel="log-likelihood, nats per token",
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
