"""What texts look like to somebody who counts: variety within a text and between texts.

A judge's bits per byte alone can be won by dull text, so these stand beside it. All of them count words and marks in
small letters, the same for every model; they depend on how many texts there are and how long, so that compared sets
need equally many, equally long texts.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

_WORDS = re.compile(r"\w+(?:'\w+)?|[^\w\s]")
Gram = tuple[str, ...]


def words_of(text: str) -> list[str]:
    """Words (with what follows an apostrophe) and single marks, in small letters."""
    return _WORDS.findall(text.lower())


def grams(words: Sequence[str], n: int) -> list[Gram]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct(texts: Sequence[str], n: int) -> float:
    """distinct-n: different n-grams over all n-grams, of all texts together; 0 where there are none."""
    counts = Counter(gram for text in texts for gram in grams(words_of(text), n))
    return len(counts) / max(counts.total(), 1)


def repetition(texts: Sequence[str], n: int = 4) -> float:
    """The share of n-grams that stood before in the same text."""
    per_text = [grams(words_of(text), n) for text in texts]
    total = sum(map(len, per_text))
    return (total - sum(len(set(each)) for each in per_text)) / max(total, 1)


def entropy(texts: Sequence[str]) -> float:
    """Bits: the entropy of the words of a text, averaged over texts. A text that goes round in circles has little."""
    return math.fsum(_entropy(Counter(words_of(text))) for text in texts) / max(len(texts), 1)


def _entropy(counts: Counter[str]) -> float:
    total = counts.total()
    return -math.fsum(c / total * math.log2(c / total) for c in counts.values())


def self_bleu(texts: Sequence[str], most: int = 4) -> float:
    """BLEU of each text with all the others as references, averaged: the higher, the more alike the texts are.

    Up to `most`-grams, equally weighted; the brevity penalty takes the reference nearest in length (the shorter of
    equals); an order of n-grams without any match counts as a tenth of a match, so that no text scores zero for
    lacking one.
    """
    if len(texts) < 2:
        return 0.0
    words = [words_of(text) for text in texts]
    counts = [[Counter(grams(each, n)) for each in words] for n in range(1, most + 1)]
    tops = [_top_two(per_text) for per_text in counts]
    lengths = [len(each) for each in words]
    scores = [
        _bleu([(per_text[i], top) for per_text, top in zip(counts, tops, strict=True)], i, lengths)
        for i in range(len(texts))
    ]
    return math.fsum(scores) / len(scores)


Top = dict[Gram, tuple[int, int, int]]
"""Of each n-gram: its largest count in one text, which text that is, and its largest count in any other."""


def _top_two(per_text: Sequence[Counter[Gram]]) -> Top:
    tops: Top = {}
    for i, counts in enumerate(per_text):
        for gram, count in counts.items():
            best, where, second = tops.get(gram, (0, -1, 0))
            tops[gram] = (count, i, best) if count > best else (best, where, max(second, count))
    return tops


def _bleu(orders: Sequence[tuple[Counter[Gram], Top]], i: int, lengths: Sequence[int]) -> float:
    logs = []
    for counts, tops in orders:
        if not counts:
            break  # a text shorter than n has no n-grams to be judged by
        matches = 0
        for gram, count in counts.items():
            best, where, second = tops[gram]
            matches += min(count, second if where == i else best)
        logs.append(math.log(max(matches, 0.1) / counts.total()))
    if not logs:
        return 0.0
    others = itertools.chain(lengths[:i], lengths[i + 1 :])
    nearest = min(others, key=lambda n: (abs(n - lengths[i]), n))
    return math.exp(min(0.0, 1 - nearest / lengths[i]) + math.fsum(logs) / len(logs))


def text_statistics(texts: Sequence[str]) -> dict[str, Any]:
    """All of them, in plain data."""
    return {
        "texts": len(texts),
        "words": sum(len(words_of(text)) for text in texts),
        **{f"distinct_{n}": distinct(texts, n) for n in (1, 2, 3)},
        "repetition_4": repetition(texts),
        "entropy_bits": entropy(texts),
        "self_bleu": self_bleu(texts),
    }
