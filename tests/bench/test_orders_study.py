"""The study of orders, and how orders are timed."""

from collections import Counter
from typing import Any

import pytest
from bench_helpers import BYTES, DOCUMENTS

from conftest import STORIES
from pmlm.bench.export import ExportBench, _whole_text
from pmlm.bench.material import (
    Passage,
    document_rows,
    draw_documents,
    hide_words,
    read_units,
)
from pmlm.bench.orders import REAL, OrderSettings, planned, study_orders
from pmlm.bench.study import Notes, provenance
from pmlm.bench.tables import render
from pmlm.evaluation import Scorer, draw_part, silent
from pmlm.lm import LM
from pmlm.orders import parse_order
from pmlm.results import Filled
from pmlm.runtime import generator


def test_the_study_of_orders_gives_the_exact_figures_of_the_scorer(model: LM) -> None:
    settings = OrderSettings(
        orders=("l2r", "random", "margin"), shares=(0.5, 1.0), rows=3, texts=2, context=24, chunk=2
    )
    steps = Counter[str]()
    result = study_orders(model, DOCUMENTS, BYTES, settings, Notes(None, {}), lambda n: steps.update(all=n))
    assert steps["all"] == planned(settings)
    rows = draw_part(document_rows(draw_documents(DOCUMENTS, 12, 0), model.tokenizer, 24), 3, 0)
    scorer = Scorer(model.model, model.tokenizer, "order-causal", 0)
    for name in settings.orders:
        exact = scorer.exact(rows, parse_order(name)).to_dict()
        assert result["exact"][name]["nll"] == pytest.approx(exact["nll"])
    for table in result["written"].values():
        assert set(table) == {*settings.orders, REAL}
        assert all(each["judge"]["bits_per_byte"] == pytest.approx(8) for each in table.values())
        assert all(each["texts"] + each["failed"] == 2 for each in table.values())


def test_orders_are_compared_row_by_row_and_text_by_text(model: LM) -> None:
    settings = OrderSettings(orders=("l2r", "nearest", "r2l"), shares=(0.5, 1.0), rows=4, texts=3, context=24, seed=3)
    result = study_orders(model, DOCUMENTS, BYTES, settings, Notes(None, {}), silent)
    page = render({"study": "orders", "provenance": provenance(model, "x"), "result": result,
                   "text": {"file": "t", "sha256": "0"}})  # fmt: skip
    line = {row.split(" | ")[0]: row.split(" | ")[1:] for row in page.split("\n\n")[2].splitlines()}
    whole, half, judged, _ = line["| l2r"]
    assert whole == f"{result['exact']['l2r']['nats_per_token']:.3f} (+0.000 ± 0.000)"
    assert half == f"{result['infilling']['0.5']['l2r']['nats_per_token']:.3f} (+0.000 ± 0.000)"
    assert judged == "8.000 (+0.000 ± 0.000)"
    one, other = result["exact"]["r2l"], result["exact"]["l2r"]
    apart = (sum(one["row_nll"]) - sum(other["row_nll"])) / one["tokens"]
    assert f"({apart:+.3f} ± " in line["| r2l"][0]
    hidden = result["infilling"]["0.5"]
    real = result["written"]["0.5"][REAL]["all"]
    assert 0.3 < hidden["l2r"]["tokens"] / sum(len(model.tokenizer.encode(text)) for text in real) < 0.7
    assert hidden["nearest"]["row_nll"] != hidden["l2r"]["row_nll"]


def test_hiding_is_the_same_for_every_order() -> None:
    from pmlm.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    passage = Passage(STORIES[0], 0, True, read_units(STORIES[0], tokenizer))
    one, two = (hide_words(passage, 0.5, generator(0, "hide", 0.5, 1)) for _ in range(2))
    assert one == two != hide_words(passage, 0.5, generator(0, "hide", 0.5, 2))


def test_the_text_that_engines_are_timed_by_is_written_in_random_order(model: LM) -> None:
    asked: list[dict[str, Any]] = []

    class Noting:
        """Passes on what it is asked, and keeps it."""

        def fill(self, template: str, **options: Any) -> Filled:
            asked.append(options)
            return model.fill(template, **options)

    timed = _whole_text({"torch": Noting()}, 4, ExportBench(rounds=1))  # type: ignore[dict-item]
    assert timed["tokens"] == 4
    assert {options.get("order") for options in asked} == {"random"}
