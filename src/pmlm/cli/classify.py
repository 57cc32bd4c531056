"""`pmlm classify`: the class of a text, or of a pair of texts, by a fine-tuned model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmlm.cli.common import DeviceOption, JsonOption, print_json, print_json_line, read_argument, read_records
from pmlm.errors import DataError

if TYPE_CHECKING:
    from pmlm.nlu.finetuned import Classified


def classify(
    texts: Annotated[
        list[str] | None, typer.Argument(help="A text, or two for a task of pairs. - reads it from stdin.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A folder that `pmlm finetune` wrote.", metavar="DIR")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Which head, where the model has several.")] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(
            "--jsonl", help='Lines of {"text": …, "second": …}; one line is printed for each.', metavar="FILE"
        ),
    ] = None,
    json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Say what class a text, or a pair of texts, is of."""
    from pmlm.nlu.finetuned import load_finetuned

    if model is None:
        raise DataError("no model: give one that was fine-tuned by -m (see `pmlm finetune`)")
    if (jsonl is None) == (not texts):
        raise DataError("give a text (or two), or a file of them by --jsonl")
    finetuned = load_finetuned(model, device=device)
    if jsonl is not None:
        records = read_records(jsonl, ("text",), ("second",))
        for result in finetuned.classify_batch([tuple(r.values()) for r in records], task=task):
            print_json_line(result.to_dict())
        return
    (result,) = finetuned.classify_batch([[read_argument(text) for text in texts or []]], task=task)
    print_json(result.to_dict()) if json else _print(result)


def _print(result: Classified) -> None:
    if result.label is None:
        print(f"{result.value:.3f}")
        return
    print(result.label)
    for label, prob in sorted(result.probs.items(), key=lambda item: -item[1]):
        print(f"  {prob:.4f}  {label}")
