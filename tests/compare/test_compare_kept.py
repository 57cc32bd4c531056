"""Results that are kept with the source: tables that follow from their JSON, records of today's protocol."""

from dataclasses import replace
from pathlib import Path

import pytest
from compare_helpers import LAPTOP, ROOT, check_origin

from pmlm.compare.layout import read_results
from pmlm.compare.protocol import arm_settings
from pmlm.compare.records import once, read_record
from pmlm.compare.settings import load_compare_settings
from pmlm.compare.tables import report
from pmlm.config import to_dict
from pmlm.errors import DataError
from pmlm.objectives import APLM, GPT, Member

KEPT = sorted((LAPTOP / "pretrain").glob("*.json"))


def test_the_tables_that_are_kept_are_those_of_their_json_and_the_docs_quote_them() -> None:
    kept = (LAPTOP / "tables.md").read_text()
    assert report(read_results(LAPTOP), "laptop") == kept
    found = (ROOT / "docs/results.md").read_text().partition("### What was found")[2].partition("\n## ")[0]
    quoted = [line for line in found.splitlines() if line.startswith("|")]
    assert len(quoted) > 10
    assert not set(quoted) - set(kept.splitlines())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_records_that_are_kept_are_of_todays_protocol(path: Path, tmp_path: Path) -> None:
    """A setting that came later must not make them useless: it has its default in them."""
    name, _, seed = path.stem.partition("-seed-")
    run = arm_settings(load_compare_settings("laptop", []), name, int(seed))
    assert once(path, {"run": to_dict(run)}, lambda: pytest.fail("made anew"), tmp_path / "lock")
    first, *rest = run.objective.members
    changed = Member(objective=GPT if first.objective.kind == APLM.kind else APLM)
    other = replace(run, objective=replace(run.objective, members=(changed, *rest)))
    with pytest.raises(DataError, match=r"other settings \(run\.objective\.members\.0\."):
        once(path, {"run": to_dict(other)}, lambda: pytest.fail("made anew"), tmp_path / "lock")


@pytest.mark.parametrize("path", sorted(LAPTOP.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_records_that_are_kept_say_where_they_come_from(path: Path) -> None:
    check_origin(path)
    made = read_record(path)["made"]
    assert made["seconds"] > 0
    assert len(made["commit"]) == 40  # a clean source
