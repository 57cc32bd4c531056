"""Figures over a corpus: exact perplexity along orders on a stated part, the order-averaged bound on the whole.

Perplexity is exp(sum of nll / sum of tokens). The standard error treats documents as the independent units and the
perplexity as a ratio of sums. Bits per byte make models with different vocabularies comparable.

Shapes: B rows of a chunk, L slots.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from pmlm.corpus.framing import Row, row_batch
from pmlm.errors import DataError, OrderError
from pmlm.likelihood import (
    MAX_SLOTS,
    Conditionals,
    arranged_ranks,
    bound_nll,
    check_order,
    importance_weighted_nll,
    order_logp,
    policy_logp,
)
from pmlm.model import Visibility
from pmlm.orders import Order
from pmlm.runtime import RowRandom, generator, stream_seed
from pmlm.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One measured number with what it stands for."""

    nll: float
    """Summed nats."""
    tokens: int
    num_bytes: int
    rows: int
    documents: int
    stderr: float | None
    """Of the nats per token; None where fewer than two documents were seen."""
    byte_stderr: float | None
    """Of the nats per byte, likewise."""

    def to_dict(self) -> dict[str, float | int | None]:
        nats = self.nll / self.tokens
        return {
            "nats_per_token": nats,
            "nats_per_token_stderr": self.stderr,
            "perplexity": math.exp(nats),
            "perplexity_stderr": None if self.stderr is None else math.exp(nats) * self.stderr,
            "bits_per_byte": self.nll / (math.log(2) * self.num_bytes) if self.num_bytes else None,
            "bits_per_byte_stderr": None if self.byte_stderr is None else self.byte_stderr / math.log(2),
            "nll": self.nll,
            "tokens": self.tokens,
            "bytes": self.num_bytes,
            "rows": self.rows,
            "documents": self.documents,
        }


def silent(_done: int) -> None:
    """No progress is shown."""


Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Opens a display of progress: what is measured, and how many rows that are."""


def no_bar(_title: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(silent)


@dataclass(frozen=True)
class Scorer:
    """A model with all that is fixed while one corpus is measured."""

    model: Conditionals
    tokenizer: Tokenizer
    visibility: Visibility
    seed: int = 0
    max_slots: int = MAX_SLOTS

    def exact(self, rows: Sequence[Row], order: Order, progress: Callable[[int], None] = silent) -> Figure:
        """Along one order per row; a random order is drawn per row from (seed, row number)."""
        return sum_figures(rows, self.exact_nll(rows, order, progress))

    def exact_nll(
        self, rows: Sequence[Row], order: Order, progress: Callable[[int], None] = silent, first: int = 0
    ) -> list[float]:
        """As `exact`, of each row; `first` is the number of the first of them."""
        check_order(order, self.visibility)
        return self._by_chunk(rows, lambda part, at: self._order_nll(part, at + first, order), progress)

    def bound(
        self, rows: Sequence[Row], progress: Callable[[int], None] = silent, *, mine: slice = slice(None)
    ) -> Figure:
        """The order-averaged NLL, estimated without bias with counts stratified over all rows.

        `mine`: of some rows alone, as they would be drawn among all; the figures of parts add up to that of the whole.
        """
        length = max(len(row.ids) for row in rows)
        own, number_O = rows[mine], torch.arange(len(rows))[mine]

        def nll(part: Sequence[Row], at: Tensor) -> Tensor:
            random = RowRandom(stream_seed(self.seed, "bound"), 0, number_O[at], len(rows))
            batch = row_batch(part, self.tokenizer, length)
            return bound_nll(self.model, batch, self.visibility, random, max_slots=self.max_slots)

        return sum_figures(own, self._by_chunk(own, nll, progress, chunk=1024))  # each chunk draws for all rows

    def importance_weighted(
        self, rows: Sequence[Row], num_orders: int, progress: Callable[[int], None] = silent
    ) -> Figure:
        """-log of the mean probability over `num_orders` random orders per row."""
        return self.over_orders(rows, num_orders, progress)[1]

    def over_orders(
        self, rows: Sequence[Row], num_orders: int, progress: Callable[[int], None] = silent
    ) -> tuple[Figure, Figure]:
        """Over the same random orders of each row: their mean NLL, and -log of their mean probability."""
        mean = [0.0] * len(rows)

        def nll(part: Sequence[Row], at: Tensor) -> Tensor:
            orders = [self._order_nll(part, at, Order("random"), f"order-{s}") for s in range(num_orders)]
            for row, value in zip(at.tolist(), torch.stack(orders).mean(0).tolist(), strict=True):
                mean[row] = value
            return importance_weighted_nll(-torch.stack(orders))

        weighted = self._by_chunk(rows, nll, progress)
        return sum_figures(rows, mean), sum_figures(rows, weighted)

    def _order_nll(self, part: Sequence[Row], at: Tensor, order: Order, stream: str = "order-0") -> Tensor:
        batch = row_batch(part, self.tokenizer)
        if order.is_policy:
            logp, _ = policy_logp(self.model, batch, order.kind, self.visibility, max_slots=self.max_slots)
        else:
            rngs = [generator(self.seed, stream, row) for row in at.tolist()]
            rank = arranged_ranks(batch, order, rngs)
            logp = order_logp(self.model, batch, rank, self.visibility, max_slots=self.max_slots)
        return -logp.sum(1)

    def _by_chunk(
        self,
        rows: Sequence[Row],
        nll: Callable[[Sequence[Row], Tensor], Tensor],
        progress: Callable[[int], None],
        chunk: int = 16,
    ) -> list[float]:
        """Similar lengths together, so that little is padded; the result does not depend on it."""
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))
        result = [0.0] * len(rows)
        for start in range(0, len(rows), chunk):
            index = by_length[start : start + chunk]
            for i, value in zip(index, nll([rows[i] for i in index], torch.tensor(index)).tolist(), strict=True):
                result[i] = value
            progress(len(index))
        return result


def corpus_report(
    scorer: Scorer,
    rows: Sequence[Row],
    orders: Sequence[Order],
    *,
    limit: int | None = None,
    importance: int = 0,
    bound: bool = True,
    bar: Bar,
) -> dict[str, Any]:
    """Exact figures along each order on a part of the rows, bounds beside them. `bar` opens a progress display."""
    if not rows:
        raise DataError("there are no tokens to score")
    if importance > 1 and scorer.visibility == "causal":
        raise OrderError("the importance-weighted bound averages over orders: a left-to-right model has one alone")
    part = draw_part(rows, limit, scorer.seed)
    unknown = sum(i == scorer.tokenizer.unk_id for row in rows for i in row.ids)
    report: dict[str, Any] = {
        "visibility": scorer.visibility,
        "seed": scorer.seed,
        "windows": len(rows),
        "unknown_share": unknown / sum(row.num_tokens for row in rows),
        "exact": {},
    }
    for order in orders:
        with bar(f"exact, {order}", len(part)) as advance:
            report["exact"][str(order)] = scorer.exact(part, order, advance).to_dict()
    if importance > 1:
        with bar(f"importance-weighted, {importance} orders", len(part)) as advance:
            figure = scorer.importance_weighted(part, importance, advance)
            report["importance_weighted"] = {"orders": importance, **figure.to_dict()}
    if bound:
        with bar("bound", len(rows)) as advance:
            report["bound"] = scorer.bound(rows, advance).to_dict()
    return report


def sum_figures(rows: Sequence[Row], nll: Sequence[float]) -> Figure:
    """One figure from the nats of each row."""
    documents = [row.document for row in rows]
    tokens, num_bytes = [row.num_tokens for row in rows], [row.num_bytes for row in rows]
    return Figure(
        nll=math.fsum(nll),
        tokens=sum(tokens),
        num_bytes=sum(num_bytes),
        rows=len(rows),
        documents=len(set(documents)),
        stderr=ratio_stderr(by_unit(documents, nll, tokens)),
        byte_stderr=ratio_stderr(by_unit(documents, nll, num_bytes)) if all(num_bytes) else None,
    )


def by_unit(units: Sequence[int], values: Sequence[float], sizes: Sequence[int]) -> list[tuple[float, int]]:
    """What rows sum up to by the unit, such as a document, that they belong to."""
    sums: dict[int, tuple[float, int]] = {}
    for unit, value, size in zip(units, values, sizes, strict=True):
        before = sums.get(unit, (0.0, 0))
        sums[unit] = (before[0] + value, before[1] + size)
    return list(sums.values())


def ratio_stderr(pairs: Sequence[tuple[float, int]]) -> float | None:
    """The standard error of sum(a) / sum(n) over independent units (a, n)."""
    if len(pairs) < 2:
        return None
    size = sum(n for _, n in pairs)
    ratio = math.fsum(a for a, _ in pairs) / size
    spread = math.fsum((a - ratio * n) ** 2 for a, n in pairs)
    return math.sqrt(spread * len(pairs) / (len(pairs) - 1)) / size


def difference(
    units: Sequence[int], tokens: Sequence[int], one: Sequence[float], other: Sequence[float]
) -> tuple[float, float | None]:
    """How far two sums of nats over the same rows are apart, per token, with its standard error over units."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    return sum(apart) / max(1, sum(tokens)), ratio_stderr(by_unit(units, apart, tokens))


def draw_part(rows: Sequence[T], limit: int | None, seed: int) -> list[T]:
    """All rows, or a random part of them in their own order."""
    if limit is None or limit >= len(rows):
        return list(rows)
    pick = torch.randperm(len(rows), generator=generator(seed, "part"))[:limit]
    return [rows[i] for i in sorted(pick.tolist())]
