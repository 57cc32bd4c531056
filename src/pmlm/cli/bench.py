"""`pmlm bench …`: side-by-side timings; studies are in pmlm.cli.studies."""

from __future__ import annotations

from json import dumps
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from pmlm.cli import studies
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

app = typer.Typer(help="Timings taken side by side, and studies of what a model can do.", no_args_is_help=True)
for study in (
    studies.lengths,
    studies.coverage,
    studies.orders,
    studies.stories,
    studies.reading,
    studies.report,
    studies.card,
):
    app.command(study.__name__)(study)


@app.callback()
def bench() -> None:
    """Timings taken side by side, and studies of what a model can do."""


@app.command("train")
def train(
    layers: Annotated[int, typer.Option("--layers")] = 6,
    width: Annotated[int, typer.Option("--width")] = 256,
    heads: Annotated[int, typer.Option("--heads")] = 4,
    vocab_size: Annotated[int, typer.Option("--vocab-size")] = 8192,
    rows: Annotated[int, typer.Option("--rows", help="Rows of a step.")] = 32,
    length: Annotated[int, typer.Option("--length")] = 128,
    dropout: Annotated[float, typer.Option("--dropout", help="In all contenders alike.")] = 0.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 5,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Counted steps of each contender in a round.")] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads of all contenders.")] = 2,
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


@app.command("export")
def export(
    model: ModelOption = None,
    file: Annotated[Path | None, typer.Option("--file", help="A text to measure the loss on.", metavar="FILE")] = None,
    context: Annotated[int, typer.Option("--context", help="--file: slots of a window.")] = 128,
    limit: Annotated[int, typer.Option("--limit", help="--file: so many windows, drawn at random.")] = 512,
    rounds: Annotated[int, typer.Option("--rounds")] = 7,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of all engines.")] = 1,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Exported graphs, fp32 and int8, against torch: speed in turns, and the loss in bits per byte."""
    import torch

    from pmlm.bench.export import ExportBench, bench_export
    from pmlm.corpus.documents import read_documents
    from pmlm.corpus.framing import windows
    from pmlm.evaluation import draw_part
    from pmlm.lm import load

    if min(rounds, limit, threads) < 1:
        raise ConfigError("--rounds, --limit and --threads must be at least 1")
    if context < 3:
        raise ConfigError(f"--context must be at least 3, got {context}")
    torch.set_num_threads(threads)
    rows = []
    if file is not None:
        lm = load(model, device="cpu")
        size = min(context, lm.model.config.max_length)
        rows = [row for i, text in enumerate(read_documents(file)) for row in windows(text, lm.tokenizer, size, i)]
    settings = ExportBench(rounds=rounds, seed=seed)
    with progress_bar("bench", len(settings.rows) * len(settings.lengths) + 2, quiet=quiet) as advance:
        report = bench_export(model, draw_part(rows, limit, seed), settings, advance)
    report["file"] = None if file is None else file.name
    print_json(report) if json else _print_export(report)


def _print_export(report: dict[str, Any]) -> None:
    print(f"{report['threads']} threads; times sooner than torch, by the clock and by processor time")
    timed = [(f"{p['rows']} × {p['length']}", p["engines"]) for p in report["passes"]]
    for name, engines in [*timed, (f"a text of {report['text']['tokens']}", report["text"]["engines"])]:
        ratios = "  ".join(f"{key} {e['ratio']:.2f} ({e['cpu_ratio']:.2f})" for key, e in engines.items())
        print(f"{name:>16}  {1000 * engines['torch']['seconds']:8.1f} ms  {ratios}")
    for name, figure in report.get("bits_per_byte", {}).get("engines", {}).items():
        print(f"{name:>16}  {figure['bits']:.4f} bits per byte ({figure['loss']:+.2%})")


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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write bench.json here, and the table made of it, bench.md.", metavar="DIR"
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The server with batching against the same server without, in turns; then a soak."""
    from pmlm.bench.serve import ServeBench, bench_serving, serving_table

    try:
        counts = tuple(int(part) for part in clients.split(","))
    except ValueError:
        raise ConfigError(f"--clients takes whole numbers separated by commas, got {clients!r}") from None
    for name, value in (("--clients", min(counts)), ("--requests", requests), ("--rounds", rounds)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if not 0 <= soak < inf:
        raise ConfigError(f"--soak takes seconds, 0 or more; got {soak:g}")
    settings = ServeBench(
        clients=counts, requests=requests, rounds=rounds, soak_seconds=soak, threads=threads, order=order,
        visibility=visibility, model=None if model is None else str(model),
    )  # fmt: skip
    with progress_bar("bench", len(counts) * rounds * 2 + 1, quiet=quiet) as advance:
        report = bench_serving(settings, advance)
    if output is not None:
        _write_report(output, report, serving_table(report))
    print_json(report) if json else print(serving_table(report), end="")


def _write_report(folder: Path, report: dict[str, Any], table: str) -> None:
    from pmlm.keeping import write_text

    write_text(folder / "bench.json", dumps(report, indent=2) + "\n")
    write_text(folder / "bench.md", table)


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

    from pmlm.bench.contenders import BERT_BASE, LAPTOP, TINY
    from pmlm.bench.generate import GenerateBench, bench_generation, num_parts
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
