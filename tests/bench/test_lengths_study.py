"""The study of lengths that a model chooses."""

from collections import Counter

import pytest
from bench_helpers import DOCUMENTS

from pmlm.bench.lengths import LengthSettings, draw_items, length_choices, summarise_choices
from pmlm.errors import DataError
from pmlm.generation.lengths import choose_lengths
from pmlm.generation.template import Blank
from pmlm.lm import LM
from pmlm.runtime import generator


def test_choices_are_summed_up_as_by_hand() -> None:
    choices = [{"s": 1}, {"s": 3}, {"s": 4}]
    found = summarise_choices([1, 2, 2], choices, 4)
    assert found["scores"]["s"] == {"exact": 1 / 3, "exact_stderr": pytest.approx((2 / 27) ** 0.5),
                                    "within_one": 2 / 3, "mean_error": 1.0}  # fmt: skip
    assert found["scores"]["commonest"]["exact"] == 2 / 3
    assert found["scores"]["chance"]["exact"] == 1 / 4
    assert found["scores"]["chance"]["within_one"] == pytest.approx((2 / 4 + 3 / 4 + 3 / 4) / 3)
    assert found["scores"]["chance"]["mean_error"] == pytest.approx((6 / 4 + 4 / 4 + 4 / 4) / 3)
    assert found["exact_by_true_length"] == {
        "1": {"items": 1, "s": 1.0, "commonest": 0.0},
        "2": {"items": 2, "s": 0.0, "commonest": 1.0},
    }


@pytest.mark.parametrize("kind", ["word", "span"])
def test_the_context_score_is_the_one_that_templates_use(kind: str, model: LM) -> None:
    settings = LengthSettings(items=4, longest_span=5, seed=3)
    for item in draw_items(DOCUMENTS, model, kind, settings):  # type: ignore[arg-type]
        longest = 4 if kind == "word" else 5
        blank = item.template.segments[item.segment]
        assert isinstance(blank, Blank)
        chosen = length_choices(item, model, "order-causal", longest)
        segments = list(item.template.segments)
        segments[item.segment] = Blank(None, blank.starts_word, blank.is_word, (1, longest))
        assert model.words is not None
        template = choose_lengths(
            type(item.template)(tuple(segments)), model.model, model.tokenizer, "order-causal", model.words.length_logp,
            generator(0), is_possible=lambda *_, **__: True, greedy=True,
        )  # fmt: skip
        assert chosen["context + p(n)" if kind == "word" else "context"] == template.segments[item.segment].num_tokens


def test_spans_have_every_length_equally_often_and_are_as_long_as_they_say(model: LM) -> None:
    items = draw_items(DOCUMENTS, model, "span", LengthSettings(items=20, longest_span=5))
    for item in items:
        assert item.template.segments[item.segment].num_tokens == item.true  # type: ignore[union-attr]
    assert Counter(item.true for item in items) == dict.fromkeys(range(1, 6), 4)
    with pytest.raises(DataError, match="sentences with a word to hide, 20 are needed"):
        draw_items(DOCUMENTS[:1], model, "word", LengthSettings(items=20))


def test_long_words_have_several_tokens(model: LM) -> None:
    text = "Anna unexpectedly saw an astronaut. " * 3
    items = draw_items([text, *DOCUMENTS], model, "long word", LengthSettings(items=3))
    assert all(item.true > 1 for item in items)
