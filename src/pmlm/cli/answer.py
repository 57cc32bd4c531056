"""`pmlm answer`: the answer to a question, as a stretch of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmlm.cli.common import DeviceOption, JsonOption, print_json, print_json_line, read_argument, read_records
from pmlm.errors import DataError

if TYPE_CHECKING:
    from pmlm.nlu.finetuned import Answered


def answer(
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="A folder that `pmlm finetune squad` wrote.", metavar="DIR")
    ] = None,
    question: Annotated[str | None, typer.Option("--question", help="The question.")] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="The text that may hold the answer. - reads it from stdin.")
    ] = None,
    jsonl: Annotated[
        Path | None,
        typer.Option(
            "--jsonl", help='Lines of {"question": …, "context": …}; one line is printed for each.', metavar="FILE"
        ),
    ] = None,
    num: Annotated[int, typer.Option("-n", "--num", help="How many spans to list.")] = 3,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Answer less below it. Without it: the one found on dev.")
    ] = None,
    json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Answer a question from a text, or say that the text does not."""
    from pmlm.nlu.finetuned import load_finetuned

    if model is None:
        raise DataError("no model: give one that was fine-tuned by -m (see `pmlm finetune squad`)")
    if (jsonl is None) == (question is None and context is None) or (question is None) != (context is None):
        raise DataError("give --question and --context, or a file of them by --jsonl")
    finetuned = load_finetuned(model, device=device)
    if jsonl is not None:
        records = read_records(jsonl, ("question", "context"))
        asked = [(r["question"], r["context"]) for r in records]
        for result in finetuned.answer_batch(asked, num=num, threshold=threshold):
            print_json_line(result.to_dict())
        return
    assert question is not None
    assert context is not None
    result = finetuned.answer(question, read_argument(context), num=num, threshold=threshold)
    print_json(result.to_dict()) if json else _print(result)


def _print(result: Answered) -> None:
    print("(no answer)" if result.answer is None else result.answer)
    for span in result.spans:
        print(f"  {span.prob:.4f}  {span.start}-{span.end}  {span.text!r}")
    print(f"  no answer scores {result.no_answer:+.3f} against the best span, threshold {result.threshold:+.3f}")
