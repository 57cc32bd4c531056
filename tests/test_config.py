"""Settings: every problem at once, with suggestions; round trips through plain data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from pmlm.config import from_dict, load_toml, to_dict, with_overrides
from pmlm.errors import ConfigError
from pmlm.objectives import APLM, Member, Mixture


@dataclass(frozen=True, kw_only=True)
class Inner:
    high: float = 1.0
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int
    name: str | None = None
    sizes: tuple[int, ...] = ()
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


def test_round_trip() -> None:
    settings = Outer(steps=3, sizes=(1, 2), inner=Inner(high=0.5, kind="b"))
    assert from_dict(Outer, to_dict(settings)) == settings
    mixture = Mixture(members=(Member(objective=APLM, start=0.8, end=0.2), Member(objective=APLM)))
    assert from_dict(Mixture, to_dict(mixture)) == mixture


def test_every_problem_is_reported_at_once_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Outer, {"inner": {"hgih": 1, "kind": "c"}, "flag": 1, "sizes": "x"})
    message = str(caught.value)
    for part in ("unknown setting 'inner.hgih'. Did you mean 'high'?", "'inner.kind' must be one of a, b", "'steps' is missing",
                 "'flag' must be true or false", "'sizes' must be a list"):  # fmt: skip
        assert part in message


@pytest.mark.parametrize(("value", "good"), [(True, False), (2, True), (2.5, False), ("2", False)])
def test_whole_numbers_are_whole_numbers(value: object, good: bool) -> None:
    if good:
        assert from_dict(Outer, {"steps": value}).steps == value
    else:
        with pytest.raises(ConfigError, match="whole number"):
            from_dict(Outer, {"steps": value})


def test_overrides_reach_into_sections_and_read_toml_values() -> None:
    data = with_overrides({"steps": 1}, ["inner.high=0.25", "name=bare-word", "sizes=[1, 2]", "steps=7"])
    assert from_dict(Outer, data) == Outer(steps=7, name="bare-word", sizes=(1, 2), inner=Inner(high=0.25))
    for bad in ("steps", "=3", "steps.x=3"):
        with pytest.raises(ConfigError):
            with_overrides({"steps": 1}, [bad])


def test_broken_and_missing_files_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no settings file"):
        load_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="cannot read"):
        load_toml(tmp_path / "bad.toml")
