"""The texts that all models are measured on, and the figures measured on them.

Every model scores the same content tokens. A sentence's probability has two meanings: p(x | N) for a model that sees
how long the text is, and p(x, N). A left-to-right model, or one that predicts padding, gives the second; the first
becomes the second by the probability of N under a smoothed histogram of the training sentences' lengths. What a
left-to-right model gives the content without its end is neither; it is kept as "x alone".

Shapes: B rows, L slots.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pmlm.corpus.framing import Row, end_predicted, frame, padding_as_text, row_batch, windows
from pmlm.errors import DataError
from pmlm.evaluation import Bar, Scorer, draw_part, no_bar, ratio_stderr, sum_figures
from pmlm.likelihood import MAX_SLOTS, arranged_ranks, order_logp
from pmlm.lm import LM
from pmlm.model import Visibility
from pmlm.orders import Order, parse_order
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer

CPU_SLOTS = 2048
"""Slots of a forward pass on a CPU: relative positions are quicker in smaller passes there."""


@dataclass(frozen=True)
class Lengths:
    """p(N): a histogram of sentence lengths in tokens. Those beyond `longest` are one class; one is added to each."""

    counts: Counter[int]
    longest: int

    def nll(self, num: int) -> float:
        return -math.log((self.counts[num] + 1) / (sum(self.counts.values()) + self.longest + 1))


def text_windows(documents: Sequence[str], tokenizer: Tokenizer, context: int) -> list[Row]:
    return [row for i, text in enumerate(documents) for row in windows(text, tokenizer, context, i)]


def sentence_rows(sentences: Sequence[str], tokenizer: Tokenizer, context: int) -> list[Row]:
    """Those sentences that fit, whole."""
    rows = []
    for i, text in enumerate(sentences):
        ids = tokenizer.encode(text)
        if 0 < len(ids) <= context - 2:
            rows.append(frame(ids, tokenizer, num_bytes=len(text.encode()), document=i))
    if not rows:
        raise DataError(f"no sentence fits into {context} slots")
    return rows


def length_model(sentences: Sequence[str], tokenizer: Tokenizer, context: int) -> Lengths:
    """Of all these sentences; those that do not fit are one class."""
    counts = Counter(len(tokenizer.encode(text)) for text in sentences)
    del counts[0]
    return Lengths(counts, context - 2)


def orders_of(visibility: Visibility) -> list[Order]:
    return [parse_order(name) for name in (("l2r",) if visibility == "causal" else ("l2r", "random"))]


def window_figures(
    lm: LM,
    rows: Sequence[Row],
    *,
    exact: int,
    bound: int | None,
    importance: tuple[int, int],
    seed: int = 0,
    bar: Bar = no_bar,
) -> dict[str, Any]:
    """Perplexity of windows by visibility: exact along orders on a part, the order-averaged bound on more of them.

    `importance`: how many windows and orders the bound over orders takes; (0, 0) for none.
    """
    part = draw_part(rows, exact, seed)
    report: dict[str, Any] = {"exact_rows": [[row.document, row.num_tokens] for row in part]}
    for visibility in lm.model.config.visibilities:
        scorer, more = _scorer(lm, visibility, seed), draw_part(rows, bound, seed)
        entry: dict[str, Any] = {
            "exact": {str(order): _exact(scorer, part, order, bar) for order in orders_of(visibility)}
        }
        with bar(f"bound, {visibility}", len(more)) as advance:
            entry["bound"] = scorer.bound(more, advance).to_dict()
        num, orders = importance
        if visibility != "causal" and num and orders > 1:
            some = draw_part(rows, num, seed)
            with bar(f"{orders} orders, {visibility}", len(some)) as advance:
                mean, weighted = scorer.over_orders(some, orders, advance)
            entry["importance"] = {"orders": orders, "weighted": weighted.to_dict(), "mean": mean.to_dict()}
        report[visibility] = entry
    report["unknown_share"] = unknown_share(rows, lm.tokenizer)
    return report


def unknown_share(rows: Sequence[Row], tokenizer: Tokenizer) -> float:
    """[UNK] among the content tokens."""
    unknown = sum(i == tokenizer.unk_id for row in rows for i in row.ids)
    return unknown / sum(row.num_tokens for row in rows)


def _scorer(lm: LM, visibility: Visibility, seed: int) -> Scorer:
    slots = CPU_SLOTS if lm.model.device.type == "cpu" else MAX_SLOTS
    return Scorer(lm.model, lm.tokenizer, visibility, seed, slots)


def _exact(scorer: Scorer, rows: Sequence[Row], order: Order, bar: Bar) -> dict[str, Any]:
    """With the nats of each row: models that scored the same rows can be compared row by row."""
    with bar(f"exact, {order}, {scorer.visibility}", len(rows)) as advance:
        nll = scorer.exact_nll(rows, order, advance)
    return {**sum_figures(rows, nll).to_dict(), "row_nll": [round(value, 4) for value in nll]}


def sentence_figures(
    lm: LM,
    rows: Sequence[Row],
    lengths: Lengths,
    *,
    exact: int,
    packing: str = "packed",
    context: int,
    seed: int = 0,
    bar: Bar = no_bar,
) -> dict[str, Any]:
    """Perplexity of sentences per content token, as p(x | N) where the model sees N, and as p(x, N).

    Exact on a part; beside it the order-averaged bound of the content, given N, on all rows (GPT: without the end). A
    model that predicts padding is told N by showing it the end and the padding.
    """
    part = draw_part(rows, exact, seed)
    report: dict[str, Any] = {"exact_rows": [[row.document, row.num_tokens] for row in part]}
    told_packing = "padding-seen" if packing == "padding-predicted" else packing
    told = [_shown(row, lm.tokenizer, told_packing, context, predicts_end=False) for row in part]
    for visibility in lm.model.config.visibilities:
        predicts_end = lm.tokenizer.end_id not in lm.model.config.forbidden_ids
        shown = [_shown(row, lm.tokenizer, packing, context, predicts_end=predicts_end) for row in part]
        report[visibility] = {}
        for order in orders_of(visibility):
            with bar(f"sentences, {order}, {visibility}", len(part)) as advance:
                content, rest = _scored(_scorer(lm, visibility, seed), shown, part, order, advance)
            if predicts_end:
                entry = {"x alone": _per_token(part, content), "x and N": _per_token(part, content + rest)}
                if packing == "padding-predicted":
                    with bar(f"sentences given N, {order}, {visibility}", len(part)) as advance:
                        content, _ = _scored(_scorer(lm, visibility, seed), told, part, order, advance)
                    entry["x given N"] = _per_token(part, content)
            else:
                prior = torch.tensor([lengths.nll(row.num_tokens) for row in part])
                entry = {"x given N": _per_token(part, content), "x and N": _per_token(part, content + prior)}
            report[visibility][str(order)] = entry
        seen = [_shown(row, lm.tokenizer, told_packing, context, predicts_end=False) for row in rows]
        with bar(f"bound of sentences, {visibility}", len(seen)) as advance:
            report[visibility]["bound"] = _scorer(lm, visibility, seed).bound(seen, advance).to_dict()
    report["unknown_share"] = unknown_share(rows, lm.tokenizer)
    return report


def _shown(row: Row, tokenizer: Tokenizer, packing: str, context: int, *, predicts_end: bool) -> Row:
    """The row as the model was trained to see it."""
    if predicts_end:
        row = end_predicted(row)
    if packing in ("padding-seen", "padding-predicted"):
        return padding_as_text(row, tokenizer, context, predicted=packing == "padding-predicted")
    return row


def _scored(
    scorer: Scorer,
    shown: Sequence[Row],
    part: Sequence[Row],
    order: Order,
    advance: Callable[[int], None],
    chunk: int = 16,
) -> tuple[Tensor, Tensor]:
    """For each row: the nats of the content tokens, and of all else that is predicted."""
    content, rest = [], []
    for start in range(0, len(shown), chunk):
        index = range(start, min(start + chunk, len(shown)))
        batch = row_batch([shown[i] for i in index], scorer.tokenizer)
        rank_BL = arranged_ranks(batch, order, [generator(scorer.seed, "order-0", i) for i in index])
        logp_BL = order_logp(scorer.model, batch, rank_BL, scorer.visibility, max_slots=scorer.max_slots)
        is_content_BL = row_batch([part[i] for i in index], scorer.tokenizer, batch.length).maskable_BL
        content.append(-torch.where(is_content_BL, logp_BL, 0.0).sum(1))
        rest.append(-torch.where(is_content_BL, 0.0, logp_BL).sum(1))
        advance(len(index))
    return torch.cat(content), torch.cat(rest)


def _per_token(part: Sequence[Row], nll_B: Tensor) -> dict[str, Any]:
    tokens = [row.num_tokens for row in part]
    nats = float(nll_B.sum()) / sum(tokens)
    error = ratio_stderr(list(zip(nll_B.tolist(), tokens, strict=True)))
    return {
        "nats_per_token": nats,
        "perplexity": math.exp(nats),
        "perplexity_stderr": math.exp(nats) * (error or 0.0),
        "bits_per_byte": float(nll_B.sum()) / math.log(2) / sum(row.num_bytes for row in part),
        "rows": len(part),
        "tokens": sum(tokens),
        "row_nll": [round(value, 4) for value in nll_B.tolist()],
    }
