"""What is asked of a text, as rules for the canvases that it is written on.

Options of blanks, wishes for the whole text and whole words are one exact rule as far as that can be carried: a piece
is allowed where some way is left to fill the rest under all of them. What can never be had is said before any work.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pmlm.errors import ConstraintError
from pmlm.generation.automata import TokenAutomaton, over_pieces, unfinished
from pmlm.generation.canvas import Canvas
from pmlm.generation.constraints import blank_automaton, text_automaton
from pmlm.generation.rules import ChainRule, NeighbourRule, Neighbours, Rule, Span
from pmlm.generation.template import Blank
from pmlm.words import Flags

MOST_STATES = 3000
"""Of a blank's options times those of the wishes for the whole text; beyond, the two are asked one by one."""


class RuleMaker:
    """The rules of canvases, from options of their blanks and wishes for the whole text."""

    def __init__(
        self,
        relation: Neighbours | None,
        pieces: Sequence[bytes],
        ids_RV: Flags,
        ban: Sequence[str],
        num_words: int | None,
    ) -> None:
        self.relation, self.pieces, self.ids_RV = relation, pieces, ids_RV
        self.wish = text_automaton(ban, num_words)
        names = [name for name, is_there in (("the banned words", ban), ("the number of words", num_words)) if is_there]
        self.wish_name = " and ".join(names)
        self._of_blank: dict[tuple[bool | None, tuple[tuple[str, str], ...]], TokenAutomaton] = {}

    @cached_property
    def whole(self) -> TokenAutomaton | None:
        return None if self.wish is None else over_pieces(self.wish, self.pieces)

    @cached_property
    def whole_unfinished(self) -> TokenAutomaton | None:
        return None if self.wish is None else over_pieces(unfinished(self.wish), self.pieces)

    def __call__(self, canvas: Canvas, *, is_final: bool = True, is_strict: bool = False) -> list[Rule]:
        """ConstraintError where something can never be had; `is_strict`: not in words that the model knows.

        Before it is final, the text may still become longer.
        """
        spans, whole = self._spans(canvas), self.whole if is_final else self.whole_unfinished
        if not spans and whole is None:
            return [] if self.relation is None else [NeighbourRule(self.relation, *_row(canvas))]
        most = max((span.automaton.num_states for span in spans), default=1) * (whole.num_states if whole else 1)
        if spans and whole is not None and most > MOST_STATES:
            return [self._chain(canvas, spans, None, is_strict), self._chain(canvas, [], whole, is_strict)]
        return [self._chain(canvas, spans, whole, is_strict)]

    def _spans(self, canvas: Canvas) -> list[Span]:
        found = []
        for segment, (start, end) in zip(canvas.template.segments, canvas.spans, strict=True):
            if isinstance(segment, Blank) and segment.limits:
                key = (segment.starts_word, segment.limits)
                if key not in self._of_blank:
                    self._of_blank[key] = over_pieces(blank_automaton(*key), self.pieces)
                found.append(Span(start, end, self._of_blank[key]))
        return found

    def _chain(self, canvas: Canvas, spans: list[Span], whole: TokenAutomaton | None, is_strict: bool) -> ChainRule:
        """Options come before whole words: where they ask for words never seen, their blanks are let loose."""
        rule = self._rule(canvas, spans, whole)
        if rule.first_impossible is not None and not is_strict and self.relation is not None and spans:
            alone = [self._rule(canvas, [span], None).first_impossible is not None for span in spans]
            for loose in (alone, [True] * len(spans)):
                marked = [replace(span, is_loose=is_loose) for span, is_loose in zip(spans, loose, strict=True)]
                rule = self._rule(canvas, marked, whole)
                if rule.first_impossible is None:
                    break
        if (slot := rule.first_impossible) is not None:
            raise ConstraintError(
                f"nothing that the template leaves open can satisfy {self._at_fault(canvas, spans, whole)}: "
                f"no way is left at position {slot - 1}"
            )
        return rule

    def _rule(self, canvas: Canvas, spans: Sequence[Span], whole: TokenAutomaton | None) -> ChainRule:
        return ChainRule(self.relation, spans, *_row(canvas), self.ids_RV, whole)

    def _at_fault(self, canvas: Canvas, spans: list[Span], whole: TokenAutomaton | None) -> str:
        """Of an impossible canvas: which part of what is asked for is impossible by itself."""
        options = "a blank's options"
        if whole is None or not spans:
            return self.wish_name if whole is not None else options
        loose = [replace(span, is_loose=True) for span in spans]
        if self._rule(canvas, loose, None).first_impossible is not None:
            return options
        if self._rule(canvas, [], whole).first_impossible is not None:
            return self.wish_name
        return f"{options} together with {self.wish_name}"


def _row(canvas: Canvas) -> tuple[Sequence[int], Sequence[bool], Sequence[int]]:
    return canvas.row.ids, canvas.row.maskable, canvas.role
