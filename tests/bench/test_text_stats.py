"""Statistics of texts, against values worked out by hand."""

import math

import pytest

from pmlm.bench.text_stats import distinct, entropy, repetition, self_bleu, text_statistics, words_of


def test_words_are_small_letters_and_single_marks() -> None:
    assert words_of('"Don\'t," said Tom.') == ['"', "don't", ",", '"', "said", "tom", "."]


def test_distinct_counts_over_all_texts_together() -> None:
    texts = ["a b a b", "a b c"]
    assert distinct(texts, 1) == 3 / 7
    assert distinct(texts, 2) == 3 / 5  # ab ba ab | ab bc
    assert distinct(texts, 3) == 1  # aba bab | abc
    assert distinct(["a"], 2) == 0


def test_repetition_is_within_a_text() -> None:
    assert repetition(["a b c d a b c d e"]) == 1 / 6  # abcd comes twice among six
    assert repetition(["a b c d", "a b c d"]) == 0
    assert repetition(["a b a b", "a b c"], 2) == 1 / 5
    assert repetition(["a b"]) == 0


def test_entropy_is_the_mean_over_texts_in_bits() -> None:
    assert entropy(["a b a b", "a b c"]) == pytest.approx((1 + math.log2(3)) / 2)
    assert entropy(["a a a"]) == 0


def test_self_bleu_by_hand() -> None:
    assert self_bleu(["a b c d e", "a b c d e"]) == pytest.approx(1)
    assert self_bleu(["the cat sat", "the cat ran"], 2) == pytest.approx(math.sqrt(2 / 3 * 1 / 2))
    clipped = [1 / 3, 1 / 2 * math.exp(1 - 3 / 2)]  # "a" counts once of three; the shorter text pays for being short
    assert self_bleu(["a a a", "a b"], 1) == pytest.approx(sum(clipped) / 2)
    assert self_bleu(["a b", "c d"], 1) == pytest.approx(0.1 / 2)
    assert self_bleu(["a b c"]) == 0


def test_self_bleu_does_not_take_a_text_as_its_own_reference() -> None:
    # each "a a" meets one "a" in the first and two in its double; the first meets two, of which it has one
    assert self_bleu(["a b", "a a", "a a"], 1) == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert self_bleu(["a b", "a a", "c d"], 1) == pytest.approx((1 / 2 + 1 / 2 + 0.1 / 2) / 3)


def test_the_statistics_of_one_set_are_plain_data() -> None:
    found = text_statistics(["Tom ran. Tom ran. Tom ran.", "A hen sat."])
    assert found["texts"] == 2
    assert found["words"] == 13
    assert found["repetition_4"] == pytest.approx(3 / 7)
