"""`pmlm finetune glue` and `pmlm finetune squad`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmlm.cli.common import (
    DeviceOption,
    JsonOption,
    ModelOption,
    QuietOption,
    SetsOption,
    ThreadsOption,
    print_json,
    use_threads,
)
from pmlm.cli.follow import follow
from pmlm.errors import ConfigError

if TYPE_CHECKING:
    from pmlm.nlu.run import FinetuneRun
    from pmlm.nlu.settings import FinetuneSettings

app = typer.Typer(help="Fine-tune a model on GLUE or SQuAD.", no_args_is_help=True)

SettingsOption = Annotated[Path | None, typer.Option("--settings", help="A .toml file with settings.", metavar="FILE")]
SeedsOption = Annotated[int, typer.Option("--seeds", help="How many runs, from the setting `seed` on.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Where runs and report go.", metavar="DIR")]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Also keep the report here, to be tabulated; a GLUE report that is there gains tasks, one of SQuAD is "
        "replaced.",
        metavar="FILE",
    ),
]


@app.command("glue")
def glue(
    data: Annotated[
        str, typer.Option("--data", "-d", help="GLUE folder; `hub`: by name through `datasets`.", metavar="DIR")
    ],
    model: ModelOption = None,
    tasks: Annotated[str, typer.Option("--tasks", help="CoLA,SST-2,…, or all.")] = "all",
    seeds: SeedsOption = 1,
    joint: Annotated[bool, typer.Option("--joint", help="One model for all tasks at once.")] = False,
    intermediate: Annotated[
        str | None, typer.Option("--intermediate", help="First fine-tune on these tasks: MNLI,RTE or all.")
    ] = None,
    submission: Annotated[
        Path | None, typer.Option("--submission", help="Write test predictions for the leaderboard.", metavar="ZIP")
    ] = None,
    sets: SetsOption = None,
    settings: SettingsOption = None,
    out: OutOption = Path("runs/glue"),
    report_file: ReportOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Fine-tune on GLUE tasks, each with several seeds; what is finished is not run again."""
    from pmlm.nlu.finetuned import load_start
    from pmlm.nlu.glue import GlueData, load_glue
    from pmlm.nlu.glue_study import GlueStudy
    from pmlm.nlu.hub import load_hub_glue
    from pmlm.nlu.report import check_joins
    from pmlm.nlu.tasks import GlueTask, find_tasks
    from pmlm.runtime import pick_device
    from pmlm.training.distributed import joined_ranks

    def load(task: GlueTask) -> GlueData:
        return load_hub_glue(task) if data == "hub" else load_glue(task, Path(data))

    chosen = _prepare(settings, sets, seeds, threads)
    wanted = [load(task) for task in find_tasks(tasks.split(","))]
    first = [load(task) for task in find_tasks(intermediate.split(","))] if intermediate else []
    with joined_ranks(pick_device(device)) as (ranks, own):
        study = GlueStudy(load_start(model), chosen, out, own, _seeds(chosen, seeds), joint, ranks)
        if report_file is not None and report_file.exists():
            check_joins(report_file, study.heading(first))
        report = study.run(wanted, first, lambda run: _drive(run, quiet))
        if ranks.is_main:
            if submission is not None:
                report["submission"] = _submit(report, wanted, submission, device)
            _finish(report, out, report_file, json, joins=True)


@app.command("squad")
def squad(
    model: ModelOption = None,
    train: Annotated[
        list[Path] | None, typer.Option("--train", help="A file to train on; may be given again.", metavar="FILE")
    ] = None,
    dev: Annotated[Path | None, typer.Option("--dev", help="The file to measure on.", metavar="FILE")] = None,
    split: Annotated[
        Path | None, typer.Option("--split", help="Instead: a file whose articles are split in two.", metavar="FILE")
    ] = None,
    train_share: Annotated[
        float | None, typer.Option("--train-share", help="--split: the articles to train on. Without it: 0.6.")
    ] = None,
    seeds: SeedsOption = 1,
    sets: SetsOption = None,
    settings: SettingsOption = None,
    out: OutOption = Path("runs/squad"),
    report_file: ReportOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Fine-tune on SQuAD 2.0; the threshold above which nothing is answered is searched on dev."""
    from pmlm.nlu.finetuned import load_start
    from pmlm.nlu.squad_study import load_squad, run_squad
    from pmlm.runtime import pick_device
    from pmlm.training.distributed import joined_ranks

    chosen = _prepare(settings, sets, seeds, threads)
    data = load_squad(train or [], dev, split, train_share)
    with joined_ranks(pick_device(device)) as (ranks, own):
        report = run_squad(
            data,
            load_start(model),
            chosen,
            out,
            device=own,
            seeds=_seeds(chosen, seeds),
            ranks=ranks,
            drive=lambda run: _drive(run, quiet),
        )
        if ranks.is_main:
            _finish(report, out, report_file, json)


@app.command("table")
def table(
    folder: Annotated[Path, typer.Argument(help="Holds glue/NAME.json and squad/NAME.json.", metavar="DIR")],
    quiet: QuietOption = False,
) -> None:
    """Tables of kept reports, several models side by side; also written to DIR/table.md."""
    from pmlm.keeping import write_text
    from pmlm.nlu.tables import page, read_reports

    text = page(read_reports(folder))
    write_text(folder / "table.md", text)
    if not quiet:
        print(text, end="")


def _prepare(path: Path | None, sets: list[str] | None, seeds: int, threads: int | None) -> FinetuneSettings:
    from pmlm.nlu.settings import load_finetune_settings

    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    use_threads(threads)
    return load_finetune_settings(path, sets or [])


def _seeds(settings: FinetuneSettings, num: int) -> tuple[int, ...]:
    return tuple(range(settings.seed, settings.seed + num))


def _drive(run: FinetuneRun, quiet: bool) -> None:
    follow(run, run.resume(), shown=not quiet and run.ranks.is_main)
    if not run.has_ended:
        raise KeyboardInterrupt


def _submit(report: dict[str, Any], data: list[Any], path: Path, device: str) -> dict[str, Any]:
    from pmlm.nlu.finetuned import load_finetuned
    from pmlm.nlu.submission import predict_test, write_submission

    files: dict[str, str] = {}
    for d in data:
        best = report["tasks"].get(d.task.name, {}).get("best_model")
        if best is not None and d.test:
            finetuned = load_finetuned(best, device=device)
            files |= predict_test(finetuned, d)
    return {"file": str(path), "holds": list(files), "missing": write_submission(path, files)}


def _finish(report: dict[str, Any], out: Path, kept: Path | None, json: bool, *, joins: bool = False) -> None:
    """Write and print it. `joins`: the tasks of a kept report stay in it."""
    from pmlm.keeping import made, write_text
    from pmlm.nlu.report import joined, read_report, report_lines

    report["made"] = made()
    write_text(out / "report.json", json_module.dumps(report, indent=2) + "\n")
    if kept is not None:
        whole = joined(read_report(kept), report) if joins and kept.exists() else report
        write_text(kept, json_module.dumps(whole, indent=2) + "\n")
    if json:
        print_json(report)
        return
    print("\n".join(report_lines(report)))
    if missing := report.get("submission", {}).get("missing"):
        print(f"submission: the leaderboard also wants {', '.join(missing)}")
