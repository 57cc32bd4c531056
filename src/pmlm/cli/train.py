"""`pmlm train`: train a model from a preset or a settings file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmlm.cli.common import (
    DeviceOption,
    JsonOption,
    QuietOption,
    RunOption,
    SetsOption,
    ThreadsOption,
    TokensOption,
    print_json,
    use_threads,
)
from pmlm.cli.follow import follow
from pmlm.cli.plan import show_plan
from pmlm.errors import ConfigError

if TYPE_CHECKING:
    from pmlm.lm import LM
    from pmlm.training.run import Run
    from pmlm.training.settings import TrainSettings


def train(
    preset: Annotated[str, typer.Argument(help="A preset's name, or a .toml file with settings.")],
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Corpus folder made by `pmlm prepare`.", metavar="DIR")
    ] = None,
    out: RunOption = None,
    sets: SetsOption = None,
    tokens: TokensOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not go on from checkpoints: refuse if there are some.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write events for TensorBoard.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what the run would cost.")] = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=1, help="--plan: on how many GPUs or processes. Without it: one.")
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            "--tflops",
            help="--plan: sustained TFLOP/s of each. Without it: this machine's where it has no GPU and no --ranks are "
            "given, else the paper's V100s'.",
        ),
    ] = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Train PRESET on a corpus; goes on from the last checkpoint of its folder, if there is one."""
    from pmlm.corpus.shards import open_corpus
    from pmlm.training.run import with_tokens
    from pmlm.training.settings import load_settings

    settings = load_settings(preset, sets or [])
    if tokens is not None:
        settings = with_tokens(settings, tokens)
    if plan:
        use_threads(threads)
        if tflops is not None and not tflops > 0:
            raise ConfigError(f"--tflops must be positive, got {tflops:g}")
        vocab_size = settings.vocab_size if data is None else open_corpus(data, verify=False).tokenizer.vocab_size
        show_plan(settings, vocab_size, ranks, tflops, json)
        return
    if ranks is not None or tflops is not None:
        raise ConfigError("--ranks and --tflops go with --plan; torchrun starts several processes")
    if data is None:
        raise ConfigError("no corpus: give one by --data (see `pmlm prepare`)")
    folder = out or Path("runs") / settings.name
    execute(settings, data, folder, device, threads, json=json, quiet=quiet, fresh=fresh, tensorboard=tensorboard)


def execute(
    settings: TrainSettings,
    data: Path,
    folder: Path,
    device: str,
    threads: int | None,
    *,
    json: bool,
    quiet: bool,
    fresh: bool = False,
    tensorboard: bool = False,
    init_from: LM | None = None,
) -> None:
    """Run to the end or to an interrupt, on all ranks, and print the last figures."""
    from pmlm.corpus.shards import open_corpus
    from pmlm.keeping import alone_in
    from pmlm.runtime import pick_device
    from pmlm.training.distributed import joined_ranks
    from pmlm.training.resume import step_folders
    from pmlm.training.run import CHECKPOINTS, Run

    use_threads(threads)
    if fresh and step_folders(folder / CHECKPOINTS):
        raise ConfigError(f"{folder} already holds checkpoints: leave out --fresh to go on, or give another --out")
    with joined_ranks(pick_device(device)) as (group, own):
        corpus = open_corpus(data, verify=group.is_main)
        run = Run(settings, corpus, folder, device=own, ranks=group, init_from=init_from)
        with alone_in(folder) if group.is_main else nullcontext():
            start = run.resume()
            shown = not quiet and group.is_main
            with _board(run, tensorboard and group.is_main) as write:
                last = follow(run, start, shown=shown, write=write)
        if group.is_main:
            _finish(last, run, json)
        if not run.has_ended:
            raise KeyboardInterrupt


@contextmanager
def _board(run: Run, wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield lambda _event: None
        return
    from pmlm.training.track import BoardWriter

    writer = BoardWriter(run.folder / "tensorboard")
    try:
        yield writer.write
    finally:
        writer.close()


def _finish(last: dict[str, Any], run: Run, json: bool) -> None:
    document = {"folder": str(run.folder), "finished": run.has_ended, **last}
    if json:
        print_json(document)
        return
    print(f"{run.folder}: step {last['step']} of {run.settings.num_steps}")
    for visibility, figures in last.get("bits_per_byte", {}).items():
        print(f"  {visibility}: " + ", ".join(f"{value:.4f} bits/byte at {n}" for n, value in figures.items()))
