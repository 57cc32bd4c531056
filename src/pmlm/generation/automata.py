"""Automata over the bytes of a text, and what they do with a vocabulary's pieces.

A `ByteAutomaton` reads a text byte by byte; `over_pieces` turns it into one that reads a piece at a time, for
constraints inside decoding (pmlm.generation.rules). State 0 is where a text is refused for good.

Shapes: Q states, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pmlm.errors import ConfigError

REFUSED = 0
_NUM_BYTES = 256
_CONTINUES = list(range(0x80, 0xC0))
"""Bytes that go on with a character of several bytes."""
_APOSTROPHE = "’".encode()


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    start: int
    next_QB: npt.NDArray[np.int32]
    """[Q, 256]"""
    accepts_Q: npt.NDArray[np.bool_]
    """Where a text may end."""

    def accepts(self, text: bytes) -> bool:
        state = self.start
        for byte in text:
            state = self.next_QB[state, byte]
        return bool(self.accepts_Q[state])


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    start: int
    next_QV: npt.NDArray[np.int32]
    accepts_Q: npt.NDArray[np.bool_]

    @property
    def num_states(self) -> int:
        return len(self.accepts_Q)

    @cached_property
    def flat_QV(self) -> npt.NDArray[np.int64]:
        """Where the entry (next state, piece) lies in a table of states and pieces that is laid out flat."""
        size = self.next_QV.shape[1]
        return self.next_QV.astype(np.int64) * size + np.arange(size)


def over_pieces(automaton: ByteAutomaton, pieces: Sequence[bytes]) -> TokenAutomaton:
    """The same language, read a piece at a time; a piece without bytes (a special) changes nothing."""
    state_QV = np.repeat(np.arange(len(automaton.next_QB), dtype=np.int32)[:, None], len(pieces), axis=1)
    for place in range(max(map(len, pieces), default=0)):
        longer = np.array([i for i, piece in enumerate(pieces) if len(piece) > place], dtype=np.int64)
        byte = np.array([pieces[i][place] for i in longer], dtype=np.int64)
        state_QV[:, longer] = automaton.next_QB[state_QV[:, longer], byte]
    return TokenAutomaton(automaton.start, state_QV, automaton.accepts_Q)


def without_words(words: Sequence[str]) -> ByteAutomaton:
    """Texts in which none of the words stands as a word of its own, in small letters or capitals.

    A word is a run of letters and digits; an apostrophe or a hyphen ends it, so that banning `dog` bans `dog's`.
    """
    refused, between, inside = REFUSED, 1, 2
    trie: list[dict[int, int]] = [{}]  # node 0 is the root; its state is `between`
    final: set[int] = set()
    for word in words:
        if not word or not word.isalnum():
            raise ConfigError(f"a banned word is one word of letters and digits, got {word!r}")
        for variant in spellings(word):
            node = 0
            for byte in _fold(variant.encode()):
                if byte not in trie[node]:
                    trie[node][byte] = len(trie)
                    trie.append({})
                node = trie[node][byte]
            final.add(node)
    states = 2 + len(trie)
    next_QB = np.zeros((states, _NUM_BYTES), dtype=np.int32)
    state_of = [between, *range(3, len(trie) + 2)]
    letters = [b for b in range(_NUM_BYTES) if _is_letter(b) or b in _CONTINUES]
    others = [b for b in range(_NUM_BYTES) if b not in letters]
    next_QB[inside, letters], next_QB[inside, others] = inside, between
    for node, children in enumerate(trie):
        state = state_of[node]
        next_QB[state, letters] = inside
        next_QB[state, others] = refused if node in final else between
        for byte in letters:
            if (child := children.get(_fold(bytes([byte]))[0])) is not None:
                next_QB[state, byte] = state_of[child]
    next_QB[between, _CONTINUES] = between  # the rest of a mark
    accepts_Q = np.ones(states, dtype=bool)
    accepts_Q[[refused, *(state_of[node] for node in final)]] = False
    return ByteAutomaton(between, next_QB, accepts_Q)


def intersection(one: ByteAutomaton, two: ByteAutomaton) -> ByteAutomaton:
    """Texts that both accept."""
    states: dict[tuple[int, int], int] = {(REFUSED, REFUSED): REFUSED}
    rows: list[npt.NDArray[np.int32]] = [np.zeros(_NUM_BYTES, dtype=np.int32)]

    def number(pair: tuple[int, int]) -> int:
        if REFUSED in pair:
            return REFUSED
        if pair not in states:
            states[pair] = len(rows)
            rows.append(np.zeros(_NUM_BYTES, dtype=np.int32))
            todo.append(pair)
        return states[pair]

    todo: list[tuple[int, int]] = []
    start = number((one.start, two.start))
    while todo:
        a, b = todo.pop()
        pairs = zip(one.next_QB[a].tolist(), two.next_QB[b].tolist(), strict=True)
        rows[states[a, b]][:] = [number(pair) for pair in pairs]
    accepts = np.array([bool(one.accepts_Q[a] and two.accepts_Q[b]) for a, b in states], dtype=bool)
    accepts[REFUSED] = False
    return ByteAutomaton(start, np.stack(rows), accepts)


def exactly_words(count: int) -> ByteAutomaton:
    """Texts of so many words: runs of letters, digits, apostrophes and hyphens that begin with a letter or digit.

    Curly apostrophes and long hyphens too, and with them all marks whose bytes begin alike.
    """
    if count < 1:
        raise ConfigError(f"a text has at least 1 word, got {count}")
    # 1 + 2k: k words done, between words; 2 + 2k: inside word k + 1
    next_QB = np.zeros((2 * count + 2, _NUM_BYTES), dtype=np.int32)
    letters = [b for b in range(_NUM_BYTES) if _is_letter(b)]
    inner = [*letters, *_CONTINUES, ord("'"), ord("-"), _APOSTROPHE[0]]
    for k in range(count + 1):
        between = 1 + 2 * k
        next_QB[between, :] = between
        next_QB[between, letters] = between + 1 if k < count else REFUSED
        if k < count:
            next_QB[between + 1, :] = between + 2
            next_QB[between + 1, inner] = between + 1
    accepts_Q = np.zeros(2 * count + 2, dtype=bool)
    accepts_Q[[2 * count, 2 * count + 1]] = True
    return ByteAutomaton(1, next_QB, accepts_Q)


def unfinished(automaton: ByteAutomaton) -> ByteAutomaton:
    """Texts that may be the beginning of one that is accepted, as far as the last byte tells."""
    accepts_Q = np.ones_like(automaton.accepts_Q)
    accepts_Q[REFUSED] = False
    return ByteAutomaton(automaton.start, automaton.next_QB, accepts_Q)


def spellings(word: str) -> set[str]:
    """A word as it may be written: as given, in small letters, with a capital, in capitals."""
    return {word, word.lower(), word.upper(), word.capitalize()}


def _fold(raw: bytes) -> bytes:
    """Capitals of the alphabet as small letters; other bytes as they are."""
    return raw.lower()


def _is_letter(byte: int) -> bool:
    """Whether a character that begins with this byte is a letter or digit.

    Beyond ASCII: those that begin with C2, E2 and F0 count as marks (quotes, dashes, symbols, no-break space, emoji),
    all others as letters.
    """
    return chr(byte).isalnum() if byte < 0x80 else 0xC2 < byte < 0xF0 and byte != 0xE2
