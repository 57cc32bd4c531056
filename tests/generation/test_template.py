"""Templates: blanks, spaces, escapes, and fitting a text into one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import STORIES
from pmlm.errors import TemplateError
from pmlm.generation.template import (
    Blank,
    Given,
    Template,
    filled_spans,
    fit,
    parse_template,
    template_source,
    with_lengths,
)
from pmlm.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(STORIES, vocab_size=400)


def test_blanks_and_the_spaces_before_them() -> None:
    assert parse_template("The [MASK] sat.").segments == (Given("The"), Blank(1, True), Given(" sat."))
    assert parse_template("[MASK:20]").segments == (Blank(20, True),)
    assert parse_template(" [MASK]").segments == (Given(" "), Blank(1, False))
    assert parse_template("un[MASK] ___!").segments == (
        Given("un"),
        Blank(1, False),
        Blank(None, True, True, (1, 4)),
        Given("!"),
    )
    assert parse_template("a  [MASK]").segments == (Given("a "), Blank(1, True))
    assert parse_template("line\n[MASK]").segments == (Given("line\n"), Blank(1, False))
    assert parse_template("_____ x").segments == (Blank(None, True, True, (1, 4)), Given(" x"))
    assert parse_template("no blank").segments == (Given("no blank"),)


def test_a_word_may_have_a_number_of_tokens() -> None:
    """What a template becomes once its lengths are chosen; written down and read again it is the same."""
    assert parse_template("a [WORD:2] b").segments == (Given("a"), Blank(2, True, True), Given(" b"))
    for bad in ("[WORD:2-3]", "[WORD:*]", "[WORD:0]", "[WORD:x]"):
        with pytest.raises(TemplateError):
            parse_template(bad)
    chosen = Template((Given("a"), Blank(3, True, True, (1, 4)), Blank(7, None, False, (5, 15), (("ends", "]"),))))
    assert template_source(chosen) == "a ___[MASK:7|open|ends=\\]]"
    fixed = with_lengths(chosen)
    assert template_source(fixed) == "a [WORD:3][MASK:7|open|ends=\\]]"
    assert parse_template(template_source(fixed)) == fixed
    assert with_lengths(fixed) == fixed
    word = next(
        w for w in ["Jerry", "laughed", "wanted", "o'clock", "river"] if len(TOKENIZER.encode_inner(f" {w}")) > 1
    )
    size = len(TOKENIZER.encode_inner(f" {word}"))
    assert len(fit(parse_template(f"a [WORD:{size}]"), f"a {word}", TOKENIZER)[1].ids) == size
    with pytest.raises(TemplateError):
        fit(parse_template(f"a [WORD:{size + 1}]"), f"a {word}", TOKENIZER)


def test_escapes_stand_for_themselves() -> None:
    assert parse_template(r"\[MASK] and \_\_\_ and \\ and \n __").segments == (
        Given(r"[MASK] and ___ and \ and \n __"),
    )


@pytest.mark.parametrize(
    "bad",
    [
        "[MASK",
        "a [MASK:3 b",
        "[MASK:0]",
        "[MASK:-2]",
        "[MASK:x]",
        "[MASK:]",
        "[MASK:1.5]",
        "[MASK[MASK]]",
        "[MASK:9999999]",
    ],
)
def test_malformed_blanks_are_refused(bad: str) -> None:
    with pytest.raises(TemplateError):
        parse_template(bad)


@settings(deadline=None)
@given(st.text(alphabet="ab [MASK:]12_\\\n", max_size=30))
def test_any_source_is_a_template_or_one_clear_error(source: str) -> None:
    try:
        template = parse_template(source)
    except TemplateError:
        return
    assert all(isinstance(s, Blank) or s.text for s in template.segments)


def test_a_text_is_cut_where_the_blanks_are() -> None:
    parts = fit(parse_template("The ___ fox ran over the ___, and"), "The little fox ran over the hill, and", TOKENIZER)
    assert [(p.is_blank, p.text) for p in parts] == [
        (False, "The"), (True, " little"), (False, " fox ran over the"), (True, " hill"), (False, ", and"),
    ]  # fmt: skip
    assert TOKENIZER.decode([i for p in parts for i in p.ids]) == "The little fox ran over the hill, and"


def test_counted_blanks_choose_the_cut_that_fits() -> None:
    tokens = len(TOKENIZER.encode("Tom is"))
    parts = fit(parse_template(f"[MASK:{tokens}] a cat"), "Tom is a cat", TOKENIZER)
    assert [p.text for p in parts] == ["Tom is", " a cat"]
    parts = fit(parse_template("a ___ a ___"), "a b a c", TOKENIZER)
    assert [p.text for p in parts if p.is_blank] == [" b", " c"]


@pytest.mark.parametrize(
    ("template", "text", "says"),
    [
        ("The [MASK] sat", "The zebras sat", "takes 1 token, but 'zebras' has"),
        ("The ___ sat", "The big cat sat", "takes one word"),
        ("The ___ sat", "A cat sat", "'The' is not found"),
        ("The ___", "The", "do not match"),
        ("un___", "un do", "do not match"),
    ],
)
def test_a_text_that_does_not_fit_is_refused_with_the_reason(template: str, text: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        fit(parse_template(template), text, TOKENIZER)


def test_long_texts_with_many_blanks_are_cut_quickly() -> None:
    template = parse_template("a ___ " * 12 + "z")
    with pytest.raises(TemplateError):
        fit(template, "a a " * 30, TOKENIZER)


def test_filling_restores_the_spaces() -> None:
    template = parse_template("[MASK] is un[MASK], ___.")
    assert "".join(filled_spans(template, ["Tom", "happy", "alas"])) == "Tom is unhappy, alas."
    with pytest.raises(TemplateError, match="3 blanks"):
        filled_spans(template, ["Tom"])
    with pytest.raises(TemplateError, match="empty"):
        filled_spans(template, ["Tom", "", "x"])


@pytest.mark.parametrize(("blanks", "size"), [(4, 15), (5, 20), (30, 3)])
def test_many_counted_blanks_in_a_row_fit(blanks: int, size: int) -> None:
    word = next(w for w in ("cat", "the", "and", "a") if len(TOKENIZER.encode(w)) == 1)
    text = " ".join([word] * (blanks * size))
    parts = fit(parse_template(" ".join([f"[MASK:{size}]"] * blanks)), text, TOKENIZER)
    assert [len(part.ids) for part in parts] == [size] * blanks
    assert "".join(part.text for part in parts) == text
