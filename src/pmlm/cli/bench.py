"""`pmlm bench …`: side-by-side timings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pmlm.cli.common import JsonOption, QuietOption, SeedOption, print_json, progress_bar

app = typer.Typer(help="Side-by-side timings, as ratios taken in one run.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Side-by-side timings, as ratios taken in one run."""


@app.command("train")
def train(
    layers: Annotated[int, typer.Option("--layers")] = 6,
    width: Annotated[int, typer.Option("--width")] = 256,
    heads: Annotated[int, typer.Option("--heads")] = 4,
    vocab_size: Annotated[int, typer.Option("--vocab-size")] = 8192,
    rows: Annotated[int, typer.Option("--rows", help="Rows of a step.")] = 32,
    length: Annotated[int, typer.Option("--length")] = 128,
    dropout: Annotated[float, typer.Option("--dropout", help="In all contenders alike.")] = 0.0,
    rounds: Annotated[int, typer.Option("--rounds")] = 5,
    steps: Annotated[int, typer.Option("--steps", help="Counted steps of each contender in a round.")] = 3,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of all contenders.")] = 2,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Our training steps against Hugging Face's Trainer with BertForMaskedLM of the same size."""
    import torch

    from pmlm.bench.train import BenchSettings, bench_training

    torch.set_num_threads(threads)
    settings = BenchSettings(
        num_layers=layers, width=width, num_heads=heads, vocab_size=vocab_size, rows=rows, length=length,
        dropout=dropout, rounds=rounds, steps=steps, seed=seed,
    )  # fmt: skip
    with progress_bar("bench", rounds * 6, quiet=quiet) as advance:
        report = bench_training(settings, advance)
    print_json(report) if json else _print(report)


def _print(report: dict[str, Any]) -> None:
    s = report["settings"]
    print(
        f"{s['num_layers']} × {s['width']}, vocabulary {s['vocab_size']}, {s['rows']} rows of {s['length']}, dropout "
        f"{s['dropout']}; {report['threads']} threads, matmul peak {report['matmul_peak_gflops']:.0f} GFLOP/s"
    )
    print(f"{'':38}{'tokens/s':>10}{'ratio':>8}{'of peak':>9}")
    for row in report["contenders"]:
        share = "" if row["peak_share"] is None else f"{row['peak_share']:.0%}"
        print(f"{row['name']:38}{row['tokens_per_second']:10,.0f}{row['ratio']:8.2f}{share:>9}")
