"""A study's report as a table for people; the report itself is plain data."""

from collections.abc import Mapping
from typing import Any


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """Mean and deviation over runs, the best and every run, in percent; then what failed and what is missing."""
    lines = [f"{'part':<9} {'metric':<9} {'mean':>6} {'dev.':>6} {'best':>6}  runs"]
    for name, task in report["tasks"].items():
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
