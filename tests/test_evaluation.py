"""Figures over a corpus: sums, standard errors, the part and the whole."""

import math

import pytest
import torch

from conftest import STORIES
from pmlm.corpus.framing import windows
from pmlm.evaluation import Scorer, draw_part, ratio_stderr
from pmlm.orders import Order
from test_lm import RANDOM, TOKENIZER

ROWS = [row for i, text in enumerate(STORIES) for row in windows(text, TOKENIZER, 40, i)]
SCORER = Scorer(RANDOM.model, TOKENIZER, "bidirectional", seed=1)


def ignore(_steps: int) -> None: ...


def test_perplexity_is_total_nll_over_total_tokens_and_equals_text_by_text_scores() -> None:
    short = [windows(text[:25], TOKENIZER, 40, i)[0] for i, text in enumerate(STORIES)]
    figure = SCORER.exact(short, Order("l2r"), ignore).to_dict()
    scores = [RANDOM.score(text[:25]) for text in STORIES]
    assert figure["nll"] == pytest.approx(sum(s.nll for s in scores), rel=1e-5)
    assert figure["tokens"] == sum(len(s.tokens) for s in scores)
    assert figure["perplexity"] == pytest.approx(math.exp(figure["nll"] / figure["tokens"]))  # type: ignore[operator]
    assert figure["bits_per_byte"] == pytest.approx(figure["nll"] / math.log(2) / figure["bytes"])  # type: ignore[operator]
    assert figure["documents"] == len(STORIES)


def test_the_standard_error_is_that_of_a_ratio_over_documents() -> None:
    assert ratio_stderr([(1.0, 2)]) is None
    assert ratio_stderr([(2.0, 2), (4.0, 4), (1.0, 1)]) == 0
    assert ratio_stderr([(1.0, 1), (3.0, 1)]) == pytest.approx(1.0)  # of 1 and 3: deviation √2, error of the mean 1
    rng = torch.Generator().manual_seed(1)
    trials = []
    for _ in range(400):
        n = torch.randint(5, 20, (40,), generator=rng)
        a = n * 2.0 + torch.randn(40, generator=rng) * n.sqrt()
        pairs = list(zip(a.tolist(), n.tolist(), strict=True))
        trials.append((float(a.sum() / n.sum()), ratio_stderr(pairs)))
    spread = torch.tensor([r for r, _ in trials]).std().item()
    assert sum(se for _, se in trials) / 400 == pytest.approx(spread, rel=0.1)  # type: ignore[misc]


def test_the_bound_is_near_the_random_order_average() -> None:
    exact = [
        Scorer(RANDOM.model, TOKENIZER, "bidirectional", seed=s).exact(ROWS, Order("random"), ignore) for s in range(4)
    ]
    mean = sum(f.nll for f in exact) / 4
    bounds = [Scorer(RANDOM.model, TOKENIZER, "bidirectional", seed=s).bound(ROWS, ignore).nll for s in range(40)]
    assert sum(bounds) / 40 == pytest.approx(mean, rel=0.02)


def test_the_bounds_of_parts_add_up_to_that_of_the_whole() -> None:
    whole = SCORER.bound(ROWS)
    parts = [SCORER.bound(ROWS, mine=slice(rank, None, 3)) for rank in range(3)]
    assert sum(part.nll for part in parts) == pytest.approx(whole.nll, rel=1e-5)
    assert sum(part.num_bytes for part in parts) == whole.num_bytes
    alone = SCORER.bound(ROWS[::3])
    assert alone.nll != pytest.approx(parts[0].nll, rel=1e-5)  # drawn among fewer: other counts


def test_figures_do_not_depend_on_the_memory_bound() -> None:
    small = Scorer(RANDOM.model, TOKENIZER, "order-causal", seed=1, max_slots=64)
    large = Scorer(RANDOM.model, TOKENIZER, "order-causal", seed=1)
    assert small.exact(ROWS, Order("random"), ignore).nll == pytest.approx(
        large.exact(ROWS, Order("random"), ignore).nll, rel=1e-5
    )
    assert small.bound(ROWS, ignore).nll == pytest.approx(large.bound(ROWS, ignore).nll, rel=1e-5)


def test_more_orders_tighten_the_importance_weighted_bound() -> None:
    rows = ROWS[:4]
    one = SCORER.importance_weighted(rows, 1, ignore).nll
    assert one == pytest.approx(SCORER.exact(rows, Order("random"), ignore).nll, rel=1e-6)
    scorers = [Scorer(RANDOM.model, TOKENIZER, "order-causal", seed=s) for s in range(20)]
    average = [sum(scorer.importance_weighted(rows, n, ignore).nll for scorer in scorers) for n in (1, 8)]
    assert average[1] < average[0]


def test_a_part_is_drawn_by_seed_and_keeps_its_order() -> None:
    part = draw_part(ROWS, 3, seed=5)
    assert len(part) == 3
    assert part == draw_part(ROWS, 3, seed=5)
    assert [ROWS.index(row) for row in part] == sorted(ROWS.index(row) for row in part)
    assert draw_part(ROWS, None, 1) == ROWS
