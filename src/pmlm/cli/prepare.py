"""`pmlm prepare`: text files -> a folder of token shards to train on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from pmlm.cli.common import JsonOption, QuietOption, print_json, reading_bar, talk
from pmlm.errors import ConfigError


def prepare(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Text, .jsonl, .tar, WikiExtractor or WikiText files, each also as .xz.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.", metavar="DIR")],
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", "-t", help="Folder with a vocabulary. Without it: one is learnt.", metavar="DIR"),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", help="Size of the vocabulary that is learnt. Without it: 8192.")
    ] = None,
    split: Annotated[
        str,
        typer.Option("--split", help="What a document is: auto, lines, blocks, documents, whole, wikitext, …"),
    ] = "auto",
    field: Annotated[str, typer.Option("--field", help="jsonl: the field that holds the text.")] = "text",
    heldout: Annotated[float, typer.Option("--heldout", help="Share of documents held out.")] = 0.005,
    min_chars: Annotated[int, typer.Option("--min-chars", help="Shorter documents are dropped.")] = 40,
    drop: Annotated[
        list[Path] | None,
        typer.Option("--drop", help="File with ids of documents to leave out: one a line, or a table.", metavar="FILE"),
    ] = None,
    protect: Annotated[
        list[Path] | None,
        typer.Option(
            "--protect", help="Evaluation file: documents that share much with it are dropped.", metavar="FILE"
        ),
    ] = None,
    max_overlap: Annotated[
        float, typer.Option("--max-overlap", help="How much: the share of a document's 13-word runs.")
    ] = 0.3,
    processes: Annotated[int | None, typer.Option("--processes", help="Without it: one per core.")] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Turn FILES into token shards; can be interrupted and started again."""
    from pmlm.corpus.documents import check_split, iter_documents
    from pmlm.corpus.prepare import VOCAB_SIZE, PrepareSettings, asked_vocab_size, read_ids
    from pmlm.corpus.prepare import prepare as run_prepare
    from pmlm.corpus.shards import token_counts
    from pmlm.tokenizer import load_tokenizer, train_on_sample

    if tokenizer is not None and vocab_size is not None:
        raise ConfigError("--vocab-size is for a vocabulary that is learnt: leave it out, or --tokenizer")
    before = asked_vocab_size(out, files, check_split(split), field)
    asked = before or VOCAB_SIZE if vocab_size is None else vocab_size
    size = None if tokenizer is not None else asked
    settings = PrepareSettings(
        split=check_split(split), field=field, heldout=heldout, min_chars=min_chars, max_overlap=max_overlap,
        vocab_size=size,
    )  # fmt: skip
    if processes is not None and processes < 1:
        raise ConfigError(f"--processes must be at least 1, got {processes}")
    if tokenizer is not None:
        vocabulary = load_tokenizer(tokenizer)
    elif before == size and (out / "tokenizer.json").is_file():
        vocabulary = load_tokenizer(out)
    else:
        assert size is not None
        talk(f"learning a vocabulary of {size} pieces …", quiet=quiet)
        texts = (d.text for path in files for d in iter_documents(path, settings.split, settings.field))
        vocabulary = train_on_sample(texts, vocab_size=size)
        if vocabulary.vocab_size < size:
            few = f"the text gives {vocabulary.vocab_size} pieces alone, {size} were asked for"
            talk(few, quiet=quiet, logged=True)
    with reading_bar("documents", "tokens", quiet=quiet) as advance:
        manifest = run_prepare(
            files,
            out,
            vocabulary,
            settings,
            drop_ids=(key for path in drop or [] for key in read_ids(path)),
            protect=(d.text for path in protect or [] for d in iter_documents(path, field=field)),
            processes=processes or os.cpu_count() or 1,
            progress=advance,
        )
    report: dict[str, Any] = {
        "folder": str(out),
        "vocab_size": vocabulary.vocab_size,
        "documents_read": manifest["documents_read"],
        "dropped": manifest["dropped"],
        **token_counts(manifest),
    }
    if json:
        print_json(report)
        return
    print(f"{out}: {report['train_tokens']:,} tokens to train on, {report['heldout_tokens']:,} held out")
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in report["dropped"].items()) or "none"
    print(f"  {report['documents_read']:,} documents read; dropped: {dropped}")
    if not report["heldout_tokens"]:
        typer.echo("nothing is held out, and `pmlm train` needs something: give a larger --heldout", err=True)
