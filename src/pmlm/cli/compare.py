"""`pmlm compare`: the paper's tables, from text files to Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmlm.cli.common import (
    DeviceOption,
    JsonOption,
    QuietOption,
    ThreadsOption,
    print_json,
    progress_bar,
    talk,
    use_threads,
)
from pmlm.cli.follow import follow
from pmlm.errors import ConfigError, TrainingDiverged

if TYPE_CHECKING:
    from pmlm.compare.stages import Comparison


def compare(
    scale: Annotated[str, typer.Option("--scale", help="tiny, laptop, paper, or a .toml file.")] = "tiny",
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Folder of the source texts.", metavar="DIR")
    ] = None,
    stage: Annotated[
        str, typer.Option("--stage", help="Stages, separated by commas: prepare, pretrain, …, tables. Or all.")
    ] = "all",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Results. Without it: results/comparison/SCALE.", metavar="DIR")
    ] = None,
    work: Annotated[
        Path | None, typer.Option("--work", help="Corpora and runs. Without it: runs/compare/SCALE.", metavar="DIR")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: tokens=500000", metavar="NAME=VALUE")
    ] = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train the paper's models under one protocol, measure them, and print the tables; what is done is not redone."""
    from pmlm.compare.layout import has_results
    from pmlm.compare.settings import load_compare_settings
    from pmlm.compare.stages import STAGES

    settings = load_compare_settings(scale, sets or [])
    known = (*STAGES, "tables")
    stages = known if stage == "all" else tuple(stage.split(","))
    if unknown := [name for name in stages if name not in known]:
        raise ConfigError(f"no stage {unknown[0]!r}. Known: {', '.join(known)}, or all.")
    if sets and stages == ("tables",):
        raise ConfigError("--set changes nothing in tables: they are made of the results that are there")
    if json and "tables" not in stages:
        raise ConfigError("--json prints what the tables are made of: add the stage `tables`")
    target = out or Path("results/comparison") / settings.scale
    if set(stages) & set(STAGES):
        if data is None:
            raise ConfigError("the source texts are needed: give their folder by --data")
        comparison = _comparison(settings, data, work, target, threads, device, quiet=quiet)
        try:
            comparison.run(stages)
        except TrainingDiverged:
            if "tables" in stages and has_results(target):
                _show_tables(target, settings.scale, json=json)
            raise
    if "tables" in stages:
        _show_tables(target, settings.scale, json=json)


def _comparison(
    settings: Any, data: Path, work: Path | None, out: Path, threads: int | None, device: str, *, quiet: bool
) -> Comparison:
    from pmlm.compare.stages import Comparison
    from pmlm.runtime import pick_device

    use_threads(threads)

    def drive(run: Any) -> None:
        follow(run, run.resume(), shown=not quiet)
        if not run.has_ended:
            raise KeyboardInterrupt

    folder = work or Path("runs/compare") / settings.scale
    return Comparison(
        settings, data, folder, out, device=pick_device(device), drive=drive,
        say=lambda line: talk(line, quiet=quiet, logged=True),
        bar=lambda title, total: progress_bar(title, total, quiet=quiet),
    )  # fmt: skip


def _show_tables(out: Path, scale: str, *, json: bool) -> None:
    from pmlm.compare.layout import read_results
    from pmlm.compare.plots import draw_comparison
    from pmlm.compare.tables import report
    from pmlm.keeping import write_text

    results = read_results(out)
    text = report(results, scale)
    write_text(out / "tables.md", text)
    print_json(results) if json else print(text)
    for name in ("curves.svg", "curves.png"):
        draw_comparison(results, out / name)
