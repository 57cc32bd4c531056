"""SQuAD 2.0's figures with the semantics of its official script: normalised answers, several golds, no-answer, and
the search of the threshold above which nothing is answered. Shares, not percent.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    bare = "".join(c for c in answer.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(predicted: str, gold: str) -> float:
    return float(normalise(predicted) == normalise(gold))


def f1(predicted: str, gold: str) -> float:
    """Over words as a bag; where either has none, both must have none."""
    said, meant = normalise(predicted).split(), normalise(gold).split()
    if not said or not meant:
        return float(said == meant)
    shared = (Counter(said) & Counter(meant)).total()
    return 2 * shared / (len(said) + len(meant))


def answer_scores(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """(exact, f1) against the best of the golds; golds that normalise to nothing do not count, none: no answer."""
    meant = [gold for gold in golds if normalise(gold)] or [""]
    return max(exact(predicted, gold) for gold in meant), max(f1(predicted, gold) for gold in meant)


def squad_scores(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """exact and f1 over all questions, over those that have an answer, and over those that have none."""
    scores = {key: answer_scores(predictions[key], gold) for key, gold in golds.items()}
    parts = {
        "": list(golds),
        "HasAns_": [key for key, gold in golds.items() if gold],
        "NoAns_": [key for key, gold in golds.items() if not gold],
    }
    return {
        f"{part}{name}": sum(scores[key][i] for key in keys) / len(keys)
        for part, keys in parts.items()
        if keys
        for i, name in enumerate(("exact", "f1"))
    }


def best_threshold(
    scores: Mapping[str, float], no_answer: Mapping[str, float], has_answer: Mapping[str, bool], says: Mapping[str, str]
) -> tuple[float, float]:
    """The best mean score over all thresholds, and the least threshold that reaches it.

    `scores` are those of the best spans; a question goes unanswered where its `no_answer` exceeds the threshold. From
    answering nothing, questions are answered one by one, the surest first.
    """
    current = best = float(sum(not has for has in has_answer.values()))
    keys = sorted(no_answer, key=lambda key: no_answer[key])
    threshold = no_answer[keys[0]] - 1.0  # below all: nothing is answered
    for key in keys:
        current += scores[key] if has_answer[key] else -1.0 if says[key] else 0.0
        if current > best:
            best, threshold = current, no_answer[key]
    return best / len(keys), threshold
