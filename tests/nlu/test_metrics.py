"""Metrics against hand-computed values, against scikit-learn and scipy where they are installed, and by their laws."""

import math
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pmlm.nlu.metrics import (
    accuracy,
    constant_figures,
    constant_score,
    deviation,
    f1,
    matthews,
    pearson,
    ranks,
    spearman,
    task_scores,
)
from pmlm.nlu.tasks import find_tasks

PREDICTED, GOLD = [1, 1, 0, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0, 1, 1]
# true positives 3, false positives 1, false negatives 2, true negatives 2


def test_hand_computed_values_of_classes() -> None:
    assert accuracy(PREDICTED, GOLD) == 5 / 8
    assert f1(PREDICTED, GOLD) == 2 * 3 / (4 + 5)
    assert matthews(PREDICTED, GOLD) == pytest.approx((3 * 2 - 1 * 2) / math.sqrt(4 * 5 * 3 * 4))
    assert f1([0, 0], [0, 0]) == 0
    assert matthews([1, 1, 1], [0, 1, 1]) == 0
    assert matthews([0, 1, 2], [0, 1, 2]) == pytest.approx(1)


def test_hand_computed_values_of_numbers() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 30, 400], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert pearson([2, 2, 2], [1, 2, 3]) == 0
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert deviation([1.0]) == 0


classes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
numbers = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2, max_size=40)


@unhurried
@given(classes)
def test_figures_of_classes_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    predicted, gold = zip(*pairs, strict=True)
    two = [[min(x, 1) for x in side] for side in (predicted, gold)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is one class alone
        assert accuracy(predicted, gold) == pytest.approx(sklearn.accuracy_score(gold, predicted))
        assert f1(two[0], two[1]) == pytest.approx(sklearn.f1_score(two[1], two[0], zero_division=0))
        assert matthews(predicted, gold) == pytest.approx(sklearn.matthews_corrcoef(gold, predicted), abs=1e-9)


@unhurried
@given(numbers)
def test_correlations_are_scipys(pairs: list[tuple[int, int]]) -> None:
    stats: Any = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    predicted, gold = zip(*pairs, strict=True)
    if len(set(predicted)) == 1 or len(set(gold)) == 1:
        assert pearson(predicted, gold) == spearman(predicted, gold) == 0
        return
    assert pearson(predicted, gold) == pytest.approx(stats.pearsonr(predicted, gold)[0], abs=1e-9)
    assert spearman(predicted, gold) == pytest.approx(stats.spearmanr(predicted, gold)[0], abs=1e-9)


@unhurried
@given(numbers, st.integers(1, 9), st.integers(-9, 9))
def test_correlations_do_not_depend_on_the_scale_and_spearman_on_order_alone(
    pairs: list[tuple[int, int]], factor: int, shift: int
) -> None:
    predicted, gold = zip(*pairs, strict=True)
    assert pearson([factor * x + shift for x in predicted], gold) == pytest.approx(pearson(predicted, gold), abs=1e-9)
    assert spearman([x**3 for x in predicted], gold) == pytest.approx(spearman(predicted, gold), abs=1e-9)
    assert -1 - 1e-9 <= pearson(predicted, gold) <= 1 + 1e-9


@unhurried
@given(classes)
def test_matthews_does_not_depend_on_the_names_of_classes(pairs: list[tuple[int, int]]) -> None:
    predicted, gold = zip(*pairs, strict=True)
    renamed = [[(x + 1) % 3 for x in side] for side in (predicted, gold)]
    assert matthews(renamed[0], renamed[1]) == pytest.approx(matthews(predicted, gold))
    assert matthews(gold, predicted) == pytest.approx(matthews(predicted, gold))


def test_tasks_have_the_leaderboards_metrics() -> None:
    assert {task.name: task.metrics for task in find_tasks(["all"])} == {
        "CoLA": ("matthews",),
        "SST-2": ("accuracy",),
        "MRPC": ("f1", "accuracy"),
        "STS-B": ("pearson", "spearman"),
        "QQP": ("f1", "accuracy"),
        "MNLI": ("accuracy",),
        "QNLI": ("accuracy",),
        "RTE": ("accuracy",),
        "WNLI": ("accuracy",),
    }
    (mrpc,) = find_tasks(["mrpc"])
    assert task_scores(mrpc, PREDICTED, GOLD) == {"f1": 2 * 3 / 9, "accuracy": 5 / 8}


def test_a_constant_answer_scores_the_majority_and_no_correlation() -> None:
    mrpc, cola, stsb = find_tasks(["MRPC", "CoLA", "STS-B"])
    assert constant_score(mrpc, GOLD) == pytest.approx((2 * 5 / 13 + 5 / 8) / 2)
    assert constant_figures(mrpc, GOLD) == {"f1": pytest.approx(2 * 5 / 13), "accuracy": 5 / 8}
    assert constant_figures(stsb, [1.0, 2.0]) == {"pearson": 0, "spearman": 0}
    assert constant_score(cola, GOLD) == 0
    assert constant_score(stsb, [1.0, 2.0]) == 0
