"""`pmlm evaluate`: perplexity and bits per byte of a corpus file, exact on a part and as a bound on the whole."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from pmlm.cli.common import (
    Advance,
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelOption,
    QuietOption,
    SeedOption,
    VisibilityOption,
    print_json,
    progress_bar,
)
from pmlm.errors import ConfigError, OrderError


def evaluate(
    file: Annotated[Path, typer.Argument(help="A UTF-8 text file, plain or .xz.", show_default=False)],
    model: ModelOption = None,
    order: Annotated[str, typer.Option("--order", help="Named orders, separated by commas.")] = "l2r,random",
    context: Annotated[
        int | None, typer.Option("--context", help="Slots of a window, markers included. Without it: the model's.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="Exact figures on this many windows, drawn at random by --seed.")
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            "--split",
            help="What a document is: auto, lines, blocks, documents, whole, wikitext, wikiextractor or jsonl.",
        ),
    ] = "auto",
    bound: Annotated[bool, typer.Option(help="Also the order-averaged bound, on the whole file.")] = True,
    importance: Annotated[
        int, typer.Option("--importance", help="Also the importance-weighted bound over this many orders (2 or more).")
    ] = 0,
    visibility: VisibilityOption = None,
    seed: SeedOption = 0,
    max_slots: Annotated[
        int | None, typer.Option("--max-slots", help="Slots of one forward pass: less saves memory.")
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "torch",
) -> None:
    """Perplexity of FILE along each order: exact on the stated part, a bound over all orders on the whole."""
    from pmlm.corpus.documents import check_split, read_documents
    from pmlm.corpus.framing import windows
    from pmlm.evaluation import Scorer, corpus_report
    from pmlm.likelihood import MAX_SLOTS, check_order, check_visibility
    from pmlm.lm import load
    from pmlm.orders import parse_order

    how = check_split(split)
    orders = [parse_order(name) for name in order.split(",")]
    if any(o.kind == "list" for o in orders):
        raise OrderError("a corpus is evaluated along named orders, not along a list of positions")
    lm = load(model, device=device, engine=engine)
    kind = check_visibility(visibility, lm.model.config)
    for wanted in orders:
        check_order(wanted, kind)
    context = lm.model.config.max_length if context is None else context
    if not 3 <= context <= lm.model.config.max_length:
        raise ConfigError(
            f"--context must be from 3 to {lm.model.config.max_length}, what the model reads; got {context}"
        )
    for name, value in (("--limit", limit), ("--max-slots", max_slots)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    if importance and importance < 2:
        raise ConfigError(f"--importance takes 2 orders or more, got {importance}")

    documents = read_documents(file, how)
    rows = [row for i, text in enumerate(documents) for row in windows(text, lm.tokenizer, context, i)]
    scorer = Scorer(lm.model, lm.tokenizer, kind, seed, max_slots or MAX_SLOTS)

    def bar(title: str, total: int) -> AbstractContextManager[Advance]:
        return progress_bar(title, total, quiet=quiet)

    figures = corpus_report(scorer, rows, orders, limit=limit, importance=importance, bound=bound, bar=bar)
    report = {"file": file.name, "engine": lm.engine, "context": context, "documents": len(documents), **figures}
    print_json(report) if json else _print_report(report)


def _print_report(report: dict[str, Any]) -> None:
    print(
        f"{report['file']}: {report['documents']} documents, {report['windows']} windows of at most "
        f"{report['context']} slots; {report['visibility']}, seed {report['seed']}"
    )
    lines = [(f"exact, {name}", figure) for name, figure in report["exact"].items()]
    if "importance_weighted" in report:
        lines.append((f"bound, {report['importance_weighted']['orders']} orders", report["importance_weighted"]))
    if "bound" in report:
        lines.append(("bound, order-averaged", report["bound"]))
    print(f"{'':24}{'PPL':>12}{'± s.e.':>12}{'nats/token':>12}{'bits/byte':>11}{'windows':>9}{'tokens':>11}")
    for name, f in lines:
        bits = "–" if f["bits_per_byte"] is None else f"{f['bits_per_byte']:.4f}"
        error = "–" if f["perplexity_stderr"] is None else f"{f['perplexity_stderr']:.4g}"
        print(
            f"{name:24}{f['perplexity']:12.6g}{error:>12}{f['nats_per_token']:12.4f}{bits:>11}"
            f"{f['rows']:9}{f['tokens']:11}"
        )
