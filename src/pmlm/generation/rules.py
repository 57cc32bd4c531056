"""What may still come out at a hidden slot, given what is known around it: constraints inside decoding.

A rule is a relation on the whole row; at any moment it answers which ids at a slot leave *some* way to fill every
other hidden slot of the row. Both kinds are exact for themselves, in every order, by a pass from the left and a pass
from the right over what is unknown:

- `NeighbourRule`: which piece may stand beside which (whole words, from a `WordTable`);
- `AutomatonRule`: the row's text must be accepted by an automaton (pmlm.generation.automata).

Two rules together are only checked one by one, so a row can, rarely, be driven into a corner.

Shapes: L slots, V vocabulary, Q states, R roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from pmlm.generation.automata import TokenAutomaton
from pmlm.tokenizer import Tokenizer
from pmlm.words import Flags, PieceKinds, WordTable

_MOST_SETS = 2048


class Rule(Protocol):
    """A constraint on one row that is being filled."""

    def allowed(self, slot: int) -> Flags | None:
        """[V] the ids that leave a way to fill the rest; None where all do."""
        ...

    def reveal(self, slot: int, token: int) -> None: ...


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


def ending_nowhere(relation: Neighbours, pieces: Sequence[int]) -> Neighbours:
    """The same relation, but for pieces that may no longer be the end of a word."""
    ends_V = relation.table.ends_V.copy()
    ends_V[list(pieces)] = False
    return Neighbours(relation.kinds, replace(relation.table, ends_V=ends_V), relation.ids_RV)


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


class AutomatonRule:
    """The row must be accepted by an automaton over its pieces."""

    def __init__(
        self,
        automaton: TokenAutomaton,
        ids: Sequence[int],
        hidden: Sequence[bool],
        role: Sequence[int],
        ids_RV: Flags,
    ) -> None:
        self.automaton, self.ids, self.hidden = automaton, list(ids), list(hidden)
        self.role, self.reach_RQQ = role, automaton.reach(ids_RV)
        size = len(ids) + 1
        self.left = np.zeros((size, automaton.num_states), dtype=bool)  # states possible before slot s
        self.right = np.zeros((size, automaton.num_states), dtype=bool)  # states before slot s that can be accepted
        self.left[0, automaton.start] = True
        self.right[-1] = automaton.accepts_Q
        self._sweep_right(0)
        self._sweep_left(len(ids))

    @property
    def is_possible(self) -> bool:
        return bool((self.left[0] & self.right[0]).any())

    def allowed(self, slot: int) -> Flags | None:
        states = np.flatnonzero(self.left[slot])
        good_QV = self.right[slot + 1][self.automaton.next_QV[states]]
        allowed: Flags = good_QV.any(axis=0)
        return allowed

    def reveal(self, slot: int, token: int) -> None:
        self.ids[slot], self.hidden[slot] = token, False
        self._sweep_right(slot)
        self._sweep_left(slot + 1)

    def _sweep_right(self, first: int) -> None:
        for s in range(first, len(self.ids)):
            new = np.zeros_like(self.left[s])
            if self.hidden[s]:
                new = self.reach_RQQ[self.role[s]][self.left[s]].any(axis=0)
            else:
                new[self.automaton.next_QV[self.left[s], self.ids[s]]] = True
            if s > first and np.array_equal(new, self.left[s + 1]):
                return
            self.left[s + 1] = new

    def _sweep_left(self, last: int) -> None:
        for s in range(last - 1, -1, -1):
            if self.hidden[s]:
                new = self.reach_RQQ[self.role[s]][:, self.right[s + 1]].any(axis=1)
            else:
                new = self.right[s + 1][self.automaton.next_QV[:, self.ids[s]]]
            if s < last - 1 and np.array_equal(new, self.right[s]):
                return
            self.right[s] = new


def allowed_by(rules: Sequence[Rule], slot: int, role_V: Flags) -> Flags:
    """[V] what a slot's role and every rule allow."""
    found = role_V
    for rule in rules:
        flags = rule.allowed(slot)
        if flags is not None:
            found = found & flags
    return found
