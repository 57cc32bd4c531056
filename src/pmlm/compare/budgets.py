"""What each model had learnt for which budget: tokens, arithmetic, time."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pmlm.compare.arms import ARMS
from pmlm.compare.layout import Results, in_order, longest, markdown, title, titled
from pmlm.compare.protocol import record_work
from pmlm.compare.records import Record

YARDSTICK = "bert-a"
"""Budgets are told in those of this model's run."""


def runs(results: Results) -> list[Record]:
    """The pretrainings that were evaluated on the way."""
    return [r for r in in_order(results["pretrain"]) if r["curve"]]


def arithmetic(results: Results) -> dict[str, float]:
    """Operations per token, by model."""
    work = {r["model"]: record_work(r) for r in results["pretrain"]}
    return {name: cost for name, cost in work.items() if cost is not None}


def seconds(results: Results) -> dict[str, float]:
    """Of a token, by model, where all were timed side by side; one trained for fewer tokens is as quick as its like."""
    timed = {name: found["token_seconds"] for r in results["timing"] for name, found in r["models"].items()}
    likes = {(ARMS[name].positions, ARMS[name].objectives): name for name in timed}
    like = {name: likes.get((arm.positions, arm.objectives)) for name, arm in ARMS.items()}
    return {name: timed[other] for name, other in like.items() if other is not None}


def relative(costs: Mapping[str, float], name: str) -> float | None:
    return costs[name] / costs[YARDSTICK] if {name, YARDSTICK} <= costs.keys() else None


def training_table(results: Results) -> str:
    gpt: list[dict[str, Any]] = next((r["curve"] for r in runs(results) if r["model"] == "gpt-a"), [])
    costs = arithmetic(results), seconds(results)
    rows = []
    for r in in_order(results["pretrain"]):
        last = r["curve"][-1]["bits_per_byte"] if r["curve"] else {}
        reached = {visibility: longest(figures) for visibility, figures in last.items()}
        bits = "; ".join(f"{visibility} {value:.3f}" for visibility, value in reached.items())
        behind = _tokens_until(gpt, min(reached.values())) if reached and r["model"] != "gpt-a" else None
        rows.append(
            [title(r), str(r["seed"]), f"{r['parameters'] / 1e6:.1f}M", f"{r['tokens'] / 1e6:.2f}M",
             *(_times(relative(cost, r["model"])) for cost in costs), bits,
             "–" if behind is None else f"{behind / 1e6:.2f}M"]
        )  # fmt: skip
    header = ["model", "seed", "parameters", "tokens", "arithmetic per token", "time per token",
              "held-out bits per byte", "GPT has these after"]  # fmt: skip
    note = (
        "A and R: absolute and relative positions. Arithmetic and time of a token of training are multiples of "
        "BERT's; the times were taken side by side in one process, a step of each model in turn. Bits per byte: of "
        "pretraining text that was held out, the mean over all orders (GPT: from left to right), under each way of "
        "looking that a model was trained for: bidirectional (hidden tokens are masks that see all), causal (GPT), "
        "order-causal (APLM: each token sees those that come before it in the order), two-stream (XLNet). The last "
        "column: after how many tokens of its own training GPT needed as few bits."
    )
    return markdown(header, rows, note)


def _times(cost: float | None) -> str:
    return "–" if cost is None else f"{cost:.2f}"


def _tokens_until(curve: Sequence[dict[str, Any]], bits: float) -> float | None:
    """When a left-to-right model had come down to so many bits per byte; a line joins its evaluations."""
    known = [(point["tokens"], longest(next(iter(point["bits_per_byte"].values())))) for point in curve]
    for (before, high), (after, low) in itertools.pairwise(known):
        if low <= bits < high:
            return float(before + (after - before) * (high - bits) / (high - low))
    return None


def arithmetic_table(results: Results) -> str:
    return _reached(results, arithmetic(results), "arithmetic")


def time_table(results: Results) -> str:
    return _reached(results, seconds(results), "time")


def _reached(results: Results, costs: Mapping[str, float], what: str) -> str:
    """What all models had reached for the cost of the yardstick's run, where every cost is known."""
    trained = runs(results)
    whole = [r["curve"][-1]["tokens"] * costs[YARDSTICK] for r in trained if r["model"] == YARDSTICK and costs]
    if len(trained) < 2 or not whole or not {r["model"] for r in trained} <= costs.keys():
        return ""
    rows = []
    for r in trained:
        reached = [point for point in r["curve"] if point["tokens"] * costs[r["model"]] <= whole[0] * 1.001]
        for visibility, figures in (reached[-1]["bits_per_byte"] if reached else {}).items():
            rows.append(
                [titled(r, visibility, reached[-1]["bits_per_byte"]), str(r["seed"]),
                 f"{reached[-1]['tokens'] / 1e6:.2f}M", f"{longest(figures):.3f}"]
            )  # fmt: skip
    note = (
        f"What each model had reached, at the last evaluation before, for the {what} of BERT's whole run. BERT's "
        "learning rate had come down by then and that of the dearer models had not: runs planned for this budget "
        "would be closer."
    )
    return markdown(["model", "seed", "tokens by then", "held-out bits per byte"], rows, note)
