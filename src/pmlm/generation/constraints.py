"""What a blank's options and a text's wishes mean, as automata.

A blank's options speak of its filling without the space before it; the automaton reads that space too.
"""

import re
from collections.abc import Sequence
from functools import reduce

from pmlm.errors import TemplateError
from pmlm.generation.automata import ByteAutomaton, exactly_words, intersection, without_words
from pmlm.generation.regex import compile_regex

_ANYTHING = "(.|\n)*"
_SPACE = {True: " ", False: "", None: " ?"}


def blank_automaton(starts_word: bool | None, limits: Sequence[tuple[str, str]]) -> ByteAutomaton:
    """What the text at a blank with such limits (at least one) must look like."""
    for name, value in limits:
        if name == "regex":
            compile_regex(value)  # by itself first: what is wrong is said in its own words
    lead = _SPACE[starts_word]
    return reduce(intersection, [compile_regex(f"{lead}({_expression(*limit)})") for limit in limits])


def _expression(name: str, value: str) -> str:
    match name:
        case "starts":
            return _quote(value) + _ANYTHING
        case "ends":
            return _ANYTHING + _quote(value)
        case "digits":
            return "[0-9]+"
        case "line":
            return ".+"
        case "regex":
            return value
        case _:
            return "|".join(map(_quote, listed_choices(value)))


def listed_choices(value: str) -> list[str]:
    """The texts of an option in=…; spaces around them mean nothing."""
    choices = [choice.replace("\\,", ",").strip() for choice in re.split(r"(?<!\\),", value)]
    if not all(choices):
        raise TemplateError(f"an empty choice in in={value}")
    return choices


def choices_value(choices: Sequence[str]) -> str:
    """The inverse of `listed_choices`."""
    return ",".join(choice.replace(",", "\\,") for choice in choices)


def _quote(text: str) -> str:
    return re.sub(r"[\\.\[\]()|*+?{}^$]", r"\\\g<0>", text)


def text_automaton(ban: Sequence[str], num_words: int | None) -> ByteAutomaton | None:
    """What the whole text must look like; None where it is free."""
    wishes = [without_words(ban)] if ban else []
    if num_words is not None:
        wishes.append(exactly_words(num_words))
    return reduce(intersection, wishes) if wishes else None
