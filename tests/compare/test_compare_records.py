"""Records: made once, under their settings, by one process at a time."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_helpers import TINY

from pmlm.compare.protocol import arm_settings
from pmlm.compare.records import once, read_record, timed
from pmlm.config import to_dict
from pmlm.errors import DataError
from pmlm.keeping import locked


def test_a_result_is_made_once_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path, lock = tmp_path / "a" / "b.json", tmp_path / "lock"
    settings = {"measure": {"exact": 8, "seeds": (1, 2)}}
    once(path, settings, lambda: {"x": 1}, lock)
    record = once(path, settings, lambda: pytest.fail("made twice"), lock)
    assert record is not None
    assert record["x"] == 1
    assert {"pmlm", "commit", "seconds", "machine"} <= record["made"].keys()
    with pytest.raises(DataError, match=r"b\.json was made under other settings \(measure\.exact\)"):
        once(path, {"measure": {"exact": 9, "seeds": (1, 2)}}, dict, lock)
    for damaged in ("{", "[]"):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"b\.json is damaged"):
            once(path, settings, dict, lock)


def test_seconds_of_a_result_count_stretches_that_were_stopped(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "locks" / "b"

    def stopped() -> dict[str, Any]:
        time.sleep(0.3)
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            once(path, {}, stopped, lock)
    record = once(path, {}, lambda: {"x": 1}, lock)
    assert record is not None
    assert 0.6 <= record["made"]["seconds"] < 5
    with timed(lock) as seconds:
        assert seconds() < 0.3  # what is done is forgotten


def test_a_copy_says_how_the_original_was_made(tmp_path: Path) -> None:
    once(tmp_path / "a.json", {}, lambda: {"x": 1}, tmp_path / "lock")
    first = read_record(tmp_path / "a.json")
    first["made"]["seconds"] = 77.0
    assert once(tmp_path / "b.json", {}, lambda: first, tmp_path / "lock") == first


def test_a_result_stands_where_only_what_changes_no_figure_has_changed(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "lock"
    run = arm_settings(TINY, "gpt-a", 1)
    once(path, {"run": to_dict(run)}, lambda: {"x": 1}, lock)
    same = replace(
        run, name="x", about="y", precision="bf16", micro_rows=3,
        saving=replace(run.saving, every=7, keep=5), evaluation=replace(run.evaluation, every=3, rows=9),
    )  # fmt: skip
    assert once(path, {"run": to_dict(same)}, dict, lock) == read_record(path)
    for changed, name in (
        (replace(run, num_steps=9), "num_steps"),
        (replace(run, batch_rows=9), "batch_rows"),
        (replace(run, optim=replace(run.optim, lr=9.0)), r"optim\.lr"),
        (replace(run, saving=replace(run.saving, export="best")), r"saving\.export"),
    ):
        with pytest.raises(DataError, match=rf"other settings \(run\.{name}\)"):
            once(path, {"run": to_dict(changed)}, dict, lock)


def test_what_another_process_is_at_is_left_to_it(tmp_path: Path) -> None:
    path, lock = tmp_path / "b.json", tmp_path / "lock"
    with locked(lock) as is_ours:
        assert is_ours
        assert once(path, {}, lambda: pytest.fail("made twice at once"), lock) is None
    assert once(path, {}, lambda: {"x": 1}, lock) == read_record(path)
