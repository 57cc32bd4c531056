"""Control: whatever is asked of a text, it has it or a clear error says why; given text stays, words are whole."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmlm import load
from pmlm.errors import ConfigError, ConstraintError, OrderError, TemplateError
from pmlm.generation.automata import exactly_words, intersection, without_words
from pmlm.generation.regex import compile_regex
from pmlm.generation.template import Blank, Given, parse_template
from test_lm import make_lm

LM = load()
ORDERS = ["random", "l2r", "r2l", "nearest", "confidence", "entropy"]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['-][^\W_]+)*", text)


def test_options_are_read_and_written_back() -> None:
    blank = parse_template(
        r"A [WORD|in=cat,dog\,s|starts=c] [MASK:5-15|open|digits] [MASK:*] [MASK|regex=\[a-z\|\]+]"
    ).blanks
    assert blank[0] == Blank(None, True, True, (1, 4), (("in", r"cat,dog\,s"), ("starts", "c")))
    assert blank[1] == Blank(None, True, False, (5, 15), (("digits", ""),))
    assert blank[2].sizes == (1, None)
    assert blank[3].limits == (("regex", "[a-z|]+"),)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("[MASK|colour=red]", "unknown option 'colour=red'"),
        ("[MASK|starts=]", "unknown option"),
        ("[MASK|digits=3]", "unknown option"),
        ("[WORD:2-3]", "as many tokens as it needs"),
        ("[MASK:5-3]", "from few to many"),
        ("[MASK:0-3]", "from 1 on"),
        ("[MASK:-3]", "from 1 on"),
    ],
)
def test_options_that_make_no_sense_are_refused(bad: str, says: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(says)):
        parse_template(bad)


@settings(deadline=None, max_examples=40)
@given(
    letter=st.sampled_from("TAJMBo"),
    choices=st.lists(st.sampled_from(["cat", "mouse", "little fox", "kite", "river"]), min_size=1, max_size=3, unique=True),
    order=st.sampled_from(ORDERS),
    visibility=st.sampled_from(["bidirectional", "order-causal"]),
    ban=st.lists(st.sampled_from(["the", "was", "and", "cow"]), max_size=2, unique=True),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_what_is_asked_of_blanks_is_had_in_every_order(letter, choices, order, visibility, ban, seed) -> None:
    template = f"[MASK:3|starts={letter}] saw [MASK:1-3|in={','.join(choices)}] near [MASK:4|ends=end] home."
    try:
        text = LM.fill(template, order=order, visibility=visibility, ban=ban, seed=seed).text
    except ConstraintError:
        return
    found = re.fullmatch(r"(.+) saw (.+) near (.+) home\.", text)
    assert found, text
    assert found[1].startswith(letter)
    assert found[2] in choices
    assert found[3].endswith("end")
    assert not {word.lower() for word in words_of(text)} & set(ban)


def test_bans_do_not_corner_a_text_whose_options_ask_for_words_never_seen() -> None:
    template = "[MASK:3|starts=T] saw [MASK:1-3|in=cat,mouse] near [MASK:4|ends=end] home."
    for order in ORDERS:
        text = LM.fill(template, order=order, ban=["the"], seed=1).text  # before: given up after 20 attempts
        assert "the" not in words_of(text.lower()), text


@settings(deadline=None, max_examples=25)
@given(
    must=st.lists(st.sampled_from(["kite", "river", "Tom", "friends", "squirrel", "lamp"]), min_size=1, max_size=4, unique=True),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_words_that_must_appear_do(must: list[str], order: str, seed: int) -> None:
    filled = LM.fill("Once [MASK:18] end.", must=must, order=order, seed=seed)
    assert set(must) <= set(words_of(filled.text)), filled.text
    assert filled.text.startswith("Once ")
    assert filled.text.endswith(" end.")
    assert len(filled.tokens) == len(LM.fill("Once [MASK:18] end.", seed=seed).tokens)
    score = LM.score(filled.text, given=filled.template, order=filled.order)
    assert score.nll == pytest.approx(filled.nll, abs=1e-4)


@pytest.mark.parametrize("count", [5, 8])
@pytest.mark.parametrize("order", ["random", "confidence"])
def test_the_number_of_words_is_had(count: int, order: str) -> None:
    for filled in LM.fill_batch(["[MASK:9]"] * 3, seeds=[1, 2, 3], num_words=count, order=order):
        assert len(words_of(filled.text)) == count, filled.text


def test_open_lengths_lie_within_their_bounds_and_are_the_model_s_choice() -> None:
    sizes = {len(LM.fill("Tom ate [MASK:2-6] in the end.", seed=seed).order) for seed in range(12)}
    assert sizes <= set(range(2, 7))
    assert len(sizes) > 1
    greedy = {len(LM.fill("Tom ate [MASK:2-6] in the end.", seed=seed, temperature=0).order) for seed in range(3)}
    assert len(greedy) == 1
    long = LM.fill("[MASK:110] [MASK:*]", seed=1)  # no more than the model reads
    assert 111 <= len(long.tokens) <= 126


def test_an_open_blank_is_as_long_as_its_options_need() -> None:
    long = "little squirrel hurried"  # three tokens
    for seed in range(4):
        text = LM.fill(f"A [MASK:1-5|in={long}] and [MASK:1-4|in=cats] home.", seed=seed).text
        assert text == f"A {long} and cats home."


@pytest.mark.parametrize(
    ("template", "options", "error", "says"),
    [
        ("[MASK:2|in=xylophone concerto number nine]", {}, ConstraintError, "position"),
        ("[MASK|regex=(a]", {}, ConstraintError, "not closed"),
        ("[MASK:5]", {"num_words": 30}, ConstraintError, "no way is left"),
        ("[MASK:5]", {"num_words": 0}, ConfigError, "at least 1 word"),
        ("[MASK:5]", {"num_words": 10**14}, ConstraintError, "words are more than the"),
        ("[MASK:2]", {"must": ["kite", "lamp", "river"]}, ConstraintError, "no free blank with room"),
        ("Tom [WORD|in=cat]", {"must": ["kite"]}, ConstraintError, "no free blank with room"),
        ("[MASK:5]", {"must": [" "]}, ConstraintError, "must appear is a text"),
        ("Tom is a cat. [MASK:5]", {"ban": ["cat"]}, ConstraintError, "no way is left at position"),
        ("[WORD|in=,a]", {}, TemplateError, "empty choice"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_said_before_any_work(template, options, error, says) -> None:
    with pytest.raises(error, match=says):
        LM.stream(template, seed=1, **options)


@pytest.mark.parametrize(
    "template", ["[MASK:3] xylophones[MASK:4|open] end.", "[MASK:2] qzx [MASK:3] Zzz", "un[MASK:2] [MASK:3]"]
)
@pytest.mark.parametrize("options", [{"ban": ["cat"]}, {"num_words": 5}, {"must": ["kite"], "ban": ["the", "cat"]}])
def test_words_that_the_model_never_saw_do_not_block_the_way(template: str, options: dict) -> None:
    for seed in range(3):
        for order in ("random", "l2r"):
            words = words_of(LM.fill(template, seed=seed, order=order, **options).text)
            assert not set(options.get("ban", ())) & {word.lower() for word in words}
            assert set(options.get("must", ())) <= set(words)
            assert len(words) == options.get("num_words", len(words))


@pytest.mark.parametrize(
    "template", ["He is 1[MASK|digits]", "Room: 2[MASK:2|digits].", "q[MASK:2|digits] and [WORD]."]
)
def test_options_are_had_after_text_that_the_model_never_saw(template: str) -> None:
    for order in ("l2r", "r2l", "random"):
        digits = template.count("|digits") * (2 if ":2|" in template else 1)
        text = LM.fill(template, seed=1, order=order).text
        assert len(re.findall("[0-9]", text)) == digits + len(re.findall("[0-9]", template.split("[")[0])), text


def test_a_left_to_right_model_cannot_write_towards_a_word() -> None:
    with pytest.raises(OrderError, match="must appear"):
        make_lm(visibilities=("causal",)).fill("[MASK:5]", must="a", order="l2r")


def test_automata_of_texts() -> None:
    both = intersection(without_words(["cat"]), exactly_words(2))
    assert both.accepts(b" a dog.")
    assert both.accepts(b"don't well-known")
    for text in (b"a cat", b"one", b"one two three", b""):
        assert not both.accepts(text), text
    assert intersection(compile_regex("a*"), compile_regex("a?b?")).accepts(b"a")
    assert not intersection(compile_regex("a*"), compile_regex("a?b?")).accepts(b"ab")


def test_a_corner_without_a_way_out_is_said() -> None:
    """Two constraints that are each possible and never together."""
    template, ban = "Tom saw [WORD|in=cat]", ["cat"]
    with pytest.raises(ConstraintError, match=r"no text was found .* in 20 attempts"):
        LM.fill_batch([template, "Tom [MASK:3]"], seeds=[1, 2], ban=ban, whole_words=False)
    with pytest.raises(ConstraintError, match=r"no text was found .* in 20 attempts"):
        LM.fill(template, seed=1, ban=ban, whole_words=False)
    assert Given("Tom saw") in parse_template(template).segments
