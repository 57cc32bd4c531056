"""`pmlm tokenizer train`: learn a vocabulary from text files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pmlm.cli.common import JsonOption, QuietOption, print_json, talk
from pmlm.errors import ConfigError, RunError

app = typer.Typer(help="Learn and look at vocabularies.", no_args_is_help=True)


@app.callback()
def tokenizer() -> None:
    """Learn and look at vocabularies."""


@app.command("train")
def train(
    files: Annotated[list[Path], typer.Argument(help="UTF-8 text files, plain or .xz.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write tokenizer.json into.", metavar="DIR")],
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="How many pieces, specials included.")] = 8192,
    kind: Annotated[
        str, typer.Option("--kind", help="reversible (any text comes back exactly) or wordpiece (BERT's).")
    ] = "reversible",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Learn a vocabulary from FILES and write it to --out."""
    from pmlm.corpus.documents import read_documents
    from pmlm.tokenizer import train_tokenizer

    if kind not in ("reversible", "wordpiece"):
        raise ConfigError(f"--kind must be reversible or wordpiece, got {kind!r}")
    texts = [text for path in files for text in read_documents(path)]
    talk(f"learning {vocab_size} pieces from {len(texts):,} texts …", quiet=quiet)
    learned = train_tokenizer(texts, vocab_size=vocab_size, kind=kind)  # type: ignore[arg-type]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror}") from None
    learned.save(out)
    tokens = sum(len(ids) for ids in learned.encode_many(texts))
    num_bytes = sum(len(text.encode()) for text in texts)
    document = {
        "folder": str(out),
        "kind": kind,
        "vocab_size": learned.vocab_size,
        "bytes_per_token": num_bytes / max(tokens, 1),
        "fingerprint": learned.fingerprint,
    }
    if json:
        print_json(document)
    else:
        print(f"{out}: {learned.vocab_size} pieces, {document['bytes_per_token']:.3f} bytes per token")
