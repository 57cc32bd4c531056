"""A study's report as a table for people; the report itself is plain data.

A report that is kept may grow: tasks that are run later, elsewhere or one by one join it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmlm.errors import DataError

HEADING = ("model", "weights", "sharing", "intermediate", "seeds", "settings")
"""What all tasks of a report have in common."""


def read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(report, dict) or not {"tasks", "seeds", "settings", "not_run", "notes"} <= report.keys():
        raise DataError(f"{path} is no report of `pmlm finetune`")
    return report


def check_joins(path: Path, heading: Mapping[str, Any]) -> None:
    """Refuse to add to a report of other runs: rows of one table would not be of one protocol."""
    before = read_report(path)
    other = [key for key in HEADING if key in before and before[key] != heading[key]]
    if other:
        raise DataError(f"{path} was made with other {' and '.join(other)}: remove it, or give another --report")


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The newer report with the tasks and notes that only the older one has."""
    tasks = {**before["tasks"], **now["tasks"]}
    not_run = {name: why for name, why in {**before["not_run"], **now["not_run"]}.items() if name not in tasks}
    return {**now, "tasks": tasks, "not_run": not_run, "notes": list(dict.fromkeys([*before["notes"], *now["notes"]]))}


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Mean and deviation over runs, the best and every run, in percent; then what failed and what is missing."""
    lines = [f"{'part':<9} {'metric':<9} {'mean':>6} {'dev.':>6} {'best':>6}  runs"]
    before = {f"{name}, before": task for name, task in report.get("before", {}).items()}
    for name, task in {**before, **report["tasks"]}.items():
        for part, metrics in task.get("dev", {}).items():
            for metric, figures in metrics.items():
                if "_" in metric and not metric.startswith(("HasAns", "NoAns")):
                    continue
                middle = " ".join(f"{100 * figures[key]:6.2f}" for key in ("mean", "deviation", "best"))
                lines.append(f"{part:<9} {metric:<9} {middle}  " + " ".join(f"{100 * x:.2f}" for x in figures["all"]))
        lines.append(f"{name:<9} {'constant':<9} {100 * task['constant_score']:6.2f}")
        lines += [f"{name}: seed {f['seed']} FAILED, {f['reason']}" for f in task["failed"]]
    lines += [f"not run: {name}" for name in report["not_run"]]
    lines += [f"note: {note}" for note in report["notes"]]
    return lines
