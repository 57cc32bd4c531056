"""Words split off by BERT's tokenizer, put together again with the spacing that a reader expects.

A guess by rules, since the ids do not hold the spaces: closing marks lean left, opening marks lean right, quotes
alternate, apostrophes and hyphens between letters and points between digits join. Text that a user gave is never
passed through here: it is kept as it was.
"""

from collections.abc import Sequence

_LEFT = set(".,;:!?%)]}»…’”")
_RIGHT = set("([{«“‘$£€#")
_JOINING = {"-", "/", "'", "’", "@", "_", "&"}
_SUFFIXES = {"s", "t", "re", "ve", "m", "ll", "d", "S", "T"}


def join_words(words: Sequence[str]) -> str:
    """One text from words and single punctuation marks."""
    text = ""
    open_quotes: set[str] = set()
    glue = True  # whether the next word is written without a space before it
    for i, word in enumerate(words):
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        if word in ('"', "'") and not (word == "'" and _is_apostrophe(before, after)):
            closing = word in open_quotes
            text += word if glue or closing else " " + word
            glue = not closing
            open_quotes ^= {word}
            continue
        text += word if glue or _leans_left(word, before, after) else " " + word
        glue = word in _RIGHT or _joins_right(word, before, after)
    return text


def _is_apostrophe(before: str, after: str) -> bool:
    return before[-1:].isalpha() and after in _SUFFIXES


def _leans_left(word: str, before: str, after: str) -> bool:
    if word in _LEFT:
        return True
    if word == "'":
        return _is_apostrophe(before, after)
    return word in _JOINING and before[-1:].isalnum() and after[:1].isalnum() and word != "&"


def _joins_right(word: str, before: str, after: str) -> bool:
    if word == "'":
        return _is_apostrophe(before, after)
    if word in (".", ",", ":"):
        return before[-1:].isdigit() and after[:1].isdigit()
    return word in _JOINING and before[-1:].isalnum() and after[:1].isalnum() and word != "&"
