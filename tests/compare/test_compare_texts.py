"""What is scored: padding, the end marker, lengths and joint probabilities."""

import math
from typing import Any

import pytest
import torch
from compare_helpers import fresh

from pmlm.compare.texts import length_model, sentence_figures, sentence_rows
from pmlm.corpus.framing import end_predicted, padding_as_text
from pmlm.corpus.rows import RowSettings, RowStream
from pmlm.corpus.shards import Corpus
from pmlm.evaluation import Scorer
from pmlm.orders import parse_order


@pytest.mark.parametrize("packing", ["padded", "padding-seen", "padding-predicted"])
def test_padding_is_unseen_or_seen_or_predicted(corpus: Corpus, packing: Any) -> None:
    stream = RowStream(corpus, RowSettings(length=32, packing=packing), 0)
    batch = stream.build(stream.take(20))
    is_pad = batch.ids_BL == corpus.tokenizer.pad_id
    assert is_pad.any()
    assert ((batch.group_BL < 0) == (is_pad if packing == "padded" else torch.zeros_like(is_pad))).all()
    assert (batch.maskable_BL[is_pad] == (packing == "padding-predicted")).all()


def test_the_end_marker_is_predicted_where_asked(corpus: Corpus) -> None:
    for wanted in (False, True):
        stream = RowStream(corpus, RowSettings(length=32, predict_end=wanted), 0)
        batch = stream.build(stream.take(20))
        ends = batch.ids_BL == corpus.tokenizer.end_id
        assert ends.any()
        assert (batch.maskable_BL[ends] == wanted).all()
        assert not batch.maskable_BL[batch.ids_BL == corpus.tokenizer.start_id].any()


def test_lengths_are_a_distribution(corpus: Corpus) -> None:
    sentences = ["Tom is a cat.", "Jerry is a mouse.", "It rained."]
    rows = sentence_rows(sentences, corpus.tokenizer, 20)
    lengths = length_model([*sentences, "Mia and Tom went home because it rained. " * 4], corpus.tokenizer, 20)
    longer = 2 / (4 + 18 + 1)  # one sentence is too long: its share is not dealt out to the others
    assert math.fsum(math.exp(-lengths.nll(n)) for n in range(1, 19)) == pytest.approx(1 - longer)
    assert lengths.nll(rows[0].num_tokens) < lengths.nll(18)


def test_joint_probability_of_a_sentence_counts_everything_that_is_predicted(corpus: Corpus) -> None:
    """By hand from the model's own score: GPT adds the end marker, padding-predicted adds the padding too."""
    sentences = ["Tom is a cat.", "It rained at home."]
    rows = sentence_rows(sentences, corpus.tokenizer, 24)
    lengths = length_model(sentences, corpus.tokenizer, 24)
    tokens = sum(row.num_tokens for row in rows)

    def figures(name: str, packing: str = "packed") -> dict[str, Any]:
        lm = fresh(corpus, name, packing)
        return sentence_figures(lm, rows, lengths, exact=9, packing=packing, context=24)

    size = corpus.tokenizer.vocab_size  # untrained heads are nearly uniform over what is allowed
    gpt = figures("gpt-a")["causal"]["l2r"]
    assert set(gpt) == {"x alone", "x and N"}
    alone = figures("gpt-a")["causal"]["bound"]["nats_per_token"]
    assert gpt["x alone"]["nats_per_token"] == pytest.approx(alone, rel=1e-5)  # all rows are in the part
    assert gpt["x and N"]["nats_per_token"] == pytest.approx((tokens + 2) / tokens * math.log(size - 4), rel=0.03)
    told = figures("u-pmlm-a")["bidirectional"]["random"]
    extra = told["x and N"]["nats_per_token"] - told["x given N"]["nats_per_token"]
    assert extra == pytest.approx(sum(lengths.nll(row.num_tokens) for row in rows) / tokens, rel=1e-4)
    assert told["x given N"]["nats_per_token"] == pytest.approx(math.log(size - 5), rel=0.03)
    padded = figures("u-pmlm-a", "padding-predicted")["bidirectional"]["l2r"]
    predicted = 2 * 24 - 2  # all slots but the start markers
    assert padded["x and N"]["nats_per_token"] == pytest.approx(predicted / tokens * math.log(size - 3), rel=0.03)
    assert padded["x given N"]["nats_per_token"] == pytest.approx(math.log(size - 3), rel=0.03)


def test_a_model_that_predicts_padding_is_told_the_length_by_showing_it(corpus: Corpus) -> None:
    sentences = ["Tom is a cat.", "It rained at home."]
    rows = sentence_rows(sentences, corpus.tokenizer, 24)
    lm = fresh(corpus, "u-pmlm-a", "padding-predicted")
    found = sentence_figures(
        lm, rows, length_model(sentences, corpus.tokenizer, 24), exact=9, packing="padding-predicted", context=24
    )
    scorer = Scorer(lm.model, lm.tokenizer, "bidirectional", 0)
    told = [padding_as_text(row, corpus.tokenizer, 24, predicted=False) for row in rows]
    nll = scorer.exact_nll(told, parse_order("l2r"))
    assert found["bidirectional"]["l2r"]["x given N"]["row_nll"] == pytest.approx(nll, abs=1e-3)
    assert found["bidirectional"]["l2r"]["x alone"]["row_nll"] != pytest.approx(nll, abs=1e-3)
    assert found["exact_rows"] == [[0, rows[0].num_tokens], [1, rows[1].num_tokens]]
    assert found["bidirectional"]["bound"]["tokens"] == sum(row.num_tokens for row in rows)


def test_rows_with_padding_as_text(corpus: Corpus) -> None:
    (row,) = sentence_rows(["Tom is a cat."], corpus.tokenizer, 24)
    longer = padding_as_text(end_predicted(row), corpus.tokenizer, 24, predicted=True)
    assert len(longer.ids) == 24
    assert sum(longer.maskable) == 23
    assert sum(padding_as_text(row, corpus.tokenizer, 24, predicted=False).maskable) == row.num_tokens
