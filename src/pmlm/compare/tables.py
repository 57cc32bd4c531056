"""Results -> Markdown: the same JSON gives the same bytes."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmlm.compare.arms import ARMS
from pmlm.compare.protocol import record_work
from pmlm.compare.records import Record, read_record
from pmlm.compare.units import FOLDERS
from pmlm.errors import DataError
from pmlm.evaluation import by_unit, ratio_stderr
from pmlm.keeping import markdown_table

PAPER: dict[str, dict[str, tuple[float | None, float | None]]] = {
    "wikitext": {
        "bert-a": (23.12, 25.54),
        "gpt-a": (21.23, None),
        "u-pmlm-r": (19.58, 21.51),
        "u-pmlm-a": (19.32, 21.30),
    },
    "lm1b": {
        "bert-a": (140.67, 56.97),
        "gpt-a": (24.25, None),
        "u-pmlm-r": (35.24, 38.45),
        "u-pmlm-a": (49.32, 42.46),
    },
}
"""Perplexity, sequential and random, of Liao et al. (2020), tables 2 and 3."""

Place = tuple[str, str]
"""A model and an order."""


@dataclass(frozen=True)
class Claim:
    """Of perplexity on WikiText-103: the first is below (and at least) so many times the second."""

    text: str
    first: Place
    second: Place
    most: float = 1.0
    least: float = 0.0

    def verdict(self, apart: float, error: float | None) -> str:
        """Of a difference in nats per token; undecided where a limit is within two standard errors of it."""
        limits = [math.log(limit) for limit in (self.most, self.least) if limit > 0]
        if error is None or any(abs(apart - limit) < 2 * error for limit in limits):
            return "undecided"
        return "holds" if self.least <= math.exp(apart) < self.most else "**fails**"


CLAIMS = [
    Claim("u-PMLM-A is below BERT, sequential", ("u-pmlm-a", "l2r"), ("bert-a", "l2r")),
    Claim("u-PMLM-A is below BERT, random", ("u-pmlm-a", "random"), ("bert-a", "random")),
    Claim("u-PMLM-R is below BERT, sequential", ("u-pmlm-r", "l2r"), ("bert-a", "l2r")),
    Claim("u-PMLM-R is below BERT, random", ("u-pmlm-r", "random"), ("bert-a", "random")),
    Claim("u-PMLM-R is below BERT-R, sequential", ("u-pmlm-r", "l2r"), ("bert-r", "l2r")),
    Claim("u-PMLM-R is below BERT-R, random", ("u-pmlm-r", "random"), ("bert-r", "random")),
    Claim("u-PMLM-A is at most 10 % above GPT, sequential", ("u-pmlm-a", "l2r"), ("gpt-a", "l2r"), 1.1),
    Claim("u-PMLM-R is at most 10 % above GPT, sequential", ("u-pmlm-r", "l2r"), ("gpt-a", "l2r"), 1.1),
    Claim("random is within 10 % of sequential, u-PMLM-A", ("u-pmlm-a", "random"), ("u-pmlm-a", "l2r"), 1.1, 0.9),
    Claim("random is within 10 % of sequential, u-PMLM-R", ("u-pmlm-r", "random"), ("u-pmlm-r", "l2r"), 1.1, 0.9),
    Claim("A and R are within 5 % of each other, sequential", ("u-pmlm-a", "l2r"), ("u-pmlm-r", "l2r"), 1.05, 0.95),
    Claim("A and R are within 5 % of each other, random", ("u-pmlm-a", "random"), ("u-pmlm-r", "random"), 1.05, 0.95),
]
"""What the paper says of perplexity on WikiText-103. "Comparable" to GPT is read as at most 10 % above it."""

Results = dict[str, list[Record]]


def has_results(out: Path) -> bool:
    return any(any((out / folder).glob("*.json")) for folder in FOLDERS.values())


def read_results(out: Path) -> Results:
    if not has_results(out):
        raise DataError(f"{out} holds no results yet")
    folders = FOLDERS.values()
    return {folder: [read_record(path) for path in sorted((out / folder).glob("*.json"))] for folder in folders}


def report(results: Results, scale: str) -> str:
    """Everything that the results say, as one Markdown document."""
    parts = [
        f"# Comparison, {scale} scale",
        f"Made by `pmlm compare --scale {scale} --stage tables` from the JSON files beside this one.",
        *_section("Models", training_table(results)),
        *_section("WikiText-103 test", wikitext_table(results)),
        *_section("One Billion Words, held-out sentences", lm1b_table(results)),
        *_section("Padding", padding_table(results)),
        *_section("The gap to GPT on sentences", gap_table(results)),
        *_section("Prior of the masking ratio", prior_table(results)),
        *_section("Bounds over orders", importance_table(results)),
        *_section("Equal arithmetic", arithmetic_table(results)),
        *_section("Equal time", time_table(results)),
        *_section("What the paper claims", checks_table(results)),
        *_section("Samples", samples_text(results)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> list[str]:
    return [f"## {title}", body] if body else []


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(row) for row in rows]
    if not lines:
        return ""
    return markdown_table(header, lines)


def in_order(records: Iterable[Record]) -> list[Record]:
    places = {name: i for i, name in enumerate(ARMS)}
    return sorted(records, key=lambda r: (places[r["model"]], r["seed"]))


def _titles(record: Record, visibility: str, figures: dict[str, Any]) -> str:
    """The model, and which of its visibilities where it has several."""
    several = sum(isinstance(value, dict) for value in figures.values()) > 1
    return record["title"] + (f", {visibility}" if several else "")


@dataclass(frozen=True)
class Cell:
    value: float | None = None
    error: float | None = None
    digits: int = 1
    label: str = ""

    def text(self) -> str:
        if self.value is None:
            return "–"
        error = "" if self.error is None else f" ± {self.error:.{self.digits}f}"
        return f"{self.value:.{self.digits}f}{error}" + (f" ({self.label})" if self.label else "")


@dataclass(frozen=True)
class Line:
    """A row of a table before it is text."""

    title: str
    seed: int
    stage: tuple[str, ...]
    cells: list[Cell]
    end: list[str]


def _with_means(lines: Iterable[Line]) -> list[list[str]]:
    """Rows as text; behind those of a model with several seeds, their mean ± standard deviation."""
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.title, *line.stage), []).append(line)
    rows = []
    for (title, *stage), group in groups.items():
        rows += [[title, str(x.seed), *stage, *(cell.text() for cell in x.cells), *x.end] for x in group]
        if len(group) > 1:
            means = [_mean(cells).text() for cells in zip(*(x.cells for x in group), strict=True)]
            rows.append([title, f"mean of {len(group)} ± deviation", *stage, *means, *group[0].end])
    return rows


def _mean(cells: Sequence[Cell]) -> Cell:
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) < len(cells):
        return Cell()
    return Cell(statistics.fmean(values), statistics.stdev(values), cells[0].digits, cells[0].label)


def _ppl(figure: dict[str, Any] | None, label: str = "") -> Cell:
    return Cell() if figure is None else Cell(figure["perplexity"], figure["perplexity_stderr"] or 0.0, label=label)


def _bits_cell(figure: dict[str, Any] | None) -> Cell:
    return Cell(None if figure is None else figure["bits_per_byte"], digits=3)


def _paper(corpus: str, model: str) -> list[str]:
    return ["–" if value is None else f"{value:.2f}" for value in PAPER[corpus].get(model, (None, None))]


def _bits(figure: dict[str, Any] | None) -> str:
    return _bits_cell(figure).text()


def training_table(results: Results) -> str:
    runs = in_order(results["pretrain"])
    gpt: list[dict[str, Any]] = next((r["curve"] for r in runs if r["model"] == "gpt-a"), [])
    rows = []
    for r in runs:
        last = r["curve"][-1]["bits_per_byte"] if r["curve"] else {}
        reached = {visibility: figures[max(figures, key=int)] for visibility, figures in last.items()}
        bits = "; ".join(f"{visibility} {value:.3f}" for visibility, value in reached.items())
        behind = _tokens_until(gpt, min(reached.values())) if reached and r["model"] != "gpt-a" else None
        rows.append(
            [r["title"], str(r["seed"]), f"{r['parameters'] / 1e6:.1f}M", f"{r['tokens'] / 1e6:.2f}M",
             f"{r['training_seconds'] / 60:.0f} min", bits, "–" if behind is None else f"{behind / 1e6:.2f}M"]
        )  # fmt: skip
    header = ["model", "seed", "parameters", "tokens", "time", "held-out bits per byte, order-averaged",
              "GPT has these after"]  # fmt: skip
    return markdown(header, rows)


def _tokens_until(curve: Sequence[dict[str, Any]], bits: float) -> float | None:
    """When a left-to-right model had come down to so many bits per byte; a line joins its evaluations."""
    points = [(point["tokens"], next(iter(point["bits_per_byte"].values()))) for point in curve]
    known = [(tokens, figures[max(figures, key=int)]) for tokens, figures in points]
    for (before, high), (after, low) in itertools.pairwise(known):
        if low <= bits < high:
            return float(before + (after - before) * (high - bits) / (high - low))
    return None


def wikitext_table(results: Results) -> str:
    tuned = {(r["model"], r["seed"]): r["wikitext"] for r in results["tuned"] if "wikitext" in r}
    lines = []
    for r in in_order(results["perplexity"]):
        before, after = r["wikitext"], tuned.get((r["model"], r["seed"]), {})
        for visibility in (v for v in before if isinstance(before[v], dict)):
            one, two = before[visibility], after.get(visibility, {"exact": {}})
            cells = [_ppl(stage["exact"].get(order)) for stage in (one, two) for order in ("l2r", "random")]
            cells += [_bits_cell(one["bound"]), _bits_cell(two.get("bound"))]
            title = _titles(r, visibility, before)
            lines.append(Line(title, r["seed"], (), cells, _paper("wikitext", r["model"])))
    rows = _with_means(lines)
    if not rows:
        return ""
    one = results["perplexity"][0]["wikitext"]
    note = (
        f"Perplexity per token of {_exact_rows(one)} windows of {one['context']} slots, exact, with standard errors; "
        f"the bound is over {_bound_rows(one)} windows. [UNK]: {one['unknown_share']:.2%} of the tokens; "
        f"`<unk>` is spelt in the text, {one['unk_words']:.2%} of its words. The paper's figures are of 110M "
        "parameters and another vocabulary: only their order can be compared."
    )
    header = ["model", "seed", "sequential", "random", "sequential, tuned", "random, tuned", "bits per byte (bound)",
              "tuned", "paper, sequential", "paper, random"]  # fmt: skip
    return f"{markdown(header, rows)}\n\n{note}"


def _exact_rows(figures: dict[str, Any]) -> int:
    return next(int(f["rows"]) for v in figures.values() if isinstance(v, dict) for f in v["exact"].values())


def _bound_rows(figures: dict[str, Any]) -> int:
    return next(int(v["bound"]["rows"]) for v in figures.values() if isinstance(v, dict))


def _sentence_lines(record: Record, stage: str, end: Sequence[str] = ()) -> list[Line]:
    """The probability of a length is told by models that were fine-tuned on sentences alone."""
    lines = []
    figures = record["lm1b"]
    for visibility in (v for v in figures if isinstance(figures[v], dict)):
        found = figures[visibility]
        cells = []
        for kind in ("x given N", "x and N"):
            for order in ("l2r", "random"):
                cell = _ppl(found.get(order, {}).get(kind))
                if kind == "x given N" and visibility == "causal":  # which it does not see
                    cell = _ppl(found.get(order, {}).get("x alone"), "x alone")
                cells.append(Cell() if kind == "x and N" and stage == "pretrained" else cell)
        cells.append(_bits_cell(found.get("bound")))
        lines.append(Line(_titles(record, visibility, figures), record["seed"], (stage,), cells, list(end)))
    return lines


SENTENCES = [
    "x given N, sequential", "x given N, random", "x and N, sequential", "x and N, random", "bits per byte of x",
]  # fmt: skip


def _measured_sentences(record: Record) -> int:
    cells = next(v for v in record["lm1b"].values() if isinstance(v, dict))
    return int(cells["l2r"]["x and N"]["rows"])


def lm1b_table(results: Results) -> str:
    stages = [(r, "pretrained") for r in results["perplexity"] if "lm1b" in r]
    stages += [(r, "tuned") for r in results["tuned"] if "lm1b" in r]
    places = {name: i for i, name in enumerate(ARMS)}
    stages.sort(key=lambda pair: (places[pair[0]["model"]], pair[1], pair[0]["seed"]))
    rows = _with_means(line for r, stage in stages for line in _sentence_lines(r, stage, _paper("lm1b", r["model"])))
    if not rows:
        return ""
    some = stages[0][0]["lm1b"]
    note = (
        f"Perplexity per content token of {_measured_sentences(stages[0][0])} whole sentences, with standard errors. "
        f"{some['fitting']} of {some['sentences']} sentences fit into {some['context']} slots; the measured ones are "
        "drawn from them at random, and the order-averaged bound in bits per byte (GPT: exact, without the end) is "
        f"over all. [UNK]: {some['unknown_share']:.2%} of the tokens. Given N: the model sees how long the sentence "
        "is; GPT does not, and its figure is of x alone, without the end. And N: it says so, or the "
        "probability of N is added from the lengths of the training sentences; left empty for models that "
        "were not fine-tuned on these."
    )
    header = ["model", "seed", "", *SENTENCES, "paper, sequential", "paper, random"]
    return f"{markdown(header, rows)}\n\n{note}"


def padding_table(results: Results) -> str:
    rows = _with_means(line for r in in_order(results["padding"]) for line in _sentence_lines(r, r["packing"]))
    return markdown(["model", "seed", "padding", *SENTENCES], rows)


def gap_table(results: Results) -> str:
    """By way of padding: how much further behind GPT a masked model is on sentences than on long text."""
    tuned = reversed(in_order(r for r in results["tuned"] if "wikitext" in r))  # the first seed stays
    long = {r["model"]: r["wikitext"] for r in tuned}
    short = {(r["model"], r["packing"]): r["lm1b"] for r in results["padding"]}
    rows = []
    for r in in_order(results["padding"]):
        gpt = short.get(("gpt-a", r["packing"])) or short.get(("gpt-a", "padded"))
        if r["model"] == "gpt-a" or gpt is None or not {"gpt-a", r["model"]} <= long.keys():
            continue
        one, other = r["lm1b"]["bidirectional"]["l2r"], gpt["causal"]["l2r"]
        apart = _times(*(_place(long[name], "l2r") for name in (r["model"], "gpt-a")))
        alone = _times(one["x given N"], other["x alone"]) if "x given N" in one else None
        joint = _times(one["x and N"], other["x and N"])
        rows.append([r["title"], r["packing"], *(f"{x:.2f}" if x else "–" for x in (apart, alone, joint)),
                     *(f"{x / apart:.2f}" if x else "–" for x in (alone, joint)), _paper_gap(r["model"])])  # fmt: skip
    if not rows:
        return ""
    header = ["model", "padding", "times GPT, WikiText-103", "sentences, x given N", "sentences, x and N",
              "gap, x given N", "gap, x and N", "the paper's gap"]  # fmt: skip
    note = (
        "Sequential perplexity as a multiple of GPT's, fine-tuned, first seed; the gap is the multiple on sentences "
        "over that on WikiText-103. GPT's rows hold one sentence each where the model's do; beside x given N stands "
        "its x alone."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def _times(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float(one["perplexity"] / other["perplexity"])


def _paper_gap(model: str) -> str:
    multiples = []
    for corpus in ("lm1b", "wikitext"):
        (one, _), (gpt, _) = PAPER[corpus].get(model, (None, None)), PAPER[corpus]["gpt-a"]
        multiples.append(one / gpt if one and gpt else None)
    on_sentences, on_text = multiples
    return f"{on_sentences / on_text:.2f}" if on_sentences and on_text else "–"


def prior_table(results: Results) -> str:
    probes = {(r["model"], r["seed"]): r["probe"] for r in results["probes"]}
    names = {"bert-r": "fixed 15 %", "u-pmlm-r": "uniform [0, 1]"}
    wanted = [r for r in in_order(results["pretrain"]) if (r["model"], r["seed"]) in probes]
    tasks = sorted({task for found in probes.values() for task in found})
    rows = []
    for r in wanted:
        if not r["curve"]:
            continue
        (figures,) = [f for v, f in r["curve"][-1]["bits_per_byte"].items() if v == "bidirectional"] or [{}]
        scores = [probes[r["model"], r["seed"]].get(task) for task in tasks]
        rows.append(
            [names.get(r["model"], r["title"].removeprefix("prior ")), str(r["seed"])]
            + [f"{figures[max(figures, key=int)]:.3f}" if figures else "–"]
            + [Cell().text() if x is None else Cell(x["score"], x["stderr"], digits=3).text() for x in scores]
        )
    if not rows:
        return ""
    constant = {task: found[task]["constant"] for task in tasks for found in probes.values() if task in found}
    header = ["prior", "seed", "bits per byte, order-averaged", *[f"probe, {task}" for task in tasks]]
    note = (
        "Probes are logistic regressions on the frozen model's means over a text, all layers side by side; their score "
        "is that of dev (CoLA: Matthews), with its standard error over the dev texts. A constant answer scores "
        f"{', '.join(f'{x:.3f} ({task})' for task, x in constant.items())}."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def importance_table(results: Results) -> str:
    rows = []
    for r in in_order(results["perplexity"]):
        for visibility, figures in r["wikitext"].items():
            if isinstance(figures, dict) and "importance" in figures:
                found = figures["importance"]
                rows.append(
                    [_titles(r, visibility, r["wikitext"]), str(r["seed"]), str(found["orders"]),
                     str(found["mean"]["rows"]), _bits(found["mean"]), _bits(found["weighted"])]
                )  # fmt: skip
    header = ["model", "seed", "orders", "windows", "bits per byte, mean of the orders", "importance-weighted"]
    return markdown(header, rows)


def time_table(results: Results) -> str:
    """Held-out bits per byte of every model when the quickest of them was done."""
    runs = [r for r in in_order(results["pretrain"]) if r["curve"]]
    table = _reached([(r, [point["seconds"] for point in r["curve"]]) for r in runs])
    note = (
        "What each model had reached when the quickest one was done, at the last evaluation before. The rate of that "
        "one had come down by then, that of the others had not: runs planned for this time would be closer. Other work "
        "on the same machine is in these times."
    )
    return table and f"{table}\n\n{note}"


def arithmetic_table(results: Results) -> str:
    """The same when the one with the least arithmetic was done."""
    runs = [(r, record_work(r)) for r in in_order(results["pretrain"]) if r["curve"]]
    costs = [(r, [point["tokens"] * work for point in r["curve"]]) for r, work in runs if work is not None]
    if len(costs) < len(runs):
        return ""
    table = _reached(costs)
    note = (
        "What each model had reached when the one with the least arithmetic was done, at the last evaluation before; "
        "here too the rates of the others had not come down yet."
    )
    return table and f"{table}\n\n{note}"


def _reached(runs: Sequence[tuple[Record, Sequence[float]]]) -> str:
    """Of runs and the costs of their evaluations: what all had reached for the cost of the cheapest one."""
    if len(runs) < 2:
        return ""
    least = min(costs[-1] for _, costs in runs)
    rows = []
    for r, costs in runs:
        reached = [point for point, cost in zip(r["curve"], costs, strict=True) if cost <= least * 1.001]
        for visibility, figures in (reached[-1]["bits_per_byte"] if reached else {}).items():
            longest = max(figures, key=int)
            rows.append(
                [_titles(r, visibility, reached[-1]["bits_per_byte"] | {"": 0}), str(r["seed"]),
                 f"{reached[-1]['tokens'] / 1e6:.2f}M", f"{figures[longest]:.3f}"]
            )  # fmt: skip
    return markdown(["model", "seed", "tokens by then", "bits per byte"], rows)


def checks_table(results: Results) -> str:
    """What the paper claims, with its outcome here; fine-tuned models where there are such."""
    tuned = [r for r in results["tuned"] if "wikitext" in r]
    rows = []
    for source, stage in ((results["perplexity"], "pretrained"), (tuned, "tuned")):
        found = {r["model"]: r["wikitext"] for r in reversed(in_order(source))}  # of the first seed
        for claim in CLAIMS:
            if claim.first[0] not in found or claim.second[0] not in found:
                continue
            one, other = (_place(found[name], order) for name, order in (claim.first, claim.second))
            rows_of = [found[name]["exact_rows"] for name, _ in (claim.first, claim.second)]
            difference = _apart(rows_of[0], one, other) if rows_of[0] == rows_of[1] else None
            verdict = "undecided" if difference is None else claim.verdict(*difference)
            shown = "–" if difference is None else f"{difference[0]:+.3f} ± {difference[1] or 0:.3f}"
            rows.append([claim.text, stage, verdict, f"{one['perplexity']:.1f} and {other['perplexity']:.1f}", shown])
    if not rows:
        return ""
    header = ["claim", "", "here", "perplexity on WikiText-103", "difference in nats per token"]
    note = (
        "Of the first seed; the difference is over the same windows, with its standard error over documents. "
        "Undecided: what is claimed begins or ends within two standard errors of it. The paper calls u-PMLM comparable "
        "to GPT, which is read as at most 10 % above it."
    )
    return f"{markdown(header, rows)}\n\n{note}"


def _place(figures: dict[str, Any], order: str) -> dict[str, Any]:
    """Exact figures along an order, as the model was trained to see: GPT from the left alone."""
    visibility = next(v for v in ("bidirectional", "causal") if v in figures)
    return dict(figures[visibility]["exact"][order])


def _apart(
    rows: Sequence[Sequence[int]], one: dict[str, Any], other: dict[str, Any]
) -> tuple[float, float | None] | None:
    """How far two figures over the same windows are apart, with the standard error of the difference."""
    if "row_nll" not in one or "row_nll" not in other:
        return None
    documents, tokens = zip(*rows, strict=True)
    apart = [a - b for a, b in zip(one["row_nll"], other["row_nll"], strict=True)]
    return sum(apart) / sum(tokens), ratio_stderr(by_unit(documents, apart, tokens))


def samples_text(results: Results) -> str:
    parts = []
    for r in in_order(results["samples"]):
        parts.append(f"**{r['title']}**, order {r['order']}, template `{r['template']}`")
        parts += [f"{seed}. {text}" for seed, text in zip(r["seeds"], r["texts"], strict=True)]
    return "\n\n".join(parts)
