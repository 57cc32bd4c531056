"""`pmlm generate`: fill a template's blanks, in any order."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import loads as parse_json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmlm.cli.common import (
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelOption,
    QuietOption,
    VisibilityOption,
    print_json,
    print_json_line,
    read_argument,
)
from pmlm.errors import ConfigError, DataError, PmlmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pmlm.lm import LM
    from pmlm.options import FillOptions
    from pmlm.results import Filled

_PROMPT = "template> "


@dataclass(frozen=True)
class Asked:
    """What is to be written, and how it is to be shown."""

    template: str | None
    words: str | None
    length: int | None
    num: int
    best_of: int
    seed: int | None
    options: FillOptions
    refine: str | None
    passes: int | None
    trace: bool
    json: bool
    jsonl: bool
    quiet: bool


def generate(
    template: Annotated[
        str | None,
        typer.Argument(
            help="Text with blanks: [MASK], [MASK:20], ___ for a word. - (or nothing) reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    words: Annotated[
        str | None, typer.Option("--words", help="Instead of a template: words to scatter, in order, over --length.")
    ] = None,
    acrostic: Annotated[
        str | None,
        typer.Option("--acrostic", help="Instead of a template: a word whose letters begin the lines.", metavar="WORD"),
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="Tokens: of the canvas for --words, of a line for --acrostic.")
    ] = None,
    num: Annotated[int, typer.Option("-n", "--num", help="How many, from seeds that follow each other.")] = 1,
    best_of: Annotated[
        int, typer.Option("--best-of", help="For each text, write so many and keep the likeliest.", metavar="N")
    ] = 1,
    order: Annotated[
        str,
        typer.Option("--order", help="l2r, r2l, random, nearest, confidence, margin, entropy, or positions: 2,0,1"),
    ] = "l2r",
    seed: Annotated[int | None, typer.Option("--seed", help="Without it one is drawn, and said.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="0 takes the likeliest. Without it: as the model has it, else 1."),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from this many of the likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Draw from the likeliest with this much probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option("--min-p", help="Draw from what is this share as likely as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option("--repetition-penalty", help="Above 1: less of what the text already has.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            help="Several tokens a pass, under a bound: confidence:0.9, entropy:0.5 or count:4. Approximate.",
            metavar="BOUND",
        ),
    ] = None,
    approximate_cache: Annotated[
        int | None,
        typer.Option(
            "--approximate-cache",
            help="Bidirectional: keep keys and values, made anew every N passes. Approximate.",
            metavar="N",
        ),
    ] = None,
    speculative: Annotated[
        int | None,
        typer.Option(
            "--speculative",
            help="Order-causal, fixed orders: draft N tokens and verify them. Exact in distribution.",
            metavar="N",
        ),
    ] = None,
    particles: Annotated[
        int | None,
        typer.Option(
            "--particles",
            help="Left to right: N texts side by side, weighed by how they read with what is given. Approximate.",
            metavar="N",
        ),
    ] = None,
    ban: Annotated[list[str] | None, typer.Option("--ban", help="A word that must not be written; repeatable.")] = None,
    must: Annotated[
        list[str] | None, typer.Option("--must", help="A word that must appear, where the model likes; repeatable.")
    ] = None,
    num_words: Annotated[int | None, typer.Option("--num-words", help="How many words the whole text has.")] = None,
    num_tokens: Annotated[
        int | None, typer.Option("--num-tokens", help="How many tokens the whole text has, around [MASK:*] and such.")
    ] = None,
    whole_words: Annotated[bool, typer.Option("--whole-words/--any-pieces", help="Leave no word half-written.")] = True,
    refine: Annotated[
        str | None, typer.Option("--refine", help="Rewrite what was written: mask-predict or gibbs.")
    ] = None,
    passes: Annotated[int | None, typer.Option("--passes", help="How often, for --refine. Without it: 4.")] = None,
    written: Annotated[
        str | None,
        typer.Option("--written", help="Tokens that come first, as JSON: '[[5, \" cat\"]]'.", metavar="JSON"),
    ] = None,
    visibility: VisibilityOption = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for templates until an empty line or Ctrl-D.")
    ] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Print the text after each step, as in the paper.")] = False,
    json: JsonOption = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON document a line for each text.")] = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "torch",
) -> None:
    """Write what stands in TEMPLATE's blanks, in any order, around what is given."""
    if num < 1:
        raise ConfigError(f"--num must be at least 1, got {num}")
    if best_of < 1:
        raise ConfigError(f"--best-of must be at least 1, got {best_of}")
    if json and (jsonl or interactive):
        raise ConfigError("--json prints one document: it goes neither with --jsonl nor with --interactive")
    if trace and (json or jsonl):
        raise ConfigError("--trace prints states for a person: it goes neither with --json nor with --jsonl")
    if passes is not None and refine is None:
        raise ConfigError("--passes goes with --refine")
    if refine is not None:
        from pmlm.refining import check_refinement

        passes = 4 if passes is None else passes
        check_refinement(refine, passes)
    if words is not None and length is None:
        raise ConfigError("--words needs --length")
    if length is not None and words is None and acrostic is None:
        raise ConfigError("--length goes with --words or --acrostic")
    if (words is not None) + (acrostic is not None) + (template is not None or interactive) > 1:
        raise ConfigError("give a template, --words or --acrostic, not several")
    if interactive and template is not None:
        raise ConfigError("--interactive asks for templates: give none")
    from pmlm.lm import load

    drawn = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    options: FillOptions = {
        "order": order,
        "visibility": visibility,
        **{name: value for name, value in drawn.items() if value is not None},  # type: ignore[typeddict-item]
        "parallel": parallel,
        "approximate_cache": approximate_cache,
        "speculative": speculative,
        "particles": particles,
        "whole_words": whole_words,
        "ban": ban or (),
        "must": must or (),
        "num_words": num_words,
        "num_tokens": num_tokens,
        "written": _read_written(written),
    }
    source = _source(template, acrostic, length) if words is None and not interactive else None
    asked = Asked(source, words, length, num, best_of, seed, options, refine, passes, trace, json, jsonl, quiet)
    lm = load(model, device=device, engine=engine)
    if interactive:
        _converse(lm, asked)
    else:
        _answer(lm, asked)


def _source(template: str | None, acrostic: str | None, length: int | None) -> str:
    from pmlm.generation.template import acrostic as acrostic_template

    if acrostic is None:
        return read_argument("-" if template is None else template)
    return acrostic_template(acrostic) if length is None else acrostic_template(acrostic, str(length))


def _read_written(written: str | None) -> list[tuple[int, str]]:
    if written is None:
        return []
    try:
        pairs = parse_json(written)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, list) or not all(
        isinstance(p, list) and len(p) == 2 and type(p[0]) is int and isinstance(p[1], str) for p in pairs
    ):
        raise ConfigError(
            f'--written takes a JSON list of positions with tokens, such as [[5, " cat"]], got {written!r}'
        )
    return [(position, token) for position, token in pairs]


def _answer(lm: LM, asked: Asked) -> None:
    from pmlm.results import candidate_seeds, filled_document, likeliest
    from pmlm.runtime import draw_seed

    first = draw_seed() if asked.seed is None else asked.seed
    seeds = candidate_seeds(first, asked.num, asked.best_of)
    results = likeliest(_write(lm, asked, _templates(lm, asked, seeds), seeds), asked.best_of)
    refined = [_refine(lm, asked, result) for result in results]
    documents = [result.to_dict() | more for result, more in zip(results, refined, strict=True)]
    if asked.json:
        print_json(filled_document(documents))
        return
    for result, document, more in zip(results, documents, refined, strict=True):
        if asked.jsonl:
            print_json_line(document)
            continue
        if asked.trace:
            _print_trace(result)
        print(more["refined"]["text"] if more else result.text)
    if not asked.quiet:
        for more in refined:
            if more:
                before, after = more["refined"]["nll_before"], more["refined"]["nll_after"]
                typer.echo(f"rewritten: nll {before:.2f} -> {after:.2f}", err=True)
        typer.echo(f"{_seeds(first, results)}, {results[0].visibility}{_shortcuts(results)}{_begun(results)}", err=True)


def _seeds(first: int, results: list[Filled]) -> str:
    """The first seed; where texts were chosen, those that write them alone."""
    if (best_of := results[0].best_of) == 1:
        return f"seed {first}"
    kept = ", ".join(str(result.seed) for result in results)
    of = f"of seeds {first * best_of} to {(first + len(results)) * best_of - 1}"
    return f"seed {kept}, the likeliest of {best_of}{' each' * (len(results) > 1)} {of}"


def _shortcuts(results: list[Filled]) -> str:
    """How many passes it took, where that is not one for each token, and what is approximate."""
    passes, tokens = sum(r.passes for r in results), sum(len(r.order) for r in results)
    said = "" if passes == tokens else f", {passes} passes for {tokens} tokens"
    return said + (f", approximate ({', '.join(results[0].approximate)})" if results[0].approximate else "")


def _begun(results: list[Filled]) -> str:
    again = sum(result.attempts - 1 for result in results)
    return f", begun anew {again} time{'s' * (again > 1)} for the constraints' sake" if again else ""


def _refine(lm: LM, asked: Asked, result: Filled) -> dict[str, Any]:
    """What second thoughts add to a result's document."""
    if asked.refine is None:
        return {}
    assert asked.passes is not None
    refined = lm.refine(
        result,
        method=asked.refine,  # type: ignore[arg-type]
        passes=asked.passes,
        seed=result.seed,
        **asked.options,
    )
    return {"refined": refined.to_dict()}


def _templates(lm: LM, asked: Asked, seeds: list[int]) -> list[str]:
    if asked.words is not None:
        assert asked.length is not None
        return [lm.scatter(asked.words, asked.length, seed=seed) for seed in seeds]
    assert asked.template is not None
    return [asked.template] * len(seeds)


def _write(lm: LM, asked: Asked, templates: list[str], seeds: list[int]) -> list[Filled]:
    """A single text is shown while it is written, where somebody looks on."""
    if len(templates) == 1 and sys.stderr.isatty() and not asked.quiet:
        from pmlm.cli.live_canvas import LiveCanvas

        return [lm.fill(templates[0], seed=seeds[0], streamer=LiveCanvas(), **asked.options)]
    return lm.fill_batch(templates, seeds=seeds, **asked.options)


def _converse(lm: LM, asked: Asked) -> None:
    """Ask, answer, ask again; what is wrong with a template is said, and the next one asked for."""
    from dataclasses import replace

    for source in _asked_for():
        try:
            _answer(lm, replace(asked, template=source))
        except PmlmError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.stdout.flush()


def _asked_for() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            typer.echo(_PROMPT, nl=False, err=True)
        try:
            line: Any = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise DataError(f"cannot read stdin: {error}") from None
        if not line.strip():
            return
        yield line.rstrip("\r\n")


def _print_trace(result: Filled) -> None:
    for step, state in enumerate(result.states()):
        index = "–" if step == 0 else str(result.order[step - 1])
        print(f"{step:>4}{index:>5}  " + " ".join("_" if token is None else token.strip() or "␣" for token in state))
