"""Notes of a study, runs that go on after they were stopped, settings that make no sense."""

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from bench_helpers import DOCUMENTS, heldout

from pmlm.bench.coverage import CoverageSettings
from pmlm.bench.lengths import LengthSettings, study_lengths
from pmlm.bench.orders import OrderSettings
from pmlm.bench.stories import StorySettings
from pmlm.bench.study import Notes, notes_path, read_document, run_study
from pmlm.cli import studies
from pmlm.errors import ConfigError
from pmlm.lm import LM


def test_notes_go_on_where_they_were_and_drop_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    notes = Notes(path, {"seed": 1})
    assert notes.get("a", lambda: (1, 2.5)) == [1, 2.5]
    notes.get("b", lambda: "x")
    path.write_text(path.read_text()[:-4])
    again = Notes(path, {"seed": 1})
    assert again.get("a", lambda: pytest.fail("measured twice")) == [1, 2.5]
    assert again.get("b", lambda: "y") == "y"
    assert Notes(path, {"seed": 1}).known == {"a": [1, 2.5], "b": "y"}
    with pytest.raises(ConfigError, match="begun with other settings"):
        Notes(path, {"seed": 2})


def test_a_study_that_was_stopped_ends_like_one_that_was_not(model: LM, tmp_path: Path) -> None:
    settings = LengthSettings(items=3, longest_span=4)

    def study(out: Path, stop_after: int | None = None) -> dict:
        seen = Counter[str]()

        def advance(done: int) -> None:
            seen["items"] += done
            if seen["items"] == stop_after:
                raise KeyboardInterrupt

        return run_study("lengths", out, model, heldout(tmp_path), {"items": 3}, "pmlm bench lengths",
                         lambda notes: study_lengths(model, DOCUMENTS, settings, notes, advance))  # fmt: skip

    whole = study(tmp_path / "whole.json")
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "part.json", stop_after=4)
    assert notes_path(tmp_path / "part.json").read_text().count("\n") == 1 + 4  # settings, then what was measured
    assert study(tmp_path / "part.json")["result"] == whole["result"]
    assert not notes_path(tmp_path / "part.json").exists()
    assert read_document(tmp_path / "part.json")["provenance"]["model"]["weights_sha256"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"shares": (0.0,)}, "above 0"), ({"orders": ("1,0",)}, "by name"), ({"rows": 0}, "--rows must be at least 1")],
)
def test_settings_of_orders_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OrderSettings(**change)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (StorySettings, studies.stories),
        (CoverageSettings, studies.coverage),
        (LengthSettings, studies.lengths),
        (OrderSettings, studies.orders),
    ],
)
def test_settings_that_make_no_sense_name_options_that_there_are(settings: Any, command: Any) -> None:
    app = typer.Typer()
    app.command()(command)
    known = {name for option in typer.main.get_command(app).params for name in option.opts}
    said = {}
    for field in fields(settings):
        if isinstance(field.default, int) and field.name != "seed":
            try:
                settings(**{field.name: 0})
            except ConfigError as error:
                said[field.name] = str(error)
    assert len(said) > 1
    for line in said.values():
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exact_documents": 0}, "^--exact must be at least 1, got 0$"),
        ({"policy_documents": 0}, "^--confidence must"),
        ({"word_passages": 0}, "^--passages must"),
        ({"stories": 0}, "^--free must"),
        ({"best_of": 0}, "^--best-of must"),
        ({"lengths": (3,)}, "^--lengths are"),
    ],
)
def test_settings_of_stories_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StorySettings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"common": 4}, "^--common must be at least 5, the words of the largest set, got 4$"),
        ({"fewest": 6}, "^a set has from 1 word on, and fewest is at most most, got fewest 6, most 5$"),
        ({"sets": 0}, "^--sets must be at least 1, got 0$"),
    ],
)
def test_settings_of_coverage_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CoverageSettings(**change)
