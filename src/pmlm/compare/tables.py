"""Results -> Markdown: the same JSON gives the same bytes."""

from collections.abc import Sequence
from typing import Any

from pmlm.compare.arms import ARMS
from pmlm.compare.budgets import arithmetic_table, time_table, training_table
from pmlm.compare.claims import Place, apart, beyond_table, checks_table, exact_figure
from pmlm.compare.layout import (
    Cell,
    Line,
    Results,
    bits,
    in_order,
    longest,
    markdown,
    perplexity,
    title,
    titled,
    visibilities,
    with_means,
)
from pmlm.compare.records import Record

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
"""Perplexity, sequential and random, of Liao et al. (2020), tables 2 and 3; after fine-tuning."""
PAPER_NOTE = (
    "The paper's figures are of fine-tuned models of 110M parameters and of another vocabulary: only their order can "
    "be compared."
)
ERRORS = "± is a standard error, behind a mean of several seeds the standard deviation over these."


def report(results: Results, scale: str) -> str:
    """Everything that the results say, as one Markdown document."""
    parts = [
        f"# Comparison, {scale} scale",
        f"Made by `pmlm compare --scale {scale} --stage tables` from the JSON files beside this one. How it was "
        "measured is told in `docs/results.md`.",
        *_section("Models", training_table(results)),
        *_section("WikiText-103 test", wikitext_table(results)),
        *_section("One Billion Words, held-out sentences", lm1b_table(results)),
        *_section("Padding", padding_table(results)),
        *_section("The gap to GPT on sentences", gap_table(results)),
        *_section("What the paper claims", checks_table(results)),
        *_section("Beyond the paper", beyond_table(results)),
        *_section("Prior of the masking ratio", prior_table(results)),
        *_section("Bounds over orders", importance_table(results)),
        *_section("Equal arithmetic", arithmetic_table(results)),
        *_section("Equal time", time_table(results)),
        *_section("Samples", samples_text(results)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(name: str, body: str) -> list[str]:
    return [f"## {name}", body] if body else []


def _paper(corpus: str, model: str) -> list[str]:
    return ["–" if value is None else f"{value:.2f}" for value in PAPER[corpus].get(model, (None, None))]


def wikitext_table(results: Results) -> str:
    tuned = {(r["model"], r["seed"]): r["wikitext"] for r in results["tuned"] if "wikitext" in r}
    lines = []
    for r in in_order(results["perplexity"]):
        before, after = r["wikitext"], tuned.get((r["model"], r["seed"]), {})
        for visibility in visibilities(before):
            one, two = before[visibility], after.get(visibility, {"exact": {}})
            cells = [perplexity(stage["exact"].get(order)) for stage in (one, two) for order in ("l2r", "random")]
            cells += [bits(one["bound"]), bits(two.get("bound"))]
            lines.append(Line(titled(r, visibility, before), r["seed"], (), cells, _paper("wikitext", r["model"])))
    if not lines:
        return ""
    one = results["perplexity"][0]["wikitext"]
    note = (
        f"Perplexity per token of {_exact_rows(one)} windows of {one['context']} slots, exact, before and after "
        f"fine-tuning on WikiText-103. {ERRORS} Bits per byte are of {_bound_rows(one)} of {one['windows']} windows, a "
        "bound: the mean over all orders, estimated by a draw for each window (GPT: exact, from left to right); their "
        "errors are mostly those of the choice of texts, which is the same for all. All models predict the same "
        "tokens, a window's first included; only a window that begins an article begins with a start marker. [UNK]: "
        f"{one['unknown_share']:.2%} of the tokens; `<unk>` is spelt in the text, {one['unk_words']:.2%} of its "
        f"words. {PAPER_NOTE}"
    )
    header = ["model", "seed", "sequential", "random", "sequential, tuned", "random, tuned", "bits per byte",
              "bits per byte, tuned", "paper, sequential", "paper, random"]  # fmt: skip
    return markdown(header, with_means(lines), note)


def _exact_rows(figures: dict[str, Any]) -> int:
    return next(int(f["rows"]) for v in visibilities(figures) for f in figures[v]["exact"].values())


def _bound_rows(figures: dict[str, Any]) -> int:
    return next(int(figures[v]["bound"]["rows"]) for v in visibilities(figures))


SENTENCES = [
    "x given N, sequential", "x given N, random", "x and N, sequential", "x and N, random", "bits per byte of x",
]  # fmt: skip


def _sentence_cells(found: dict[str, Any], visibility: str, *, is_tuned: bool) -> list[Cell]:
    """The probability of a length is told by models that were fine-tuned on sentences alone."""
    cells = []
    for kind in ("x given N", "x and N"):
        for order in ("l2r", "random"):
            cell = perplexity(found.get(order, {}).get(kind))
            if kind == "x given N" and visibility == "causal":  # which it does not see
                cell = perplexity(found.get(order, {}).get("x alone"), "x alone")
            cells.append(Cell() if kind == "x and N" and not is_tuned else cell)
    return [*cells, bits(found.get("bound"))]


def _measured_sentences(record: Record) -> int:
    figures = record["lm1b"]
    return int(figures[visibilities(figures)[0]]["l2r"]["x and N"]["rows"])


def lm1b_table(results: Results) -> str:
    stages = [(r, "pretrained") for r in results["perplexity"] if "lm1b" in r]
    stages += [(r, "tuned") for r in results["tuned"] if "lm1b" in r]
    places = {name: i for i, name in enumerate(ARMS)}
    stages.sort(key=lambda pair: (places[pair[0]["model"]], pair[1], pair[0]["seed"]))
    lines = []
    for r, stage in stages:
        figures, is_tuned = r["lm1b"], stage == "tuned"
        end = _paper("lm1b", r["model"] if is_tuned else "")
        for visibility in visibilities(figures):
            cells = _sentence_cells(figures[visibility], visibility, is_tuned=is_tuned)
            lines.append(Line(titled(r, visibility, figures), r["seed"], (stage,), cells, end))
    if not lines:
        return ""
    some = stages[0][0]["lm1b"]
    note = (
        f"Perplexity per content token of {_measured_sentences(stages[0][0])} whole sentences, exact. {ERRORS} "
        f"{some['fitting']} of {some['sentences']} sentences fit into {some['context']} slots; the measured ones are "
        "drawn from them at random, and the bits per byte, a bound as above, are of all that fit. [UNK]: "
        f"{some['unknown_share']:.2%} of the tokens. *x given N*: the probability of the sentence where the model is "
        "shown how long it is; GPT is not, and its figure there is of the words alone, without the end. *x and N*: "
        "the probability of the sentence together with its length; GPT predicts the end marker, the others are "
        "charged for the length by how often it occurs in the training sentences, which is left out for models that "
        f"were not fine-tuned on these. The paper does not say which of the two it measured. {PAPER_NOTE}"
    )
    return markdown(["model", "seed", "", *SENTENCES, "paper, sequential", "paper, random"], with_means(lines), note)


def padding_table(results: Results) -> str:
    packed = {r["model"]: r["lm1b"] for r in results["padding"] if r["packing"] == "packed"}
    lines = []
    for r in in_order(results["padding"]):
        figures = r["lm1b"]
        for visibility in visibilities(figures):
            kinds = ("x alone" if visibility == "causal" else "x given N", "x and N")
            other = packed.get(r["model"]) if r["packing"] != "packed" else None
            cells = [_beside(figures, other, visibility, kind) for kind in kinds]
            cells = _sentence_cells(figures[visibility], visibility, is_tuned=True) + cells
            lines.append(Line(titled(r, visibility, figures), r["seed"], (r["packing"],), cells, []))
    note = (
        "The same models, fine-tuned on the same sentences with as many tokens in as many steps. *packed*: sentences "
        "fill the rows one after another, no padding. The others have a row for each sentence: *padded*, padding that "
        "nobody sees; *padding-seen*, padding that is seen like text and never hidden; *padding-predicted*, padding "
        "and the end marker are hidden and predicted like tokens, so that they tell N (given N, they are shown). The "
        "last columns: difference to packed rows over the same sentences, sequential, in nats per token."
    )
    header = ["model", "seed", "padding", *SENTENCES, "to packed, x given N", "to packed, x and N"]
    return markdown(header, with_means(lines), note)


def _beside(figures: dict[str, Any], other: dict[str, Any] | None, visibility: str, kind: str) -> Cell:
    """The difference to another fine-tuning of the same model over the same sentences."""
    if other is None or figures.get("exact_rows") != other.get("exact_rows"):
        return Cell()
    one, two = (side[visibility]["l2r"].get(kind) for side in (figures, other))
    if one is None or two is None or "exact_rows" not in figures:
        return Cell()
    return Cell(*apart(figures["exact_rows"], one, two), digits=3, signed=True)


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
        behind = _times(*(exact_figure(long[name], Place(name, "l2r")) for name in (r["model"], "gpt-a")))
        alone = _times(one["x given N"], other["x alone"]) if "x given N" in one else None
        joint = _times(one["x and N"], other["x and N"])
        rows.append([title(r), r["packing"], *(f"{x:.2f}" if x else "–" for x in (behind, alone, joint)),
                     *(f"{x / behind:.2f}" if x else "–" for x in (alone, joint)),
                     *_paper_gap(r["model"])])  # fmt: skip
    header = ["model", "padding", "times GPT, WikiText-103", "sentences, x given N", "sentences, x and N",
              "gap, x given N", "gap, x and N", "paper: times GPT, WikiText-103", "sentences", "gap"]  # fmt: skip
    note = (
        "Sequential perplexity as a multiple of GPT's, fine-tuned, first seed; the gap is the multiple on sentences "
        "over that on WikiText-103: above 1, a model loses more to GPT on sentences than on long text. GPT's rows "
        "hold one sentence each where the model's do; beside x given N stands its x alone."
    )
    return markdown(header, rows, note)


def _times(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float(one["perplexity"] / other["perplexity"])


def _paper_gap(model: str) -> list[str]:
    """Times GPT on long text, on sentences, and the second over the first."""
    multiples = []
    for corpus in ("wikitext", "lm1b"):
        (one, _), (gpt, _) = PAPER[corpus].get(model, (None, None)), PAPER[corpus]["gpt-a"]
        multiples.append(one / gpt if one and gpt else None)
    on_text, on_sentences = multiples
    gap = on_sentences / on_text if on_sentences and on_text else None
    return ["–" if x is None else f"{x:.2f}" for x in (on_text, on_sentences, gap)]


def prior_table(results: Results) -> str:
    probes = {(r["model"], r["seed"]): r["probe"] for r in results["probes"]}
    names = {
        "bert-r": "fixed 15 %", "u-pmlm-r": "uniform [0, 1]", "prior-half": "uniform [0, 0.5]",
        "prior-beta": "Beta(2, 2)",
    }  # fmt: skip
    wanted = [r for r in in_order(results["pretrain"]) if (r["model"], r["seed"]) in probes and r["curve"]]
    tasks = sorted({task for found in probes.values() for task in found})
    rows = []
    for r in wanted:
        figures = r["curve"][-1]["bits_per_byte"].get("bidirectional")
        scores = [probes[r["model"], r["seed"]].get(task) for task in tasks]
        rows.append(
            [names.get(r["model"], title(r)), str(r["seed"]), f"{longest(figures):.3f}" if figures else "–"]
            + [Cell().text() if x is None else Cell(x["score"], x["stderr"], digits=3).text() for x in scores]
        )
    constant = {task: found[task]["constant"] for task in tasks for found in probes.values() if task in found}
    header = ["prior", "seed", "held-out bits per byte", *[f"probe, {task}" for task in tasks]]
    note = (
        "Models with relative positions that differ in the prior of the masking ratio alone; bits per byte as in the "
        "first table, over all orders, so over all ratios, whatever the model was trained with. Probes are logistic "
        "regressions on the frozen model's means over a text, all layers side by side, the classes weighted alike; "
        "their score is that of dev (CoLA: Matthews), with its standard error over the dev texts. A constant answer "
        f"scores {', '.join(f'{x:.3f} ({task})' for task, x in constant.items())}."
    )
    return markdown(header, rows, note)


def importance_table(results: Results) -> str:
    rows = []
    for r in in_order(results["perplexity"]):
        for visibility in visibilities(r["wikitext"]):
            found = r["wikitext"][visibility].get("importance")
            if found is not None:
                rows.append(
                    [titled(r, visibility, r["wikitext"]), str(r["seed"]), str(found["orders"]),
                     str(found["mean"]["rows"]), bits(found["mean"]).text(), bits(found["weighted"]).text()]
                )  # fmt: skip
    header = ["model", "seed", "orders", "windows", "bits per byte, mean of the orders", "importance-weighted"]
    note = (
        "WikiText-103 windows, not fine-tuned. Importance-weighted: the probability of a window is averaged over the "
        "orders instead of its logarithm, which is nearer to that of the model that draws its order at random."
    )
    return markdown(header, rows, note)


def samples_text(results: Results) -> str:
    """As they were written, one line each."""
    parts = []
    for r in in_order(results["samples"]):
        for order, texts in r["texts"].items():
            lines = _on_one_line(texts)
            shown = "\n".join(f"{seed}. {text}" for seed, text in zip(r["seeds"], lines, strict=True))
            parts.append(f"**{title(r)}**, order {order}, template `{r['template']}`\n\n```text\n{shown}\n```")
    note = "Not fine-tuned, seeds as numbered, none picked; ⏎ is an end of line."
    return "\n\n".join([note, *parts]) if parts else ""


def _on_one_line(texts: Sequence[str]) -> list[str]:
    return [text.replace("\n", " ⏎ ").replace("```", "'''") for text in texts]
