"""Constraints inside decoding: exact by enumeration, in every order, and words are whole."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmlm.errors import ConfigError, ConstraintError
from pmlm.generation.automata import over_pieces, without_words
from pmlm.generation.canvas import Role, allowed_pieces
from pmlm.generation.regex import compile_regex
from pmlm.generation.rules import ChainRule, NeighbourRule, Neighbours, Rule, Span, word_neighbours
from pmlm.tokenizer import Tokenizer, train_tokenizer
from pmlm.words import PieceKinds, WordTable, count_words
from test_lm import TOKENIZER, make_lm

ALPHABET = 5


def flags(*members: int, size: int = ALPHABET) -> np.ndarray:
    found = np.zeros(size, dtype=bool)
    found[list(members)] = True
    return found


def relation_of(pairs: list[tuple[int, int]], ends: list[int], spaced: list[int]) -> Neighbours:
    kinds = PieceKinds(flags(*spaced), ~flags(*spaced), *(flags() for _ in range(4)))
    table = WordTable(flags(*ends), np.array(pairs, dtype=np.int64).reshape(-1, 2), (1,))
    return Neighbours(kinds, table, np.ones((1, ALPHABET), dtype=bool))


def may_follow(relation: Neighbours, a: int, b: int) -> bool:
    return bool(relation._after(flags(a))[b])


members = st.lists(st.integers(0, ALPHABET - 1), max_size=ALPHABET, unique=True)


@settings(deadline=None, max_examples=60)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8),
    ends=members,
    spaced=members,
    edges=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    inner=st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=4),
    data=st.data(),
)
def test_neighbours_allow_exactly_what_can_be_completed(pairs, ends, spaced, edges, inner, data) -> None:
    row = [edges[0], *inner, edges[1]]  # a row lies between its markers
    relation = relation_of(pairs, ends, spaced)
    hidden = [token is None for token in row]
    rule = NeighbourRule(relation, [token or 0 for token in row], hidden, [0] * len(row))
    while None in row:
        slot = data.draw(st.sampled_from([i for i, token in enumerate(row) if token is None]))
        completions = [
            filled
            for filled in itertools.product(*[range(ALPHABET) if t is None else [t] for t in row])
            if all(
                may_follow(relation, a, b)
                for i, (a, b) in enumerate(itertools.pairwise(filled))
                if hidden[i] or hidden[i + 1]
            )
        ]
        if not completions:
            return  # the given text leaves no way: sides are asked one by one then
        expected = {filled[slot] for filled in completions}
        found = rule.allowed(slot)
        assert set(range(ALPHABET) if found is None else np.flatnonzero(found).tolist()) == expected
        row[slot] = data.draw(st.sampled_from(sorted(expected)))
        rule.reveal(slot, row[slot])


PIECES = [b"", b" a", b"b", b" ab", b".", b" b"]


@settings(deadline=None, max_examples=60)
@given(
    words=st.lists(st.sampled_from(["a", "b", "ab", "abb"]), min_size=1, max_size=2),
    row=st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=1, max_size=4),
    data=st.data(),
)
def test_automata_allow_exactly_what_can_be_completed(words, row, data) -> None:
    roles = np.stack([flags(1, 2, 3, 4, 5, size=6)])
    hidden = [token is None for token in row]
    rule = ChainRule(
        None,
        [Span(0, len(row), over_pieces(without_words(words), PIECES))],
        [t or 0 for t in row],
        hidden,
        [0] * len(row),
        roles,
    )

    def is_clean(filled: tuple[int, ...]) -> bool:
        found = re.findall(r"\w+", b"".join(PIECES[i] for i in filled).decode())
        return not set(found) & set(words)

    row = list(row)
    while True:
        options = [range(1, 6) if token is None else [token] for token in row]
        completions = [filled for filled in itertools.product(*options) if is_clean(filled)]
        assert (rule.first_impossible is None) == bool(completions)
        if None not in row or not completions:
            return
        slot = data.draw(st.sampled_from([i for i, token in enumerate(row) if token is None]))
        expected = {filled[slot] for filled in completions}
        found = rule.allowed(slot)
        assert found is not None
        assert set(np.flatnonzero(found & roles[0]).tolist()) == expected
        row[slot] = data.draw(st.sampled_from(sorted(expected)))
        rule.reveal(slot, row[slot])


@settings(deadline=None, max_examples=80)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([2, 4])), max_size=6),
    ends=st.lists(st.integers(1, 5), max_size=5, unique=True),
    pattern=st.sampled_from([" ?a.*", ".*b", "( ab?)+", ".{3}", "( a| b)*[.]", ".*"]),
    whole=st.sampled_from([None, None, ".*a.*", "[^.]*", "( ?[ab])*", ".{4,5}"]),
    row=st.lists(st.one_of(st.none(), st.none(), st.integers(1, 5)), min_size=1, max_size=4),
    data=st.data(),
)
def test_spans_whole_and_neighbours_together_allow_exactly_what_can_be_completed(
    pairs, ends, pattern, whole, row, data
) -> None:
    """Spaces: 1, 3, 5; marks and letters without a space: 2, 4. The span lies anywhere in the row."""
    spaced = flags(1, 3, 5, size=6)
    kinds = PieceKinds(spaced, ~spaced, *(flags(size=6) for _ in range(4)))
    table = WordTable(flags(*ends, size=6), np.array(pairs, dtype=np.int64).reshape(-1, 2), (1,))
    roles = np.stack([flags(1, 2, 3, 4, 5, size=6)])
    relation = Neighbours(kinds, table, roles)
    start = data.draw(st.integers(0, len(row) - 1))
    end = data.draw(st.integers(start + 1, len(row)))
    hidden = [token is None for token in row]
    automaton = over_pieces(compile_regex(pattern), PIECES)
    rule = ChainRule(
        relation, [Span(start, end, automaton)], [t or 0 for t in row], hidden, [0] * len(row), roles,
        None if whole is None else over_pieces(compile_regex(whole), PIECES),
    )  # fmt: skip
    row = list(row)

    def fits(filled: tuple[int, ...]) -> bool:
        text = b"".join(PIECES[i] for i in filled[start:end]).decode()
        everything = b"".join(PIECES[i] for i in filled).decode()
        if whole is not None and not re.fullmatch(whole, everything):
            return False
        return bool(re.fullmatch(pattern, text)) and all(
            relation._after(flags(a, size=6))[b]
            for i, (a, b) in enumerate(itertools.pairwise(filled))
            if hidden[i] or hidden[i + 1]
        )

    while None in row:
        options = [range(1, 6) if token is None else [token] for token in row]
        completions = [filled for filled in itertools.product(*options) if fits(filled)]
        if not completions:
            return
        slot = data.draw(st.sampled_from([i for i, token in enumerate(row) if token is None]))
        expected = {filled[slot] for filled in completions}
        found = rule.allowed(slot)
        assert found is not None
        assert set(np.flatnonzero(found & roles[0]).tolist()) == expected
        row[slot] = data.draw(st.sampled_from(sorted(expected)))
        rule.reveal(slot, row[slot])


def test_from_left_to_right_a_piece_costs_one_step_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 12
    automaton = over_pieces(compile_regex("(( a)|b|[.]){12}"), PIECES)
    roles = np.stack([flags(1, 2, 3, 4, 5, size=6)])
    rule = ChainRule(None, [Span(0, size, automaton)], [0] * size, [True] * size, [0] * size, roles)
    steps = []
    for side in ("_left", "_right"):
        real = getattr(ChainRule, side)
        monkeypatch.setattr(ChainRule, side, lambda self, slot, real=real: steps.append(slot) or real(self, slot))
    for slot in range(size):
        assert set(np.flatnonzero(rule.allowed(slot))) == {1, 2, 4}
        rule.reveal(slot, 1)
    assert len(steps) < size
    assert rule.first_impossible is None


@pytest.mark.parametrize(
    "pattern", ["a*", "(ab|a)*b?", "[a-c]{2,3}x", "a{2,}b", r"\d+\.\d*", "[^ab]c", "a.b", "(?:ab)+", "é?a", r"\w+ \w+", "[]a]b",
                "a{2,}b*", "(a|b){2,}x?", r"[^\n]+", r"a\n?b", r"[\nx]+", r"[+-\]]+", "(a+)?b", "(a{2}){2}"]
)  # fmt: skip
def test_expressions_match_what_re_matches(pattern: str) -> None:
    automaton, expression = compile_regex(pattern), re.compile(pattern)
    for size in range(5):
        for letters in itertools.product("abc1.x é]\n", repeat=size):
            text = "".join(letters)
            assert automaton.accepts(text.encode()) == bool(expression.fullmatch(text)), text


@pytest.mark.parametrize(
    "bad",
    [
        "(a",
        "a)",
        "[a",
        "*a",
        "a{2",
        "a{3,2}",
        "a{0}",
        "\\",
        r"\q",
        "a{1,999}",
        "[é]",
        "[z-a]",
        "a+?b",
        "a{2}{3}",
        r"[a-\d]",
        r"[\q]",
        "(" * 600 + "a" + ")" * 600,
    ],
)
def test_expressions_that_cannot_be_read_are_refused(bad: str) -> None:
    with pytest.raises(ConstraintError, match="regular expression"):
        compile_regex(bad)


def test_banned_words_are_banned_in_any_case_and_only_as_words() -> None:
    automaton = without_words(["the", "Ben"])
    assert automaton.accepts(b" then there Benny breathe")
    for text in (b" the", b"THE end", b" a,the.", b"The", b" ben's", b"say BEN"):
        assert not automaton.accepts(text), text
    for text in ("“the”", "a—the", "the… end", "Ben’s", "the\u00a0end", "🙂the"):  # marks beyond ASCII end a word
        assert not automaton.accepts(text.encode()), text
    for text in ("théâtre", "thé", "theé", "éthe", "Bénin"):  # and letters do not
        assert automaton.accepts(text.encode()), text
    for bad in ("", "two words", "it's"):
        with pytest.raises(ConfigError, match="banned word"):
            without_words([bad])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return TOKENIZER


@pytest.fixture(scope="module")
def table(stories: list[str], tokenizer: Tokenizer) -> WordTable:
    return count_words([np.array(tokenizer.encode(text)) for text in stories], tokenizer)


def is_allowed(rule: Rule, slot: int, token: int) -> bool:
    found = rule.allowed(slot)
    return found is None or bool(found[token])


def test_the_corpus_s_own_text_is_allowed_in_every_order(
    stories: list[str],
) -> None:
    tokenizer = train_tokenizer(stories, vocab_size=500)  # large enough that no word begins with a bare space
    table = count_words([np.array(tokenizer.encode(text)) for text in stories], tokenizer)
    relation = word_neighbours(tokenizer, table, allowed_pieces(tokenizer))
    rng = np.random.default_rng(0)
    for text in stories[:3]:
        ids = [tokenizer.start_id, *tokenizer.encode(text), tokenizer.end_id]
        hidden = [False, *[True] * (len(ids) - 2), False]
        for _ in range(3):
            rule = NeighbourRule(relation, ids, hidden, [Role.FREE] * len(ids))
            for slot in (rng.permutation(len(ids) - 2) + 1).tolist():
                assert is_allowed(rule, slot, ids[slot]), tokenizer.show(ids[slot])
                rule.reveal(slot, ids[slot])


def test_a_stem_before_an_apostrophe_is_no_word() -> None:
    text = "He couldn’t see. She couldn't go. " * 40
    tokenizer = train_tokenizer([text], vocab_size=330)
    table = count_words([np.array(tokenizer.encode(text))], tokenizer)
    ends = {word: bool(table.ends_V[tokenizer.encode_inner(" " + word)[-1]]) for word in ("see", "She", "couldn")}
    assert ends == {"see": True, "She": True, "couldn": False}


def test_a_slip_makes_no_word(tokenizer: Tokenizer) -> None:
    kinds = PieceKinds.of(tokenizer)
    stem, other = np.flatnonzero(kinds.spaced_V & kinds.closed_V)[:2]
    (rest, *_) = np.flatnonzero(kinds.glued_V)
    for slips, is_word in ((1, False), (2, True)):
        ids = np.array([stem, rest] * 60 + [stem, other] * slips)
        assert bool(count_words([ids], tokenizer).ends_V[stem]) == is_word


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", text))


@pytest.mark.parametrize("order", ["l2r", "random", "confidence"])
def test_what_is_written_is_whole_words_spelt_as_the_tokenizer_spells_them(
    order: str, stories: list[str], tokenizer: Tokenizer, table: WordTable
) -> None:
    """Random weights write anything they may; with the rule every two neighbours were seen in the corpus."""
    loose = make_lm()
    strict = make_lm(table)
    relation = strict.writer.neighbours
    assert relation is not None

    def broken(lm) -> int:
        count = 0
        for filled in lm.fill_batch(["The [MASK:12] fox [MASK:8]", "[MASK:15]"] * 4, seeds=range(8), order=order):
            written = set(filled.order)
            ids = [tokenizer.start_id, *map(id_of, filled.tokens), tokenizer.end_id]
            for i in range(len(ids) - 1):
                if i - 1 in written or i in written:
                    count += not may_follow_ids(ids[i], ids[i + 1])
            if lm is strict:
                again = lm.score(filled.text, given=filled.template, order=filled.order)
                assert again.nll == pytest.approx(filled.nll, abs=1e-4)
        return count

    shown = {tokenizer.show(i): i for i in range(tokenizer.vocab_size)}

    def id_of(token: str) -> int:
        return shown[token]

    def may_follow_ids(a: int, b: int) -> bool:
        return bool(relation._after(flags(a, size=tokenizer.vocab_size))[b])

    assert broken(strict) == 0
    assert broken(loose) > 10


def test_words_that_are_banned_do_not_come_out_and_impossible_bans_are_refused() -> None:
    from pmlm import load

    lm = load()
    template = "Tom and [MASK:30]"
    ban = ["was", "The", "a", "he"]
    assert words_of(lm.fill(template, seed=1).text.lower()) & {"was", "the", "a"}
    for order in ("random", "l2r", "confidence"):
        for filled in lm.fill_batch([template] * 3, seeds=[1, 2, 3], ban=ban, order=order):
            assert not words_of(filled.text.lower()) & {"was", "the", "a", "he"}
    with pytest.raises(ConstraintError, match=r"banned words.* no way is left at position 1"):
        lm.fill(template, ban="tom")
