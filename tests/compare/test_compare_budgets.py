"""What each model had learnt for which budget, and how steps are timed."""

import json
from pathlib import Path
from typing import Any

from compare_helpers import TINY

from pmlm.compare.arms import ARMS
from pmlm.compare.budgets import arithmetic_table, time_table
from pmlm.compare.layout import read_results
from pmlm.compare.protocol import arm_settings
from pmlm.compare.tables import report
from pmlm.compare.timing import step_seconds
from pmlm.compare.units import TIMING
from pmlm.config import to_dict
from pmlm.training.plan import work_per_token
from pmlm.training.trainer import StepReport


def test_a_model_is_told_when_gpt_had_its_bits(tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    curves = {"gpt-a": ("causal", [3.0, 2.0, 1.0]), "u-pmlm-r": ("bidirectional", [3.0, 2.5, 1.75]),
              "bert-a": ("bidirectional", [5.0, 4.0, 3.5])}  # fmt: skip
    for name, (visibility, bits) in curves.items():
        curve = [
            {"tokens": 1e6 * (i + 1), "seconds": 60.0 * (i + 1), "bits_per_byte": {visibility: {"8": 9.0, "16": value}}}
            for i, value in enumerate(bits)
        ]
        figures = {"parameters": 2.6e6, "tokens": 3e6, "training_seconds": 180.0, "curve": curve}
        about = {"model": name, "title": ARMS[name].title, "seed": 1}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
    text = report(read_results(tmp_path), "tiny")
    assert "| u-PMLM-R | 1 | 2.6M | 3.00M | – | – | bidirectional 1.750 | 2.25M |" in text
    assert "| BERT | 1 | 2.6M | 3.00M | – | – | bidirectional 3.500 | – |" in text  # before its first evaluation
    assert "| GPT | 1 | 2.6M | 3.00M | – | – | causal 1.000 | – |" in text


def test_models_are_compared_for_the_budget_of_bert(tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    for name in ("bert-a", "aplm-r", "aplm-r-equal-work"):
        settings = arm_settings(TINY, name, 1)
        points = [
            {"tokens": tokens, "seconds": 1.0, "bits_per_byte": {"order-causal": {"16": bits}}}
            for tokens, bits in ((250_000, 3.0), (800_000, 2.5), (1_000_000, 2.25))
        ]
        figures = {"parameters": 9, "tokens": 1_000_000, "training_seconds": 1.0, "curve": points}
        about = {"model": name, "title": ARMS[name].title, "seed": 1, "settings": {"run": to_dict(settings)}}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
    dearer = work_per_token(arm_settings(TINY, "aplm-r", 1)) / work_per_token(arm_settings(TINY, "bert-a", 1))
    assert 1.25 < dearer < 4
    text = arithmetic_table(read_results(tmp_path))
    assert "| BERT | 1 | 1.00M | 2.250 |" in text
    assert "| APLM-R | 1 | 0.25M | 3.000 |" in text
    assert f"| APLM-R | 1 | 0.0M | 1.00M | {dearer:.2f} | – |" in report(read_results(tmp_path), "tiny")
    assert time_table(read_results(tmp_path)) == ""  # no times are known that could be compared
    timed = {"bert-a": {"token_seconds": 2.0}, "aplm-r": {"token_seconds": 2.4}}
    (tmp_path / TIMING).write_text(json.dumps({"models": timed}))
    text = time_table(read_results(tmp_path))
    assert "| APLM-R | 1 | 0.80M | 2.500 |" in text
    assert "| APLM-R, u-PMLM-R's arithmetic | 1 | 0.80M | 2.500 |" in text  # as quick as its like
    assert f"| APLM-R | 1 | 0.0M | 1.00M | {dearer:.2f} | 1.20 |" in report(read_results(tmp_path), "tiny")


def test_steps_are_timed_in_turn_and_the_first_is_not_counted() -> None:
    turns: list[str] = []

    def steps(name: str, seconds: list[float]) -> Any:
        for number, value in enumerate(seconds, 1):
            turns.append(name)
            yield StepReport(number, 0.0, (), 0.0, 0.0, tokens=100 * number, seconds=value)

    advanced: list[int] = []
    found = step_seconds(
        {"a": steps("a", [9.0, 1.0, 2.0, 7.0]), "b": steps("b", [9.0, 4.0, 4.0, 4.0])}, 3, advanced.append
    )
    assert turns == ["a", "b"] * 4
    assert sum(advanced) == 8
    assert found == {
        "a": {"step_seconds": 2.0, "token_seconds": 0.02},
        "b": {"step_seconds": 4.0, "token_seconds": 0.04},
    }
