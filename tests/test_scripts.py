"""Scripts that make figures: their arms are valid, and the log shows what their results say."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


search = script("search_recipe")


@pytest.mark.parametrize("name", search.ARMS)
def test_every_arm_of_the_recipe_search_is_a_run_of_so_many_tokens(name: str) -> None:
    settings = search.settings_of(name, 2_000_000)
    tokens = settings.num_steps * settings.batch_rows * settings.rows.length
    assert 1.9e6 < tokens < 2.2e6
    assert settings.model.width == 256


def test_the_log_shows_the_table_that_the_results_give() -> None:
    log = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    lines = search.table(ROOT / "results" / "recipe").splitlines()
    assert len(lines) > 10
    missing = [line for line in lines if line not in log]
    assert not missing, missing


def test_the_page_of_the_ways_is_made_of_its_results() -> None:
    folder = ROOT / "results" / "ways"
    page = script("compare_ways").tables(folder)
    assert page == (folder / "figures.md").read_text(encoding="utf-8")
    assert page.count("## Before blind reader") == 2
    assert page.count("64 particles |") > 10
