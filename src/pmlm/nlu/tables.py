"""Reports of several models side by side, as Markdown: the same JSON gives the same bytes.

A folder of results holds `glue/NAME.json` and `squad/NAME.json`, each the report of `pmlm finetune` for one model; the
name is what the table calls it, -star at its end being the paper's asterisk.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmlm.errors import DataError
from pmlm.keeping import markdown_table
from pmlm.nlu.report import read_report
from pmlm.nlu.squad_study import NAME
from pmlm.nlu.tasks import TASKS

Report = Mapping[str, Any]
STAR = "-star"

PAPER_GLUE: dict[str, dict[str, tuple[float, ...]]] = {
    "BERT-A": {"CoLA": (52.1,), "SST-2": (93.5,), "MRPC": (88.9, 84.8), "STS-B": (87.1, 85.8), "QQP": (71.2, 89.2),
               "MNLI-m": (84.6,), "MNLI-mm": (83.4,), "QNLI": (90.5,), "RTE": (66.4,)},
    "u-PMLM-A": {"CoLA": (56.5,), "SST-2": (94.3,), "MRPC": (88.8, 84.4), "STS-B": (87.0, 85.9), "QQP": (71.4, 89.2),
                 "MNLI-m": (84.5,), "MNLI-mm": (83.5,), "QNLI": (91.8,), "RTE": (66.1,)},
    "u-PMLM-R": {"CoLA": (58.0,), "SST-2": (94.0,), "MRPC": (89.7, 85.8), "STS-B": (87.7, 86.8), "QQP": (71.2, 89.2),
                 "MNLI-m": (85.0,), "MNLI-mm": (84.1,), "QNLI": (92.3,), "RTE": (69.8,)},
    "u-PMLM-R*": {"CoLA": (56.9,), "SST-2": (94.2,), "MRPC": (90.7, 87.7), "STS-B": (89.7, 89.1), "QQP": (72.2, 89.4),
                  "MNLI-m": (86.1,), "MNLI-mm": (85.4,), "QNLI": (92.1,), "RTE": (78.5,)},
    "XLNet": {"SST-2": (92.66,), "MNLI-m": (85.84,), "MNLI-mm": (85.43,)},
}  # fmt: skip
"""Liao et al. (2020), "Evaluation on GLUE test set"; 110M parameters. XLNet: "Comparison with XLNet", where u-PMLM-R
has 93.58 on SST-2 and 85.99 / 85.60 on MNLI."""

PAPER_SQUAD = {
    "BERT-A": (73.97, 76.85),
    "u-PMLM-A": (74.62, 78.31),
    "u-PMLM-R": (78.46, 81.52),
    "XLNet": (78.46, 81.33),
}
"""The same, "Evaluation on SQUAD 2.0" and "Comparison with XLNet": exact match and F1."""

_METRICS = {"f1": "F1", "accuracy": "accuracy", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}
_SQUAD = {"exact": "exact", "f1": "F1", "HasAns_f1": "F1 where there is an answer", "NoAns_f1": "where there is none"}


def read_reports(folder: Path) -> dict[str, dict[str, Report]]:
    """By kind and name."""
    found: dict[str, dict[str, Report]] = {}
    for kind in ("glue", "squad"):
        for path in sorted((folder / kind).glob("*.json"), key=lambda path: path.stem):
            found.setdefault(kind, {})[_name(path)] = read_report(path)
    if not found:
        raise DataError(
            f"{folder} holds no reports: {folder}/glue/NAME.json is written by `pmlm finetune glue --report`"
        )
    return found


def _name(path: Path) -> str:
    """Not every file system takes the paper's asterisk."""
    return f"{path.stem.removesuffix(STAR)}*" if path.stem.endswith(STAR) else path.stem


def page(reports: Mapping[str, Mapping[str, Report]]) -> str:
    """All tables, with what must be known to read them."""
    parts = ["# Language understanding", "Made by `pmlm finetune table` from the reports beside this file."]
    if "glue" in reports:
        parts += ["## GLUE, dev", glue_table(reports["glue"]), _glue_note(reports["glue"])]
    if "squad" in reports:
        parts += ["## SQuAD 2.0", squad_table(reports["squad"]), _squad_note(reports["squad"])]
    return "\n\n".join(parts) + "\n"


def glue_table(reports: Mapping[str, Report]) -> str:
    parts = {
        part: task.metrics for task in TASKS for part in task.dev
        if any(part in r["tasks"].get(task.name, {}).get("dev", {}) for r in reports.values())
    }  # fmt: skip
    head = ["model", "runs", *(f"{part} ({', '.join(map(_METRICS.__getitem__, m))})" for part, m in parts.items())]
    rows = []
    for name, report in reports.items():
        dev = {part: figures for task in report["tasks"].values() for part, figures in task.get("dev", {}).items()}
        failed = [f"{len(task['failed'])} of {t}" for t, task in report["tasks"].items() if task["failed"]]
        runs = str(len(report["seeds"])) + (f", failed: {', '.join(failed)}" if failed else "")
        rows.append([name, runs, *(_cell(dev.get(part, {}), metrics) for part, metrics in parts.items())])
    constants = {
        part: figures for r in reports.values() for task in r["tasks"].values()
        for part, figures in task["constants"].items()
    }  # fmt: skip
    least = [" / ".join(f"{100 * constants[part][m]:.1f}" for m in metrics) for part, metrics in parts.items()]
    rows.append(["best constant answer to each metric", "", *least])
    for name, figures in PAPER_GLUE.items():
        if name in reports:
            where = "split not said" if name == "XLNet" else "test sets"
            rows.append([f"*paper, {name}, {where}*", "", *(_paper_cell(figures.get(part, ())) for part in parts)])
    return markdown_table(head, rows)


def _cell(figures: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Mean ± deviation over runs, in percent."""
    return " / ".join(_spread(figures[m]) for m in metrics) if figures else "–"


def _spread(figure: Mapping[str, Any]) -> str:
    several = len(figure["all"]) > 1
    return f"{100 * figure['mean']:.1f}" + (f" ± {100 * figure['deviation']:.1f}" if several else "")


def _paper_cell(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values) or "–"


def _glue_note(reports: Mapping[str, Report]) -> str:
    lines = [
        "Percent, mean ± deviation over runs that differ in the seed; each run's model is the best of its evaluations "
        "on dev."
    ]
    for name, report in reports.items():
        said = _unusual(report["settings"])
        said += [f"not run: {', '.join(report['not_run'])}"] * bool(report["not_run"])
        said += [f"sharing data: {report['sharing']}"] * (report.get("sharing", "none") != "none")
        said += [
            f"{task} seed {f['seed']} failed ({f['reason']})"
            for task, t in [
                *((f"intermediate {name}", t) for name, t in report.get("before", {}).items()),
                *report["tasks"].items(),
            ]
            for f in t["failed"]
        ]
        lines += [f"- {name}: {'; '.join(said)}."] * bool(said)
    return "\n".join(lines[:1] + [""] * (len(lines) > 1) + lines[1:])


def _unusual(settings: Mapping[str, Any]) -> list[str]:
    """What a reader must know of how a model was trained: parts of the data, steps, labels."""
    rows, steps, most = (settings.get(name) for name in ("train_rows", "num_steps", "most_steps"))
    said = [] if rows is None else [f"at most {rows:,} training examples"]
    epochs = settings["epochs"]
    said.append(f"{epochs:g} epoch{'s' * (epochs != 1)}" if steps is None else f"{steps:,} steps")
    said += [] if most is None or steps is not None else [f"at most {most:,} steps"]
    said += ["**labels dealt out at random**"] * bool(settings.get("shuffle_labels"))
    return said + ["frozen backbone"] * bool(settings.get("frozen"))


def squad_table(reports: Mapping[str, Report]) -> str:
    rows = []
    for name, report in reports.items():
        task = report["tasks"][NAME]
        figures = task.get("dev", {}).get(NAME, {})
        runs = str(len(report["seeds"])) + (f", {len(task['failed'])} failed" if task["failed"] else "")
        rows.append([name, runs, *(_spread(figures[key]) if key in figures else "–" for key in _SQUAD)])
    for least, names in _by_constant(reports).items():
        of = "" if len(names) == len(reports) else f", on the questions of {', '.join(names)}"
        rows.append([f"never answering{of}", "", f"{100 * least:.1f}", f"{100 * least:.1f}", "0.0", "100.0"])
    rows += [
        [f"*paper, {name}, full protocol*", "", *(f"{value:.2f}" for value in PAPER_SQUAD[name]), "–", "–"]
        for name in reports
        if name in PAPER_SQUAD
    ]
    return markdown_table(["model", "runs", *_SQUAD.values()], rows)


def _by_constant(reports: Mapping[str, Report]) -> dict[float, list[str]]:
    """Models by what never answering scores: one figure where all were measured on the same questions."""
    found: dict[float, list[str]] = {}
    for name, report in reports.items():
        found.setdefault(report["tasks"][NAME]["constant_score"], []).append(name)
    return found


def _squad_steps(settings: Mapping[str, Any]) -> str:
    length = settings.get("length")
    return f"a step being {settings['batch_rows']} windows" + (f" of {length} slots" if length else "")


def _squad_note(reports: Mapping[str, Report]) -> str:
    protocols = sorted({report["protocol"] for report in reports.values()})
    trained = "; ".join(
        f"{name}: {', '.join(_unusual(report['settings']))}, {_squad_steps(report['settings'])}"
        for name, report in reports.items()
    )
    return (
        f"Percent. Protocol: {'; '.join(protocols)}. Trained: {trained}. The threshold above which nothing is answered "
        "is the best one on dev, as the official script finds it, so that F1 cannot fall below that of never "
        "answering: read the columns beside it."
    )
