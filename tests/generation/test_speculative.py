"""Speculative decoding writes what token-by-token decoding writes, in distribution, whatever else is asked for."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes import TableModel, bare_batch, framed_batch, tiny_model
from pmlm import load
from pmlm.batch import Batch
from pmlm.generation.decode import Allowed
from pmlm.generation.sampling import Sampling, sampling_logp
from pmlm.generation.speculative import decode_speculative
from pmlm.generation.steppers import Columns, OrderCached
from pmlm.likelihood import order_logp, order_ranks
from pmlm.model import Inputs, Slots
from pmlm.orders import Order
from pmlm.runtime import generator
from pmlm.words import Flags

VOCAB, LENGTH, ROWS = 4, 3, 3000


class TableReader:
    """The cache's part, played by a table: a query knows the tokens of a lower rank than its own."""

    def __init__(self, model: TableModel, rows: int) -> None:
        self.model, self.read = model, [list[tuple[int, int, int]]() for _ in range(rows)]
        self.memo: dict[tuple[frozenset[tuple[int, int]], int], Tensor] = {}

    @property
    def count_B(self) -> Tensor:
        return torch.tensor([len(row) for row in self.read])

    @count_B.setter
    def count_B(self, count_B: Tensor) -> None:
        raise AssertionError

    def extend(self, new: Columns, query_BQ: Tensor, query_rank_BQ: Tensor, here: Slots) -> Tensor:
        for row, *columns in zip(self.read, *(part.tolist() for part in new), strict=True):
            row += [(slot, token, rank) for token, slot, rank in zip(*columns, strict=True) if slot >= 0]
        return torch.stack(
            [
                self.conditional(self.read[b], int(query_BQ[b, q]), int(query_rank_BQ[b, q]))
                for b, q in zip(here.rows_M.tolist(), here.slots_M.tolist(), strict=True)
            ]
        )

    def rewind(self, count_B: Tensor) -> None:
        self.read = [row[:count] for row, count in zip(self.read, count_B.tolist(), strict=True)]

    def conditional(self, row: list[tuple[int, int, int]], slot: int, below: int) -> Tensor:
        known = frozenset((s, token) for s, token, rank in row if rank < below)
        if (known, slot) not in self.memo:
            ids = torch.tensor([[token for _, token in known] + [0]])
            inputs = Inputs(ids, torch.tensor([[s for s, _ in known] + [slot]]))
            at = Slots(torch.tensor([0]), torch.tensor([len(known)]))
            self.memo[known, slot] = self.model(inputs, at)[0]
        return self.memo[known, slot]


class Different:
    """No id twice on a canvas."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids = list(ids)

    def allowed(self, slot: int) -> Flags | None:
        del slot
        flags = np.ones(VOCAB, dtype=bool)
        flags[self.ids] = False
        return flags

    def reveal(self, slot: int, token: int) -> None:
        del slot
        self.ids.append(token)

    def fork(self) -> "Different":
        return Different(self.ids)


def expected(
    model: TableModel, order: Sequence[int], sampling: Sampling, *, different: bool
) -> dict[tuple[int, ...], float]:
    """The distribution of token-by-token decoding, by enumeration."""
    reader, found = TableReader(model, 1), dict[tuple[int, ...], float]()
    for text in itertools.product(range(1, VOCAB), repeat=LENGTH):
        logp, known = 0.0, list[tuple[int, int, int]]()
        for slot in order:
            seen = torch.zeros(VOCAB, dtype=torch.bool)
            seen[[token for _, token, _ in known]] = True
            allowed = torch.tensor([False, True, True, True]) & ~(seen & different)
            logp += float(sampling_logp(reader.conditional(known, slot, 9), allowed, sampling, seen)[text[slot]])
            known.append((slot, text[slot], 0))
        found[text] = math.exp(logp)
    return found


@pytest.mark.parametrize("num_drafts", [2, 3])
@pytest.mark.parametrize(
    ("sampling", "different"),
    [
        (Sampling(), False),
        (Sampling(temperature=0.5), False),
        (Sampling(top_k=2), False),
        (Sampling(top_p=0.8, repetition_penalty=3.0), False),
        (Sampling(), True),
    ],
)
def test_texts_follow_the_distribution_of_token_by_token_decoding(
    num_drafts: int, sampling: Sampling, different: bool
) -> None:
    model, order = TableModel(VOCAB, LENGTH, seed=5), (2, 0, 1)
    batch = bare_batch(*([[0] * LENGTH] * ROWS))
    rules = [[Different()] for _ in range(ROWS)] if different else None
    allowed = Allowed(torch.zeros_like(batch.ids_BL), np.array([[False, True, True, True]]), rules)
    texts = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    turns = decode_speculative(
        TableReader(model, ROWS), batch, allowed, [Order("list", order)] * ROWS, sampling,
        [generator("spec", b) for b in range(ROWS)], [()] * ROWS, num_drafts,
    )  # fmt: skip
    for turn in turns:
        for reveal in turn:
            assert texts[reveal.row, reveal.slot] == 0
            texts[reveal.row, reveal.slot] = reveal.token
    seen = Counter(map(tuple, texts.tolist()))
    for text, p in expected(model, order, sampling, different=different).items():
        assert seen[text] / ROWS == pytest.approx(p, abs=4.5 * math.sqrt(max(p * (1 - p), 1e-4) / ROWS)), text


def run(
    model: OrderCached, batch: Batch, order: Sequence[int], sampling: Sampling, num_drafts: int
) -> tuple[Tensor, Tensor, int]:
    """(texts, log-probabilities as reported, passes)."""
    rows = batch.num_rows
    flags = np.ones((1, 11), dtype=bool)
    flags[0, :3] = False
    ids, logp, passes = batch.ids_BL.clone(), torch.zeros(batch.ids_BL.shape), 0
    turns = decode_speculative(
        model, batch, Allowed(torch.zeros_like(batch.ids_BL), flags), [Order("list", tuple(order))] * rows, sampling,
        [generator("net", b) for b in range(rows)], [()] * rows, num_drafts,
    )  # fmt: skip
    for turn in turns:
        for r in turn:
            ids[r.row, r.slot], logp[r.row, r.slot], passes = r.token, r.logp, max(passes, r.turn)
    return ids, logp, passes


@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary"])
def test_what_is_reported_is_the_exact_log_probability_along_the_order(positions: str) -> None:
    """With a network's cache, rewound wherever a draft is refused, and rows that are at different stages."""
    model, order = tiny_model(positions=positions), [5, 2, 7, 1, 4, 8, 3, 6]
    batch = framed_batch(*([[3] * 8] * 6))
    ids, logp, _ = run(OrderCached(model, batch), batch, order, Sampling(), 3)
    exact = order_logp(
        model, Batch(ids, batch.maskable_BL, batch.group_BL), order_ranks(batch, [order] * 6), "order-causal"
    )
    assert torch.allclose(logp.double(), exact, atol=1e-4)


def test_greedy_speculation_writes_the_greedy_text_in_fewer_passes() -> None:
    lm = load()
    plain = lm.fill("Tom [MASK:30]", seed=1, temperature=0, order="l2r", visibility="order-causal")
    fast = lm.fill("Tom [MASK:30]", seed=1, temperature=0, order="l2r", visibility="order-causal", speculative=4)
    assert (fast.text, fast.order, fast.approximate) == (plain.text, plain.order, ())
    assert fast.logp == pytest.approx(plain.logp, abs=1e-4)
    assert fast.passes < plain.passes == 30
