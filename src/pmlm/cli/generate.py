"""`pmlm generate`: fill a template's blanks, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pmlm.cli.common import DeviceOption, JsonOption, ModelOption, VisibilityOption, print_json, read_argument
from pmlm.errors import ConfigError

if TYPE_CHECKING:
    from pmlm.lm import Filled


def generate(
    template: Annotated[
        str, typer.Argument(help="Text with blanks: [MASK], [MASK:20]. - reads it from stdin.", show_default=False)
    ],
    model: ModelOption = None,
    num: Annotated[int, typer.Option("-n", "--num", help="How many, from seeds that follow each other.")] = 1,
    order: Annotated[
        str,
        typer.Option("--order", help="l2r, r2l, random, nearest, confidence, margin, entropy, or positions: 2,0,1"),
    ] = "random",
    seed: Annotated[int | None, typer.Option("--seed", help="Without it one is drawn, and said.")] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from this many of the likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest with this much probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", help="Draw from what is this share as likely as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="Above 1: less of what the text already has.")
    ] = 1.0,
    visibility: VisibilityOption = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print the text after each step, as in the paper.")] = False,
    json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Write what stands in TEMPLATE's blanks, in any order, around what is given."""
    from pmlm.lm import load
    from pmlm.runtime import draw_seed

    if num < 1:
        raise ConfigError(f"--num must be at least 1, got {num}")
    source = read_argument(template)
    first = draw_seed() if seed is None else seed
    results = load(model, device=device).fill_batch(
        [source] * num,
        seeds=[first + i for i in range(num)],
        order=order,
        visibility=visibility,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    if json:
        documents = [result.to_dict() for result in results]
        print_json(documents[0] if num == 1 else {"results": documents})
        return
    for result in results:
        if trace:
            _print_trace(result)
        print(result.text)
    typer.echo(f"seed {first}, {results[0].visibility}", err=True)


def _print_trace(result: Filled) -> None:
    for step, state in enumerate(result.states()):
        index = "–" if step == 0 else str(result.order[step - 1])
        print(f"{step:>4}{index:>5}  " + " ".join("_" if token is None else token.strip() or "␣" for token in state))
