"""`pmlm convert`: checkpoints of BERT's and GPT-2's formats into ours, and ours into theirs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pmlm.cli.common import JsonOption, QuietOption, SeedOption, VocabularyOption, print_json
from pmlm.errors import ConfigError


def convert(
    folder: Annotated[Path, typer.Argument(help="A checkpoint folder in any known format.", metavar="DIR")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", metavar="DIR")],
    to: Annotated[str, typer.Option("--to", help="pmlm, bert or gpt2.")] = "pmlm",
    storage: Annotated[
        str, typer.Option("--storage", help="How pmlm's own format stores weights: float32, float16 or bfloat16.")
    ] = "float32",
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="pmlm's own format: how its texts are drawn unless told otherwise."),
    ] = None,
    tokenizer: VocabularyOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Turn the checkpoint in DIR into another format."""
    from pmlm.interop import FORMATS, read_model, write_model

    wanted = next((known for known in FORMATS if known == to), None)
    if wanted is None:
        raise ConfigError(f"no format {to!r}. Known: {', '.join(FORMATS)}.")
    if out.resolve() == folder.resolve():
        raise ConfigError("--out must be another folder than the checkpoint's")
    if temperature is not None and wanted != "pmlm":
        raise ConfigError(f"--temperature goes with pmlm's own format, not with {wanted}")
    found = read_model(folder, tokenizer=tokenizer, seed=seed)
    if temperature is not None:
        found.lm.sampling = replace(found.lm.sampling, temperature=temperature)
    write_model(found.lm, out, wanted, storage=storage)
    parameters = found.lm.model.num_parameters()
    if json:
        print_json(
            {"folder": str(out), "from": found.format, "to": wanted, "parameters": parameters, "notes": found.notes}
        )
        return
    print(f"{out}: {found.format} -> {wanted}, {parameters:,} parameters")
    if not quiet:
        for note in found.notes:
            print(f"  {note}", file=sys.stderr)
