"""`pmlm score`: the exact log-probability of a text, or of what fills a template's blanks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmlm.cli.common import (
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelOption,
    SeedOption,
    VisibilityOption,
    print_json,
    read_argument,
)
from pmlm.errors import DataError, TemplateError

if TYPE_CHECKING:
    from pmlm.results import Ranked, Score


def score(
    text: Annotated[
        str | None, typer.Argument(help="The text, or - for stdin. With --candidates: not needed.", show_default=False)
    ] = None,
    model: ModelOption = None,
    order: Annotated[
        str,
        typer.Option(
            "--order", help="l2r, r2l, random, nearest, confidence, margin, entropy, or a list of positions: 2,0,1"
        ),
    ] = "l2r",
    given: Annotated[
        str | None,
        typer.Option(
            "--given", metavar="TEMPLATE", help="Score only its blanks, jointly: [MASK], [MASK:3], ___ (one word)."
        ),
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(
            "--candidates", metavar="FILE", help="Rank fillings of --given: one a line, tabs between its blanks."
        ),
    ] = None,
    visibility: VisibilityOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "torch",
) -> None:
    """The exact log-probability of TEXT along an order, token by token."""
    from pmlm.lm import load

    if candidates is not None:
        if given is None or text is not None:
            raise TemplateError("--candidates ranks fillings of a template: give the template by --given, and no text")
        lm = load(model, device=device, engine=engine)
        ranked = lm.rank(given, _read_candidates(candidates), order=order, seed=seed, visibility=visibility)
        print_json({"results": [r.to_dict() for r in ranked]}) if json else _print_ranked(ranked)
        return
    if text is None:
        raise DataError("there is no text to score: give one, or - to read it from stdin")
    lm = load(model, device=device, engine=engine)
    result = lm.score(read_argument(text), order=order, seed=seed, visibility=visibility, given=given)
    print_json(result.to_dict()) if json else _print_score(result)


def _read_candidates(path: Path) -> list[list[str]]:
    from pmlm.corpus.documents import read_text

    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} holds no candidates")
    return [line.split("\t") for line in lines]


def _print_score(score: Score) -> None:
    place = {position: step for step, position in enumerate(score.order)}
    for i, (token, logp) in enumerate(zip(score.tokens, score.logp, strict=True)):
        shown = f"{place[i]:>5}  {logp:9.4f}" if logp is not None else f"{'given':>5}  {'':9}"
        print(f"{i:>4}  {shown}  {token!r}")
    print(
        f"nll {score.nll:.4f} nats over {len(score.order)} tokens, perplexity {score.perplexity:.3f}, "
        f"{score.bits_per_byte:.4f} bits per byte ({score.visibility}, seed {score.seed})"
    )


def _print_ranked(ranked: list[Ranked]) -> None:
    for r in ranked:
        print(f"{-r.score.nll:10.4f}  {r.share:7.2%}  {' | '.join(r.fillings)}")
