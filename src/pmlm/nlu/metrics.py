"""Figures of classification and regression, as GLUE counts them.

A figure that has no value (a correlation with a constant) is 0, as the leaderboard has it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from pmlm.nlu.tasks import GlueTask, Metric


def accuracy(predicted: Sequence[int], gold: Sequence[int]) -> float:
    return sum(p == g for p, g in zip(predicted, gold, strict=True)) / len(gold)


def f1(predicted: Sequence[int], gold: Sequence[int], positive: int = 1) -> float:
    """Of one class: the harmonic mean of precision and recall."""
    both = sum(p == g == positive for p, g in zip(predicted, gold, strict=True))
    named = sum(p == positive for p in predicted) + sum(g == positive for g in gold)
    return 2 * both / named if named else 0.0


def matthews(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """Matthews' correlation, for any number of classes (Gorodkin 2004)."""
    n, right = len(gold), sum(p == g for p, g in zip(predicted, gold, strict=True))
    said, are = Counter(predicted), Counter(gold)
    above = right * n - sum(said[k] * are[k] for k in said)
    below = math.sqrt(n * n - sum(v * v for v in said.values())) * math.sqrt(n * n - sum(v * v for v in are.values()))
    return above / below if below else 0.0


def pearson(predicted: Sequence[float], gold: Sequence[float]) -> float:
    n = len(gold)
    mean_p, mean_g = math.fsum(predicted) / n, math.fsum(gold) / n
    pairs = [(p - mean_p, g - mean_g) for p, g in zip(predicted, gold, strict=True)]
    size_p, size_g = (math.sqrt(math.fsum(pair[i] ** 2 for pair in pairs)) for i in (0, 1))
    is_constant = len(set(predicted)) == 1 or len(set(gold)) == 1  # rounding would leave a size above 0
    return 0.0 if is_constant or not size_p * size_g else math.fsum(p * g for p, g in pairs) / size_p / size_g


def spearman(predicted: Sequence[float], gold: Sequence[float]) -> float:
    return pearson(ranks(predicted), ranks(gold))


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the least; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    result = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and values[order[end]] == values[order[at]]:
            end += 1
        for i in order[at:end]:
            result[i] = (at + 1 + end) / 2
        at = end
    return result


def score(metric: Metric, predicted: Sequence[float], gold: Sequence[float]) -> float:
    match metric:
        case "accuracy":
            return accuracy(_whole(predicted), _whole(gold))
        case "f1":
            return f1(_whole(predicted), _whole(gold))
        case "matthews":
            return matthews(_whole(predicted), _whole(gold))
        case "pearson":
            return pearson(predicted, gold)
        case "spearman":
            return spearman(predicted, gold)


def task_scores(task: GlueTask, predicted: Sequence[float], gold: Sequence[float]) -> dict[str, float]:
    """The task's metrics, by name; classes are numbered."""
    return {metric: score(metric, predicted, gold) for metric in task.metrics}


def constant_score(task: GlueTask, gold: Sequence[float]) -> float:
    """What the best answer that ignores its input would score: a run that does no better has failed."""
    if task.is_number:
        return 0.0
    guesses = (task_scores(task, [k] * len(gold), gold) for k in range(len(task.labels)))
    return max(mean(scores.values()) for scores in guesses)


def constant_figures(task: GlueTask, gold: Sequence[float]) -> dict[str, float]:
    """The same for each metric alone."""
    if task.is_number:
        return dict.fromkeys(task.metrics, 0.0)
    guesses = [task_scores(task, [k] * len(gold), gold) for k in range(len(task.labels))]
    return {metric: max(scores[metric] for scores in guesses) for metric in task.metrics}


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def deviation(values: Sequence[float]) -> float:
    """Of a sample; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def _whole(values: Sequence[float]) -> list[int]:
    return [int(v) for v in values]
