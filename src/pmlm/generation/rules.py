"""What may still come out at a hidden slot, given what is known around it: constraints inside decoding.

A rule is a relation on the whole row; at any moment it answers which ids at a slot leave *some* way to fill every
other hidden slot of the row. Both kinds are exact for themselves, in every order, by a pass from the left and a pass
from the right over what is unknown:

- `NeighbourRule`: which piece may stand beside which (whole words, from a `WordTable`);
- `ChainRule`: spans of the row must be accepted by automata (pmlm.generation.automata), with whole words or without.

Several rules are asked one by one, so a row can, rarely, be driven into a corner by two of them.

Shapes: L slots, V vocabulary, Q states, R roles.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

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


class ChainRule:
    """The text of each span is accepted by its automaton and, with a relation, every two neighbours are a pair of it.

    Both at once and exactly: what is kept for each slot are the pairs of an automaton's state after it and the piece
    at it that can be reached from the left, and those from which the rest can be filled. Outside the spans there is
    but one state. As for `NeighbourRule`, given text is not judged by the relation.
    """

    def __init__(
        self,
        relation: Neighbours | None,
        spans: Sequence[Span],
        ids: Sequence[int],
        hidden: Sequence[bool],
        role: Sequence[int],
        ids_RV: Flags,
    ) -> None:
        self.relation, self.ids, self.hidden, self.role, self.ids_RV = relation, list(ids), list(hidden), role, ids_RV
        self.span_of = [-1] * len(ids)
        for number, span in enumerate(spans):
            self.span_of[span.start : span.end] = [number] * (span.end - span.start)
        self.spans, self.is_ours = spans, list(hidden)
        nowhere = np.zeros((1, ids_RV.shape[1]), dtype=bool)
        self.from_left: list[Flags] = [nowhere] * len(ids)
        self.from_right: list[Flags] = [nowhere] * len(ids)
        for s in range(len(ids)):
            self.from_left[s] = self._left(s)
        for s in reversed(range(len(ids))):
            self.from_right[s] = self._right(s)

    @property
    def first_impossible(self) -> int | None:
        """The first slot at which nothing can stand; None where everything can be filled.

        Every slot is looked at: where given text leaves no way, one side may have stopped asking and the other not.
        """
        sides = zip(self.from_left, self.from_right, strict=True)
        if all((left_QV & right_QV).any() for left_QV, right_QV in sides):
            return None
        return next(s for s, flags in enumerate(self.from_left) if not flags.any() or s == len(self.ids) - 1)

    def allowed(self, slot: int) -> Flags | None:
        reached_QV = self._reached(slot)
        if (automaton := self._automaton(slot)) is None:
            found: Flags = reached_QV[0] & self.from_right[slot][0]
        else:
            rest_QV = np.take_along_axis(self.from_right[slot], automaton.next_QV, axis=0)
            found = _any_row(reached_QV & rest_QV)
        return found

    def fork(self) -> "ChainRule":
        other = copy(self)
        other.ids, other.hidden = list(self.ids), list(self.hidden)
        other.from_left, other.from_right = list(self.from_left), list(self.from_right)
        return other

    def reveal(self, slot: int, token: int) -> None:
        self.ids[slot], self.hidden[slot] = token, False
        for s in range(slot, len(self.ids)):
            new = self._left(s)
            if s > slot and np.array_equal(new, self.from_left[s]):
                break
            self.from_left[s] = new
        for s in range(slot - 1, -1, -1):
            new = self._right(s)
            if np.array_equal(new, self.from_right[s]):
                break
            self.from_right[s] = new

    def _automaton(self, slot: int) -> TokenAutomaton | None:
        return self.spans[self.span_of[slot]].automaton if self.span_of[slot] >= 0 else None

    def _own(self, slot: int) -> Flags:
        if self.hidden[slot]:
            own: Flags = self.ids_RV[self.role[slot]]
            return own
        known = np.zeros(self.ids_RV.shape[1], dtype=bool)
        known[self.ids[slot]] = True
        return known

    def _accepted(self, slot: int) -> npt.NDArray[np.bool_]:
        """[Q] the states after a slot in which its span may end there."""
        automaton = self._automaton(slot)
        return np.ones(1, dtype=bool) if automaton is None else automaton.accepts_Q

    def _goes_on(self, slot: int) -> bool:
        """Whether a slot is in the same span as the one before it."""
        return slot > 0 and self.span_of[slot] == self.span_of[slot - 1]

    def _reached(self, slot: int) -> Flags:
        """[Q, V] by the state before a slot: which pieces may stand there, seen from the left."""
        automaton = self._automaton(slot)
        own_V = self._own(slot)
        if slot == 0:
            before_QV, entry = np.ones((1, len(own_V)), dtype=bool), True
        else:
            left_QV, entry = self.from_left[slot - 1], not self._goes_on(slot)
            before_QV = _any_row(left_QV[self._accepted(slot - 1)])[None] if entry else left_QV
        reached_QV = self._neighbours(before_QV, slot - 1, forward=True) & own_V
        if not reached_QV.any():  # the text around leaves no way: here its side is not asked
            reached_QV = _rows_with_any(before_QV) & own_V
        if automaton is None or not entry:
            return reached_QV
        placed = np.zeros((automaton.num_states, len(own_V)), dtype=bool)
        placed[automaton.start] = reached_QV[0]
        return placed

    def _left(self, slot: int) -> Flags:
        """[Q, V] states after a slot with the piece at it, reachable from the left."""
        reached_QV, automaton = self._reached(slot), self._automaton(slot)
        if automaton is None:
            return reached_QV
        after_QV = np.zeros_like(reached_QV)
        states, pieces = np.nonzero(reached_QV)
        after_QV[automaton.next_QV[states, pieces], pieces] = True
        after_QV[REFUSED] = False
        return after_QV

    def _right(self, slot: int) -> Flags:
        """[Q, V] states after a slot with the piece at it, from which the rest can be filled."""
        accepted_Q = self._accepted(slot)
        size = self.ids_RV.shape[1]
        if slot == len(self.ids) - 1:
            return np.repeat(accepted_Q[:, None], size, axis=1)
        automaton, rest_QV = self._automaton(slot + 1), self.from_right[slot + 1]
        if automaton is not None:
            rest_QV = np.take_along_axis(rest_QV, automaton.next_QV, axis=0)
        stays = self._goes_on(slot + 1)
        if not stays:
            rest_QV = rest_QV[[0 if automaton is None else automaton.start]]
        rest_QV = rest_QV & self._own(slot + 1)
        before_QV = self._neighbours(rest_QV, slot, forward=False)
        if not (before_QV & self._own(slot)).any():
            before_QV = np.repeat(_rows_with_any(rest_QV), size, axis=1)
        return before_QV if stays else accepted_Q[:, None] & before_QV

    def _neighbours(self, flags_QV: Flags, left: int, *, forward: bool) -> Flags:
        """[Q, V] what may stand beside some piece of each row; `left` is the first slot of the pair."""
        if self.relation is None or left < 0 or not (self.is_ours[left] or self.is_ours[left + 1]):
            return np.repeat(_rows_with_any(flags_QV), flags_QV.shape[1], axis=1)
        return np.stack([self.relation.beside_flags(flags_V, forward=forward) for flags_V in flags_QV])


def _any_row(flags_QV: Flags) -> Flags:
    """[V]"""
    return np.asarray(flags_QV.any(axis=0))


def _rows_with_any(flags_QV: Flags) -> Flags:
    """[Q, 1]"""
    return np.asarray(flags_QV.any(axis=1))[:, None]


def allowed_by(rules: Sequence[Rule], slot: int, role_V: Flags) -> Flags:
    """[V] what a slot's role and every rule allow."""
    found = role_V
    for rule in rules:
        flags = rule.allowed(slot)
        if flags is not None:
            found = found & flags
    return found
