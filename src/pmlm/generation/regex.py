r"""Regular expressions -> automata over bytes, for constraints on a blank.

Characters, `.`, classes `[a-z]` and `[^a-z]`, `\d`, `\w`, `\s` (and `\D`, `\W`, `\S`), `\n` and `\t`, groups `( )`,
`|`, and the repeats `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`, one after a character or a group. An expression is matched
against the whole text. Classes name ASCII characters; `.`, `\w`, `\D`, `\S` and `[^…]` also match any other character.
"""

from dataclasses import dataclass, field
from typing import Never

import numpy as np

from pmlm.errors import ConstraintError
from pmlm.generation.automata import REFUSED, ByteAutomaton

_MOST_STATES = 2000
_MOST_REPEATS = 100
_MOST_DEEP = 50
_WIDE = 0x80
"""Stands for every character beyond ASCII."""
_DIGITS = frozenset(b"0123456789")
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS | {_WIDE}
_SPACES = frozenset(b" \t\n\r\f\v")
_ALL = frozenset(range(0x80)) | {_WIDE}
_CLASSES = {"d": _DIGITS, "w": _LETTERS, "s": _SPACES, "D": _ALL - _DIGITS, "W": _ALL - _LETTERS, "S": _ALL - _SPACES}
_ESCAPES = {"n": "\n", "t": "\t"}
_MORE = frozenset(range(0x80, 0xC0))
_LEADS = {1: frozenset(range(0xC2, 0xE0)), 2: frozenset(range(0xE0, 0xF0)), 3: frozenset(range(0xF0, 0xF5))}
_SPECIAL = "\\.[]()|*+?{}^$"


@dataclass
class _Graph:
    """Thompson's construction: edges on sets of bytes, and edges on nothing."""

    edges: list[list[tuple[frozenset[int], int]]] = field(default_factory=list)
    skips: list[list[int]] = field(default_factory=list)

    def node(self) -> int:
        self.edges.append([])
        self.skips.append([])
        if len(self.edges) > 20 * _MOST_STATES:
            raise ConstraintError("the regular expression is too large")
        return len(self.edges) - 1

    def closure(self, nodes: frozenset[int]) -> frozenset[int]:
        seen, todo = set(nodes), list(nodes)
        while todo:
            for other in self.skips[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return frozenset(seen)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source, self.at, self.graph = source, 0, _Graph()
        self.depth = 0

    def fail(self, what: str) -> Never:
        raise ConstraintError(f"the regular expression {self.source!r} {what} (at character {self.at})")

    def peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def take(self) -> str:
        self.at += 1
        return self.source[self.at - 1]

    def whole(self, start: int) -> int:
        end = self.alternatives(start)
        if self.at < len(self.source):
            self.fail("closes a group that was not opened")
        return end

    def alternatives(self, start: int) -> int:
        end = self.graph.node()
        while True:
            last = self.sequence(start)
            self.graph.skips[last].append(end)
            if self.peek() != "|":
                return end
            self.take()

    def sequence(self, start: int) -> int:
        here = self.graph.node()
        self.graph.skips[start].append(here)
        while self.peek() and self.peek() not in "|)":
            begin = self.at
            after = self.atom(here)
            here = self.repeats(here, after, begin)
        return here

    def atom(self, start: int) -> int:
        letter = self.take()
        if letter == "(":
            if self.source[self.at : self.at + 2] == "?:":
                self.at += 2
            self.depth += 1
            if self.depth > _MOST_DEEP:
                self.fail(f"has more than {_MOST_DEEP} groups within each other")
            end = self.alternatives(start)
            if self.peek() != ")":
                self.fail("opens a group that is not closed")
            self.take()
            self.depth -= 1
            return end
        if letter == "[":
            return self.character(start, self.character_class())
        if letter == ".":
            return self.character(start, _ALL - {ord("\n")})
        if letter == "\\":
            escaped = self.escaped()
            if isinstance(escaped, frozenset):
                return self.character(start, escaped)
            letter = escaped
        elif letter in _SPECIAL:
            self.at -= 1
            self.fail(f"has {letter!r} where a character or a group is wanted")
        for byte in letter.encode():
            start = self.edge(start, frozenset([byte]))
        return start

    def escaped(self) -> str | frozenset[int]:
        """What stands after a backslash: a character, or a class by its letter."""
        if not self.peek():
            self.fail("ends in a backslash")
        letter = self.take()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter.isalnum() and letter not in _ESCAPES:
            self.at -= 1
            self.fail(f"has an escape that is not known: \\{letter}")
        return _ESCAPES.get(letter, letter)

    def edge(self, start: int, bytes_: frozenset[int]) -> int:
        end = self.graph.node()
        self.graph.edges[start].append((bytes_, end))
        return end

    def character(self, start: int, members: frozenset[int]) -> int:
        """One character of a class; those beyond ASCII take two to four bytes."""
        end = self.edge(start, members - {_WIDE})
        if _WIDE in members:
            for more, leads in _LEADS.items():
                here = self.edge(start, leads)
                for _ in range(more - 1):
                    here = self.edge(here, _MORE)
                self.graph.edges[here].append((_MORE, end))
        return end

    def character_class(self) -> frozenset[int]:
        negated = self.peek() == "^"
        if negated:
            self.take()
        members: set[int] = set()
        first = True
        while first or self.peek() != "]":
            first = False
            if not self.peek():
                self.fail("opens a class that is not closed")
            begin, low = self.at, self.class_member()
            if isinstance(low, frozenset):
                members |= low
            elif self.peek() == "-" and self.source[self.at + 1 : self.at + 2] not in ("]", ""):
                self.take()
                high = self.class_member()
                if isinstance(high, frozenset) or not (low + high).isascii() or low > high:
                    self.fail(f"has a range that cannot be read: {self.source[begin : self.at]}")
                members |= set(range(ord(low), ord(high) + 1))
            elif low.isascii():
                members.add(ord(low))
            else:
                self.fail(f"has a class with {low!r}: classes name ASCII characters, use ( | ) for others")
        self.take()
        return _ALL - members if negated else frozenset(members)

    def class_member(self) -> str | frozenset[int]:
        letter = self.take()
        return self.escaped() if letter == "\\" else letter

    def repeats(self, start: int, end: int, begin: int) -> int:
        if not self.is_repeat():
            return end
        low, high = self.bounds()
        stop = self.at
        if self.is_repeat():
            self.fail("has a repeat of a repeat: put the first in ( )")
        if high is None and low <= 1:
            return self.loop(start, end, optional=low == 0)
        # copies of the same source: the first is already there
        ends = [start, end]
        for _ in range(max(low, high if high is not None else low + 1) - 1):
            self.at = begin
            ends.append(self.atom(ends[-1]))
        self.at = stop
        if high is None:
            return self.loop(ends[-2], ends[-1], optional=True)
        final = self.graph.node()
        for reached in ends[low:]:
            self.graph.skips[reached].append(final)
        return final

    def is_repeat(self) -> bool:
        return self.peek() != "" and self.peek() in "*+?{"

    def loop(self, start: int, end: int, *, optional: bool) -> int:
        self.graph.skips[end].append(start)
        if optional:
            self.graph.skips[start].append(end)
        after = self.graph.node()
        self.graph.skips[end].append(after)
        return after

    def bounds(self) -> tuple[int, int | None]:
        letter = self.take()
        if letter != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[letter]
        close = self.source.find("}", self.at)
        low, comma, high = self.source[self.at : max(close, self.at)].partition(",")
        if close < 0 or not low.isdigit() or (high and not high.isdigit()):
            self.fail("has a repeat that cannot be read: write {2} or {2,5}")
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > _MOST_REPEATS or (most is not None and most < least) or most == 0:
            self.fail(f"has a repeat out of range: from 1 to {_MOST_REPEATS}, the larger last")
        self.at = close + 1
        return least, most


def compile_regex(source: str) -> ByteAutomaton:
    """The texts that an expression matches from beginning to end."""
    parser = _Parser(source)
    begin = parser.graph.node()
    final = parser.whole(begin)
    graph = parser.graph
    first = graph.closure(frozenset([begin]))
    states: dict[frozenset[int], int] = {frozenset(): REFUSED, first: 1}
    table = [np.zeros(256, dtype=np.int32), np.zeros(256, dtype=np.int32)]
    todo = [first]
    while todo:
        here = todo.pop()
        reached: list[set[int]] = [set() for _ in range(256)]
        for node in here:
            for bytes_, target in graph.edges[node]:
                for byte in bytes_:
                    reached[byte].add(target)
        closed: dict[frozenset[int], frozenset[int]] = {}
        for byte in range(256):
            raw = frozenset(reached[byte])
            if raw not in closed:
                closed[raw] = graph.closure(raw)
            state = closed[raw]
            if state not in states:
                if len(states) > _MOST_STATES:
                    raise ConstraintError(f"the regular expression {source!r} is too large")
                states[state] = len(table)
                table.append(np.zeros(256, dtype=np.int32))
                todo.append(state)
            table[states[here]][byte] = states[state]
    accepts = np.array([final in state for state in sorted(states, key=lambda s: states[s])], dtype=bool)
    return ByteAutomaton(1, np.stack(table), accepts)
