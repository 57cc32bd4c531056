"""Spacing restored as a reader expects."""

import pytest

from pmlm.detokenize import join_words


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("Tom is a cat .", "Tom is a cat."),
        ("Tom ' s father , Selma , is upset .", "Tom's father, Selma, is upset."),
        ("I don ' t know !", "I don't know!"),
        ('" It is , " he said , " a cat . "', '"It is," he said, "a cat."'),
        ("( see p . 3 )", "(see p. 3)"),
        ("3 . 5 % of $ 1 , 000", "3.5% of $1,000"),
        ("at 10 : 30 today", "at 10:30 today"),
        ("a well - known one - a new one", "a well-known one-a new one"),
        ("R & D", "R & D"),
        ("the dogs ' park", "the dogs 'park"),  # a quote or an apostrophe: the ids do not say
        ("", ""),
    ],
)
def test_words_join_as_a_reader_expects(words: str, text: str) -> None:
    assert join_words(words.split()) == text
