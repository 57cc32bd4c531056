"""Control: whatever is asked of a text, it has it or a clear error says why; given text stays, words are whole."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pmlm
from pmlm import Filled, load
from pmlm.errors import ConfigError, ConstraintError, OrderError, TemplateError
from pmlm.generation.automata import exactly_words, intersection, without_words
from pmlm.generation.regex import compile_regex
from pmlm.generation.template import Blank, Given, parse_template
from test_lm import make_lm

LM = load()
ORDERS = ["random", "l2r", "r2l", "nearest", "confidence", "margin", "entropy"]


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W_](?:[^\W_]|['\u2000-\u2fff-])*", text)


def half_words(filled: Filled) -> list[int]:
    """Positions of written tokens that make no whole words with the token after them."""
    relation = LM.writer.neighbours
    assert relation is not None
    pairs = enumerate(itertools.pairwise(filled.ids[1:-1]))
    ours = [(i, a, b) for i, (a, b) in pairs if i in filled.order or i + 1 in filled.order]
    return [i for i, a, b in ours if not relation.beside(relation.single(a), forward=True)[b]]


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
        ("[MASK|starts=]", "lacks its value"),
        ("[MASK|digits=3]", "unknown option"),
        ("[MASK|regex=[a-z]+]", "inside a blank"),
        ("[WORD:2-3]", "as many tokens as it needs"),
        ("[MASK:5-3]", "from few to many"),
        ("[MASK:0-3]", "from 1 on"),
        ("[MASK:-3]", "from 1 on"),
    ],
)
def test_options_that_make_no_sense_are_refused(bad: str, says: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(says)):
        parse_template(bad)


@settings(deadline=None, max_examples=12)
@given(
    letter=st.sampled_from("TAJMBo"),
    choices=st.lists(st.sampled_from(["cat", "mouse", "little fox", "kite", "river"]), min_size=1, max_size=3, unique=True),
    order=st.sampled_from(ORDERS),
    visibility=st.sampled_from(["bidirectional", "order-causal"]),
    ban=st.lists(st.sampled_from(["the", "was", "and", "cow"]), max_size=2, unique=True),
    must=st.sampled_from([(), (), ("ball",)]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_what_is_asked_of_blanks_is_had_in_every_order(letter, choices, order, visibility, ban, must, seed) -> None:
    template = f"[MASK:4|starts={letter}] saw [MASK:1-3|in={','.join(choices)}] near [MASK:6|ends=end] home."
    filled = LM.fill(template, order=order, visibility=visibility, ban=ban, must=must, seed=seed)
    one = "|".join(map(re.escape, choices))  # the other blanks may write "saw" and "near" too
    found = re.fullmatch(rf"(.+) saw ({one}) near (.+) home\.", filled.text, re.DOTALL)
    assert found, filled.text
    assert found[1].startswith(letter)
    assert found[3].endswith("end")
    words = {word.lower() for word in words_of(filled.text)}
    assert not words & set(ban)
    assert set(must) <= words
    assert not half_words(filled)
    assert filled.attempts == 1  # all constraints are one rule: nothing is driven into a corner


@settings(deadline=None, max_examples=6)
@given(
    middle=st.sampled_from([r"1[MASK:2|digits]", r"[WORD|regex=\[a-m\]+]", "[MASK:*]", "[MASK:2-6]", "___"]),
    count=st.integers(6, 10),
    order=st.sampled_from(ORDERS),
    must=st.sampled_from([(), ("dog",)]),
    refinement=st.sampled_from(["mask-predict", "gibbs"]),
    seed=st.integers(0, 99),
)
def test_all_of_it_at_once_is_had_and_stays_in_a_rewriting(middle, count, order, must, refinement, seed) -> None:
    filled = LM.fill(
        f"[MASK:2-9|starts=S] {middle} and [MASK:1-8].", num_words=count, must=must, ban=["was"], order=order, seed=seed
    )
    refined = LM.refine(filled, method=refinement, passes=1, seed=seed, order=order)
    for text in (filled.text, refined.text):
        words = words_of(text)
        assert len(words) == count, text
        assert text.startswith("S"), text
        assert " and " in text, text
        assert set(must) <= set(re.findall(r"[^\W_]+", text)), text
        assert "was" not in re.findall(r"[^\W_]+", text.lower()), text
        if "digits" in middle:
            assert re.search(r" 1[0-9]{2,} and ", text), text
        if "regex" in middle:
            assert re.search(r" [a-m]+ and ", text), text


@pytest.mark.parametrize("word", ["Tomkite", "catdog", "riverwas"])
def test_words_never_seen_are_let_in_where_they_are_asked_for_and_nowhere_else(word: str) -> None:
    for seed in range(4):
        filled = LM.fill(f"[MASK:14] [WORD|in={word}] [MASK:4] end.", seed=seed)
        assert f" {word} " in filled.text
        first = filled.sizes[0]
        assert half_words(filled)
        assert set(half_words(filled)) <= set(range(first, first + filled.sizes[1])), filled.tokens


def test_bans_do_not_corner_a_text_whose_options_ask_for_words_never_seen() -> None:
    template = "[MASK:3|starts=T] saw [MASK:1-3|in=cat,mouse] near [MASK:4|ends=end] home."
    for order in ORDERS:
        text = LM.fill(template, order=order, ban=["the"], seed=1).text  # before: given up after 20 attempts
        assert "the" not in words_of(text.lower()), text


@settings(deadline=None, max_examples=12)
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


@pytest.mark.parametrize("template", ["Tom [MASK:*] and [MASK:*].", "[MASK:5-30] [WORD] end.", "[MASK:*|starts=T]"])
def test_the_number_of_tokens_is_had(template: str) -> None:
    for total in (16, 25):
        assert {len(LM.fill(template, seed=seed, num_tokens=total).tokens) for seed in range(3)} == {total}
    with pytest.raises(ConstraintError, match=r"has 3 tokens, not 9"):
        LM.fill("[MASK:3]", num_tokens=9, seed=0)
    with pytest.raises(ConstraintError, match=r"no length of the blank at position 0"):
        LM.fill("[MASK:2-4]", num_tokens=9, seed=0)


def test_an_acrostic_has_its_lines() -> None:
    for seed in range(2):
        text = LM.fill(pmlm.acrostic("Clara"), seed=seed, must=["kite"], order="random").text
        assert "".join(line[0] for line in text.split("\n")) == "CLARA", text
        assert "kite" in words_of(text)
    for bad in ("", "J X", "a1"):
        with pytest.raises(TemplateError, match="letters"):
            pmlm.acrostic(bad)


def test_a_number_of_words_finds_a_length_that_goes_with_it() -> None:
    for seed in range(4):
        filled = LM.fill("[MASK:5-40]", seed=seed, num_words=12)
        assert len(words_of(filled.text)) == 12, filled.text
        assert len(filled.tokens) < 24


def test_what_no_draw_can_help_is_said_without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmlm.writer.place_words", None)
    monkeypatch.setattr("pmlm.writer.choose_lengths", None)
    for template in ("Tom saw the end. [MASK:9]", "Tom saw the end. [MASK:*] and [MASK:*|starts=T]"):
        with pytest.raises(ConstraintError, match="the banned words"):
            LM.fill(template, must=["kite"], ban=["the"], seed=0)


def test_words_that_stand_there_have_appeared() -> None:
    assert LM.fill("Tom is [WORD|in=big].", must="Tom", seed=1).text == "Tom is big."
    assert LM.fill("A [WORD|in=kite,dog].", must="kite", seed=1).text == "A kite."
    assert LM.fill("Tom [MASK:3] end.", must=["kite", "river", "lamp"], seed=1).text.startswith("Tom ")


@pytest.mark.parametrize(
    "template", ["x[WORD|in=cat]", "the [WORD|in=cat]s ran", "[MASK:1]cat ran", "the cat[MASK:1] ran", "[MASK:1]s"]
)
def test_a_word_that_is_a_part_of_another_has_not_appeared(template: str) -> None:
    with pytest.raises(ConstraintError, match="no free blank with room"):
        print(LM.fill(template, must="cat", seed=0).text)


def test_a_line_takes_no_text_of_two() -> None:
    with pytest.raises(ConstraintError, match="no free blank with room"):
        LM.fill("[MASK:8|line]", must="a\nb", seed=0)


def test_a_text_without_anything_left_to_write_can_be_rewritten() -> None:
    filled = LM.fill("The [MASK:1] ran.", must="cat", seed=0)
    for method in ("mask-predict", "gibbs"):
        assert LM.refine(filled, method=method, passes=1, seed=0).text == filled.text == "The cat ran."  # type: ignore[arg-type]


def test_the_likeliest_of_texts_without_anything_to_write_is_one_of_them() -> None:
    filled = LM.fill("The [MASK:1] ran.", must="cat", seed=0, best_of=2)
    assert (filled.text, filled.order, filled.mean_logp, filled.best_of) == ("The cat ran.", [], 0.0, 2)


def test_options_may_go_on_with_a_given_word() -> None:
    for ending in ("ed", "er"):
        assert LM.fill(f"Tom kite[MASK:1-3|in={ending}] home.", seed=0).text == f"Tom kite{ending} home."


def test_words_find_room_beside_each_other() -> None:
    for seed in range(6):
        text = LM.fill("Tom [MASK:1-10] end.", must=["kite", "river", "squirrel"], seed=seed).text
        assert {"kite", "river", "squirrel"} <= set(words_of(text)), text


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
        ("Tom saw [WORD|in=cat].", {"ban": ["cat"]}, ConstraintError, "options together with the banned words.*position"),
        ("“Tom is a cat” [MASK:4]", {"ban": ["cat"]}, ConstraintError, "the banned words.*position"),
        ("[MASK:8]", {"ban": ["kite"], "must": ["kite"]}, ConstraintError, "the banned words.*position"),
        ("[WORD|regex=a)(b]", {}, ConstraintError, re.escape("'a)(b' closes a group")),
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
    for text in (" a dog.", "don't well-known", "don’t “go”", "é à", "one… two", "one\u00a0two", "one🙂two"):
        assert both.accepts(text.encode()), text
    for text in ("a cat", "one", "one two three", "", "one—two", "“cat” a", "— ”"):
        assert not both.accepts(text.encode()), text
    assert intersection(compile_regex("a*"), compile_regex("a?b?")).accepts(b"a")
    assert not intersection(compile_regex("a*"), compile_regex("a?b?")).accepts(b"ab")


def test_a_corner_without_a_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constraints too large for one rule are asked one by one: each is possible, both together never."""
    monkeypatch.setattr("pmlm.generation.demands.MOST_STATES", 1)
    template, ban = "Tom saw [WORD|in=cat]", ["cat"]
    with pytest.raises(ConstraintError, match=r"no text was found .* in 20 attempts"):
        LM.fill_batch([template, "Tom [MASK:3]"], seeds=[1, 2], ban=ban, whole_words=False)
    with pytest.raises(ConstraintError, match=r"no text was found .* in 20 attempts"):
        LM.fill(template, seed=1, ban=ban, whole_words=False)
    assert Given("Tom saw") in parse_template(template).segments


def test_a_text_begun_anew_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmlm.generation.demands.MOST_STATES", 1)
    filled = [LM.fill("Tom saw a [MASK:2|in=little cat,big dog] there.", seed=seed, ban=["cat"]) for seed in range(8)]
    assert {each.text for each in filled} == {"Tom saw a big dog there."}
    assert max(each.attempts for each in filled) > 1
    assert filled[0].to_dict()["attempts"] == filled[0].attempts
    for each in filled[:3]:  # a rewriting that finds no way leaves the text as it was
        assert LM.refine(each, passes=2, seed=each.seed).text == each.text
