"""`pmlm bench …`: side-by-side timings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pmlm.cli.common import (
    JsonOption,
    ModelOption,
    QuietOption,
    SeedOption,
    VisibilityOption,
    print_json,
    progress_bar,
)
from pmlm.errors import ConfigError

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


@app.command("serve")
def serve(
    model: ModelOption = None,
    clients: Annotated[str, typer.Option("--clients", help="How many at once, separated by commas.")] = "1,4,16,64",
    requests: Annotated[int, typer.Option("--requests", help="In each round, for each number of clients.")] = 32,
    rounds: Annotated[int, typer.Option("--rounds")] = 3,
    soak: Annotated[float, typer.Option("--soak", help="Seconds of clients that never stop; 0: none.")] = 60.0,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of each server.")] = 1,
    order: Annotated[str, typer.Option("--order")] = "random",
    visibility: VisibilityOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The server with batching against the same server without, in turns."""
    from pmlm.bench.serve import ServeBench, bench_serving

    try:
        counts = tuple(int(part) for part in clients.split(","))
    except ValueError:
        raise ConfigError(f"--clients takes whole numbers separated by commas, got {clients!r}") from None
    for name, value in (("--clients", min(counts)), ("--requests", requests), ("--rounds", rounds)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    settings = ServeBench(
        clients=counts, requests=requests, rounds=rounds, soak_seconds=soak, threads=threads, order=order,
        visibility=visibility, model=None if model is None else str(model),
    )  # fmt: skip
    with progress_bar("bench", len(counts) * rounds * 2 + 1, quiet=quiet) as advance:
        report = bench_serving(settings, advance)
    print_json(report) if json else _print_serving(report)


def _print_serving(report: dict[str, Any]) -> None:
    print(f"{'clients':>8}{'batched':>12}{'one by one':>12}{'ratio':>8}{'first step':>14}{'one by one':>12}{'lost':>6}")
    for row in report["clients"]:
        one, other = row["batched"], row["one by one"]
        first = [f"{1000 * x['first_step_median']:.0f} ms" for x in (one, other)]
        print(
            f"{row['clients']:8}{one['requests_per_second']:10.1f}/s{other['requests_per_second']:10.1f}/s"
            f"{row['ratio']:8.2f}{first[0]:>14}{first[1]:>12}{one['lost'] + other['lost']:6}"
        )
    if (soak := report["soak"]) is not None:
        print(
            f"soak {soak['seconds']:g} s: {soak['answered']} answered, {soak['lost']} lost, memory "
            f"{soak['memory_middle'] / 2**20:.0f} to {soak['memory_end'] / 2**20:.0f} MiB ({soak['growth']:+.1%})"
        )
    for name, end in report["shutdown"].items():
        print(f"shutdown, {name}: exit {end['exit_code']} after {end['seconds']:.1f} s")


@app.command("generate")
def generate(
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the JSON, the tables and the plot go.", show_default=False)
    ] = None,
    model: ModelOption = None,
    sizes: Annotated[str, typer.Option("--sizes", help="laptop, base, or both.")] = "laptop,base",
    rounds: Annotated[int, typer.Option("--rounds")] = 3,
    texts: Annotated[int, typer.Option("--texts", help="That the model writes to judge each shortcut.")] = 400,
    full: Annotated[bool, typer.Option("--full", help="Time 100 whole sequences; takes hours.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A toy size, to see that it runs.")] = False,
    redraw: Annotated[
        Path | None, typer.Option("--redraw", help="Measure nothing: make tables and plot anew from a folder's JSON.")
    ] = None,
    readme: Annotated[Path | None, typer.Option("--readme", help="With --redraw: whose table is made anew.")] = None,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of all contenders.")] = 2,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Writing 100 sequences of 128 tokens, in any order, against Hugging Face's GPT-2 of the same size."""
    from pmlm.bench.speed_report import redraw as draw_again
    from pmlm.bench.speed_report import tables, write_report

    if redraw is not None:
        if out is not None or full or quick or json:
            raise ConfigError("--redraw measures nothing: it goes with --readme alone")
        draw_again(redraw, readme)
        return
    if readme is not None:
        raise ConfigError("--readme goes with --redraw")
    if quick and full:
        raise ConfigError("--quick and --full do not go together")
    for name, value in (("--rounds", rounds), ("--texts", texts), ("--threads", threads)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    import torch

    from pmlm.bench.generate import BERT_BASE, LAPTOP, TINY, GenerateBench, bench_generation, num_parts
    from pmlm.bench.quality import QualityBench

    known = {"laptop": LAPTOP, "base": BERT_BASE}
    if unknown := set(sizes.split(",")) - known.keys():
        raise ConfigError(f"--sizes takes {', '.join(known)}, got {min(unknown)!r}")
    judged = QualityBench(model=None if model is None else str(model), texts=texts)
    settings = GenerateBench(
        sizes=tuple(known[name] for name in sizes.split(",")), rounds=rounds, full=full, quality=judged, seed=seed
    )
    if quick:
        settings = GenerateBench(
            sizes=(TINY,), batches=(1, 4), length=24, lengths=(16, 32), stages=2, steps=2, rounds=rounds, seed=seed,
            quality=QualityBench(model=judged.model, texts=min(texts, 4), length=12, masks=2),
        )  # fmt: skip
    torch.set_num_threads(threads)
    with progress_bar("bench", num_parts(settings), quiet=quiet) as advance, torch.no_grad():
        report = bench_generation(settings, advance)
    if out is not None:
        write_report(report, out)
    print_json(report) if json else print(tables(report))
