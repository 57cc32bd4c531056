"""Hidden words that a model guesses."""

from collections import Counter

import pytest
from bench_helpers import DOCUMENTS

from pmlm.bench import stories
from pmlm.bench.material import (
    Passage,
    read_units,
    template_of,
)
from pmlm.bench.stories import words_right
from pmlm.lm import LM


@pytest.mark.parametrize("visibility", ["order-causal", "bidirectional"])
def test_a_word_is_right_where_a_greedy_filling_is(visibility: str, model: LM) -> None:
    checked = Counter[int]()
    for text in (DOCUMENTS[0], "Anna wanted the blanket near the village."):
        passage = Passage(text, 0, True, read_units(text, model.tokenizer))
        for i, unit in enumerate(passage.units):
            if not (unit.is_word and unit.is_hideable):
                continue
            filled = model.fill(template_of(passage, [i]), temperature=0, order="l2r", whole_words=False, seed=0,
                                visibility=visibility)  # fmt: skip
            same = list(filled.ids[1:-1]) == model.tokenizer.encode(text)
            assert words_right(model, passage, [i], visibility) == [same], (text, unit)  # type: ignore[arg-type]
            checked[unit.num_tokens] += same
    assert sum(checked.values()) > 5


def test_a_guess_sees_what_is_given_and_the_beginning_of_its_own_word(
    model: LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Anna unexpectedly became an astronaut near the village."
    passage = Passage(text, 0, True, read_units(text, model.tokenizer))
    sizes = [unit.num_tokens for unit in passage.units]
    assert max(sizes) > 2
    hidden = [i for i in range(len(sizes)) if i % 3 != 2]
    first = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    word_of = {t: i for i in hidden for t in range(first[i], first[i + 1])}
    seen: list[int] = []

    def look(_lm: LM, rows: list, asked: list, _visibility: str) -> dict[int, bool]:
        for row, places in zip(rows, asked, strict=True):
            visible = {t for t, flag in enumerate(row.maskable[1:-1]) if not flag}
            for t in places:
                own = set(range(first[word_of[t]], t))
                assert visible == set(range(len(row.ids) - 2)) - set(word_of) | own
                seen.append(t)
        return {t: t % 2 == 0 for t in seen}

    monkeypatch.setattr(stories, "_likeliest", look)
    right = words_right(model, passage, hidden, "bidirectional")
    words = [i for i in hidden if passage.units[i].is_word]
    assert sorted(seen) == [t for i in words for t in range(first[i], first[i + 1])]
    assert right == [all(t % 2 == 0 for t in range(first[i], first[i + 1])) for i in words]


def test_words_hidden_together_do_not_see_each_other(model: LM) -> None:
    text = "Tom is a cat and Jerry is a mouse."
    passage = Passage(text, 0, True, read_units(text, model.tokenizer))
    everything = list(range(len(passage.units)))
    asked = words_right(model, passage, everything, "order-causal")
    assert len(asked) == 9, "the full stop is hidden but not asked"
    guesses = model.fill_mask(f"[MASK:{passage.num_tokens}]")
    ids = model.tokenizer.encode(text)
    assert all(unit.num_tokens == 1 for unit in passage.units)
    assert asked == [guess[0]["token"] == i for guess, i in zip(guesses, ids, strict=True)][:-1]
