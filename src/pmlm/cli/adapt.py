"""`pmlm adapt`: continue the training of a BERT until it writes in any order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pmlm.cli.common import (
    DeviceOption,
    JsonOption,
    QuietOption,
    RunOption,
    SetsOption,
    ThreadsOption,
    TokensOption,
    VocabularyOption,
)
from pmlm.cli.train import execute
from pmlm.errors import ConfigError


def adapt(
    folder: Annotated[
        Path, typer.Argument(help="A checkpoint in BERT's format, or one of ours.", metavar="DIR", show_default=False)
    ],
    data: Annotated[
        Path, typer.Option("--data", "-d", help="Corpus made by `pmlm prepare --tokenizer DIR`.", metavar="DIR")
    ],
    out: RunOption = None,
    preset: Annotated[str, typer.Option("--preset", help="How to train: a preset's name, or a .toml file.")] = "adapt",
    both: Annotated[
        bool, typer.Option("--both", help="Train order-causal visibility too, with half of the rows.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="The control: the same run from fresh weights.")
    ] = False,
    sets: SetsOption = None,
    tokens: TokensOption = None,
    tokenizer: VocabularyOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Continue the training of the checkpoint in DIR with the uniform prior; goes on where it was stopped."""
    from pmlm.corpus.shards import open_corpus
    from pmlm.interop import read_model
    from pmlm.training.adapt import adapted_settings, split_note
    from pmlm.training.run import with_tokens
    from pmlm.training.settings import load_settings

    found = read_model(folder, tokenizer=tokenizer)
    if found.lm.tokenizer.mask_id == found.lm.tokenizer.start_id:
        raise ConfigError(f"{folder} cannot be adapted: its vocabulary has no [MASK]")
    settings = adapted_settings(load_settings(preset, sets or []), found.lm.model.config, both=both)
    if tokens is not None:
        settings = with_tokens(settings, tokens)
    corpus = open_corpus(data, verify=False)
    if corpus.tokenizer.fingerprint != found.lm.tokenizer.fingerprint:
        raise ConfigError(f"{data} was prepared with another vocabulary: use `pmlm prepare --tokenizer {folder}`")
    split = split_note(found.lm.about, corpus.manifest["recipe"]["settings"]["heldout"])
    for note in (*found.notes, split):
        if note and not quiet:
            print(note, file=sys.stderr)
    start = None if from_scratch else found.lm
    target = out or Path("runs") / (settings.name + "-from-scratch" * from_scratch)
    execute(settings, data, target, device, threads, json=json, quiet=quiet, init_from=start)
