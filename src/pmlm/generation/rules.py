"""What may still come out at a hidden slot, given what is known around it: constraints inside decoding.

A rule is a relation on the whole row; at any moment it answers which ids at a slot leave *some* way to fill every
other hidden slot of the row. Both kinds are exact for themselves, in every order, by a pass from the left and a pass
from the right over what is unknown:

- `NeighbourRule`: which piece may stand beside which (whole words, from a `WordTable`);
- `ChainRule`: spans of the row, and the whole of it, must be accepted by automata (pmlm.generation.automata), with
  whole words or without.

Several rules of a row are asked one by one, so that it can, rarely, be driven into a corner by two of them.

Shapes: L slots, V vocabulary, Q states, R roles.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from pmlm.generation.automata import REFUSED, TokenAutomaton
from pmlm.tokenizer import Tokenizer
from pmlm.words import Flags, PieceKinds, WordTable

_MOST_SETS = 2048


class Rule(Protocol):
    """A constraint on one row that is being filled."""

    def allowed(self, slot: int) -> Flags | None:
        """[V] the ids that leave a way to fill the rest; None where all do."""
        ...

    def reveal(self, slot: int, token: int) -> None: ...

    def fork(self) -> "Rule":
        """A copy that goes its own way."""
        ...


@dataclass(eq=False)
class PieceSet:
    """A set of pieces, and what was found to stand beside it."""

    flags_V: Flags
    beside: dict[bool, Flags] = field(default_factory=dict)
    steps: dict[tuple[bool, int], "PieceSet | None"] = field(default_factory=dict)


@dataclass(eq=False)
class Neighbours:
    """Which piece may stand before which, as a relation on sets of pieces; None is the set of all."""

    kinds: PieceKinds
    table: WordTable
    ids_RV: Flags
    """What may be written at a slot of each role."""
    _sets: dict[bytes, PieceSet] = field(default_factory=dict)

    @cached_property
    def begins_V(self) -> Flags:
        """What may follow a whole word: a space, a line, a mark."""
        begins_V: Flags = self.kinds.spaced_V | self.kinds.marked_V
        return begins_V

    def single(self, token: int) -> PieceSet:
        """The set of one piece."""
        flags_V = np.zeros(len(self.table.ends_V), dtype=bool)
        flags_V[token] = True
        return self._intern(flags_V)

    def step(self, one: PieceSet | None, role: int, *, forward: bool) -> PieceSet | None:
        """The pieces of a role that may stand after (before) some piece of a set; None where there are none."""
        if one is None:
            return self._intern(self.ids_RV[role])
        key = (forward, role)
        if key not in one.steps:
            found = self.beside(one, forward=forward) & self.ids_RV[role]
            one.steps[key] = self._intern(found) if found.any() else None
        return one.steps[key]

    def beside(self, one: PieceSet, *, forward: bool) -> Flags:
        """[V] what may stand after (before) some piece of a set."""
        if forward not in one.beside:
            one.beside[forward] = self._after(one.flags_V) if forward else self._before(one.flags_V)
        return one.beside[forward]

    def beside_flags(self, flags_V: Flags, *, forward: bool) -> Flags:
        """The same for a set that is not interned yet; the empty set has nothing beside it."""
        return self.beside(self._intern(flags_V), forward=forward) if flags_V.any() else flags_V

    def _after(self, flags_V: Flags) -> Flags:
        kinds, ends_V = self.kinds, self.table.ends_V
        left_P, right_P = self.table.pairs_P2.T
        found = np.zeros_like(flags_V)
        found[right_P[flags_V[left_P]]] = True
        if (flags_V & ends_V).any():
            found |= kinds.spaced_V
        if (flags_V & ends_V & kinds.closed_V).any():
            found |= kinds.marked_V
        return found

    def _before(self, flags_V: Flags) -> Flags:
        kinds, ends_V = self.kinds, self.table.ends_V
        left_P, right_P = self.table.pairs_P2.T
        found = np.zeros_like(flags_V)
        found[left_P[flags_V[right_P]]] = True
        if (flags_V & kinds.spaced_V).any():
            found |= ends_V
        if (flags_V & kinds.marked_V).any():
            found |= ends_V & kinds.closed_V
        return found

    def _intern(self, flags_V: Flags) -> PieceSet:
        key = np.packbits(flags_V).tobytes()
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= _MOST_SETS:
                self._sets.clear()  # rows that still use a set keep it alive themselves
            found = self._sets[key] = PieceSet(flags_V)
        return found


def word_neighbours(tokenizer: Tokenizer, table: WordTable, ids_RV: Flags) -> Neighbours:
    """The relation of whole words; a text starts and ends like a word does."""
    kinds = PieceKinds.of(tokenizer)
    ends_V, spaced_V, closed_V = table.ends_V.copy(), kinds.spaced_V.copy(), kinds.closed_V.copy()
    ends_V[tokenizer.start_id] = closed_V[tokenizer.start_id] = spaced_V[tokenizer.end_id] = True
    return Neighbours(replace(kinds, spaced_V=spaced_V, closed_V=closed_V), replace(table, ends_V=ends_V), ids_RV)


class NeighbourRule:
    """Every two neighbours of which one is written here are a pair of the relation, as far as that is possible.

    What stands in the given text is not judged. Where the given text leaves no way at all, its side is not asked.
    """

    def __init__(self, relation: Neighbours, ids: Sequence[int], hidden: Sequence[bool], role: Sequence[int]) -> None:
        self.relation, self.hidden, self.role = relation, list(hidden), role
        known = [None if h else relation.single(i) for i, h in zip(ids, hidden, strict=True)]
        self.from_left, self.from_right = list(known), list(known)  # what may stand at a slot, seen from either side
        for s in range(1, len(ids)):
            if self.hidden[s]:
                self.from_left[s] = self._step(s, self.from_left[s - 1], forward=True)
        for s in range(len(ids) - 2, -1, -1):
            if self.hidden[s]:
                self.from_right[s] = self._step(s, self.from_right[s + 1], forward=False)

    def _step(self, slot: int, one: PieceSet | None, *, forward: bool) -> PieceSet | None:
        return self.relation.step(one, self.role[slot], forward=forward)

    def allowed(self, slot: int) -> Flags | None:
        sides = []
        if slot > 0 and (left := self.from_left[slot - 1]) is not None:
            sides.append(self.relation.beside(left, forward=True))
        if slot + 1 < len(self.hidden) and (right := self.from_right[slot + 1]) is not None:
            sides.append(self.relation.beside(right, forward=False))
        role_V = self.relation.ids_RV[self.role[slot]]
        for side in ([sides[0] & sides[1]] if len(sides) == 2 else []) + sides:
            if (side & role_V).any():
                return side
        return None

    def fork(self) -> "NeighbourRule":
        other = copy(self)
        other.hidden, other.from_left, other.from_right = list(self.hidden), list(self.from_left), list(self.from_right)
        return other

    def reveal(self, slot: int, token: int) -> None:
        self.hidden[slot] = False
        self.from_left[slot] = self.from_right[slot] = self.relation.single(token)
        for s in range(slot + 1, len(self.hidden)):
            if not self.hidden[s] or (new := self._step(s, self.from_left[s - 1], forward=True)) is self.from_left[s]:
                break
            self.from_left[s] = new
        for s in range(slot - 1, -1, -1):
            if (
                not self.hidden[s]
                or (new := self._step(s, self.from_right[s + 1], forward=False)) is self.from_right[s]
            ):
                break
            self.from_right[s] = new


@dataclass(frozen=True)
class Span:
    """Slots whose text must be accepted by an automaton: from `start` to before `end`."""

    start: int
    end: int
    automaton: TokenAutomaton
    is_loose: bool = False
    """Its text may have words that were never seen: the relation asks nothing inside, and after it but a new word."""


class ChainRule:
    """The text of each span is accepted by its automaton, the whole text by another, and every two neighbours are a
    pair of a relation.

    All at once and exactly: what is kept for each slot are the triples of a span's state after it, the whole text's
    state after it and the piece at it that can be reached from the left, and those from which the rest can be filled.
    Outside the spans, and without an automaton for the whole, there is but one state. As for `NeighbourRule`, given
    text is not judged by the relation.

    A piece that is revealed changes what is kept on both sides of it. That is worked out when it is asked for: a text
    that is written from left to right never looks at the left sides beyond the next slot.

    Shapes: Q states of a span, W states of the whole.
    """

    def __init__(
        self,
        relation: Neighbours | None,
        spans: Sequence[Span],
        ids: Sequence[int],
        hidden: Sequence[bool],
        role: Sequence[int],
        ids_RV: Flags,
        whole: TokenAutomaton | None = None,
    ) -> None:
        self.relation, self.ids, self.hidden, self.role, self.ids_RV = relation, list(ids), list(hidden), role, ids_RV
        self.free = _anything(ids_RV.shape[1])
        self.whole = whole or self.free
        self.span_of = [-1] * len(ids)
        for number, span in enumerate(spans):
            self.span_of[span.start : span.end] = [number] * (span.end - span.start)
        self.spans, self.is_ours = spans, list(hidden)
        nowhere = np.zeros((1, 1, ids_RV.shape[1]), dtype=bool)
        self.from_left: list[Flags] = [nowhere] * len(ids)
        self.from_right: list[Flags] = [nowhere] * len(ids)
        self.left_due, self.right_due = set[int](), set[int]()
        """Slots whose sides are to be worked out anew; those beyond them follow where something changes."""
        for s in range(len(ids)):
            self.from_left[s] = self._left(s)
        for s in reversed(range(len(ids))):
            self.from_right[s] = self._right(s)

    @property
    def first_impossible(self) -> int | None:
        """The first slot at which nothing can stand; None where everything can be filled.

        Every slot is looked at: where given text leaves no way, one side may have stopped asking and the other not.
        """
        self._catch_up(len(self.ids) - 1, 0)
        sides = zip(self.from_left, self.from_right, strict=True)
        if all((left_QWV & right_QWV).any() for left_QWV, right_QWV in sides):
            return None
        return next(s for s, flags in enumerate(self.from_left) if not flags.any() or s == len(self.ids) - 1)

    def allowed(self, slot: int) -> Flags | None:
        self._catch_up(slot - 1, slot)
        return np.asarray((self._reached(slot) & self._before(slot)).any(axis=(0, 1)))

    def fork(self) -> "ChainRule":
        other = copy(self)
        other.ids, other.hidden = list(self.ids), list(self.hidden)
        other.from_left, other.from_right = list(self.from_left), list(self.from_right)
        other.left_due, other.right_due = set(self.left_due), set(self.right_due)
        return other

    def reveal(self, slot: int, token: int) -> None:
        self.ids[slot], self.hidden[slot] = token, False
        self.left_due.add(slot)
        if slot > 0:
            self.right_due.add(slot - 1)

    def _catch_up(self, left: int, right: int) -> None:
        """Left sides up to a slot, right sides down to another."""
        while self.left_due and (s := min(self.left_due)) <= left:
            self.left_due.remove(s)
            new = self._left(s)
            if not np.array_equal(new, self.from_left[s]):
                self.from_left[s] = new
                if s + 1 < len(self.ids):
                    self.left_due.add(s + 1)
        while self.right_due and (s := max(self.right_due)) >= right:
            self.right_due.remove(s)
            new = self._right(s)
            if not np.array_equal(new, self.from_right[s]):
                self.from_right[s] = new
                if s > 0:
                    self.right_due.add(s - 1)

    def _automaton(self, slot: int) -> TokenAutomaton:
        return self.spans[self.span_of[slot]].automaton if self.span_of[slot] >= 0 else self.free

    def _own(self, slot: int) -> Flags:
        if self.hidden[slot]:
            own: Flags = self.ids_RV[self.role[slot]]
            return own
        known = np.zeros(self.ids_RV.shape[1], dtype=bool)
        known[self.ids[slot]] = True
        return known

    def _goes_on(self, slot: int) -> bool:
        """Whether a slot is in the same span as the one before it."""
        return slot > 0 and self.span_of[slot] == self.span_of[slot - 1]

    def _reached(self, slot: int) -> Flags:
        """[Q, W, V] by the states before a slot: which pieces may stand there, seen from the left."""
        automaton, own_V, entry = self._automaton(slot), self._own(slot), not self._goes_on(slot)
        if slot == 0:
            before_QWV: Flags = np.zeros((1, self.whole.num_states, len(own_V)), dtype=bool)
            before_QWV[0, self.whole.start] = True
        else:
            before_QWV = self.from_left[slot - 1]
            if entry:
                before_QWV = np.asarray(before_QWV[self._automaton(slot - 1).accepts_Q].any(axis=0, keepdims=True))
        reached_QWV = self._neighbours(before_QWV, slot - 1, forward=True) & own_V
        if not reached_QWV.any():  # the text around leaves no way: here its side is not asked
            reached_QWV = before_QWV.any(axis=2, keepdims=True) & own_V
        if not entry:
            return reached_QWV
        placed = np.zeros((automaton.num_states, *reached_QWV.shape[1:]), dtype=bool)
        placed[automaton.start] = reached_QWV[0]
        return placed

    def _left(self, slot: int) -> Flags:
        """[Q, W, V] states after a slot with the piece at it, reachable from the left."""
        reached_QWV, automaton = self._reached(slot), self._automaton(slot)
        if automaton is self.free and self.whole is self.free:
            return reached_QWV
        after_QWV = np.zeros_like(reached_QWV)
        inner, outer, pieces = np.nonzero(reached_QWV)
        after_QWV[automaton.next_QV[inner, pieces], self.whole.next_QV[outer, pieces], pieces] = True
        if automaton is not self.free:
            after_QWV[REFUSED] = False
        if self.whole is not self.free:
            after_QWV[:, REFUSED] = False
        return after_QWV

    def _before(self, slot: int) -> Flags:
        """[Q, W, V] by the states before a slot: the pieces at it after which the rest can be filled.

        Of a known slot, its own piece alone is looked at.
        """
        automaton, rest_QWV = self._automaton(slot), self.from_right[slot]
        if not self.hidden[slot]:
            piece, known_QWV = self.ids[slot], np.zeros_like(rest_QWV)
            inner, outer = automaton.next_QV[:, piece], self.whole.next_QV[:, piece]
            known_QWV[:, :, piece] = rest_QWV[:, :, piece][inner][:, outer]
            return known_QWV
        if self.whole is not self.free:
            rest_QWV = np.take(rest_QWV.reshape(len(rest_QWV), -1), self.whole.flat_QV, axis=1)
        if automaton is not self.free:
            rest_WQV = rest_QWV.swapaxes(0, 1).reshape(rest_QWV.shape[1], -1)
            rest_QWV = np.take(rest_WQV, automaton.flat_QV, axis=1).swapaxes(0, 1)
        return rest_QWV

    def _right(self, slot: int) -> Flags:
        """[Q, W, V] states after a slot with the piece at it, from which the rest can be filled."""
        accepted_Q, size = self._automaton(slot).accepts_Q, self.ids_RV.shape[1]
        if slot == len(self.ids) - 1:
            accepted_QW = accepted_Q[:, None] & self.whole.accepts_Q
            return np.repeat(accepted_QW[:, :, None], size, axis=2)
        rest_QWV, stays = self._before(slot + 1), self._goes_on(slot + 1)
        if not stays:
            rest_QWV = rest_QWV[[self._automaton(slot + 1).start]]
        rest_QWV = rest_QWV & self._own(slot + 1)
        before_QWV = self._neighbours(rest_QWV, slot, forward=False)
        if not (before_QWV & self._own(slot)).any():
            before_QWV = np.repeat(rest_QWV.any(axis=2, keepdims=True), size, axis=2)
        return before_QWV if stays else accepted_Q[:, None, None] & before_QWV

    def _is_loose(self, slot: int) -> bool:
        return self.span_of[slot] >= 0 and self.spans[self.span_of[slot]].is_loose

    def _neighbours(self, flags_QWV: Flags, left: int, *, forward: bool) -> Flags:
        """[Q, W, V] what may stand beside some piece of each row; `left` is the first slot of the pair."""
        size = flags_QWV.shape[-1]
        if self.relation is None or left < 0 or not (self.is_ours[left] or self.is_ours[left + 1]):
            return np.repeat(flags_QWV.any(axis=2, keepdims=True), size, axis=2)
        if self._is_loose(left + 1) and not self.is_ours[left]:  # a filling that goes on with given text
            return np.repeat(flags_QWV.any(axis=2, keepdims=True), size, axis=2)
        if self._is_loose(left):
            is_edge = self.is_ours[left + 1] and not self._goes_on(left + 1)
            begins_V = self.relation.begins_V if is_edge else np.ones(size, dtype=bool)
            if forward:
                return flags_QWV.any(axis=2, keepdims=True) & begins_V
            return np.repeat((flags_QWV & begins_V).any(axis=2, keepdims=True), size, axis=2)
        rows = [self.relation.beside_flags(flags_V, forward=forward) for flags_V in flags_QWV.reshape(-1, size)]
        return np.stack(rows).reshape(flags_QWV.shape)


def _anything(size: int) -> TokenAutomaton:
    """Accepts every text, in one state that is not REFUSED in spite of its number."""
    return TokenAutomaton(0, np.zeros((1, size), dtype=np.int32), np.ones(1, dtype=bool))


def allowed_by(rules: Sequence[Rule], slot: int, role_V: Flags) -> Flags:
    """[V] what a slot's role and every rule allow."""
    found = role_V
    for rule in rules:
        flags = rule.allowed(slot)
        if flags is not None:
            found = found & flags
    return found
