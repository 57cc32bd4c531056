"""The command line: parsing, printing, exit codes. Nothing else lives here, and importing it imports no torch.

Data goes to stdout, talk to stderr. Exit 0 well, 1 the run failed, 2 the input must be corrected, 130 interrupted.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pmlm import __version__
from pmlm.cli import (
    adapt,
    answer,
    bench,
    classify,
    compare,
    convert,
    evaluate,
    export,
    finetune,
    generate,
    info,
    plot,
    prepare,
    score,
    serve,
    tokenizer,
    train,
)
from pmlm.errors import PmlmError
from pmlm.rank_process import leave

_INTERRUPTED = 130
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # click's own

app = typer.Typer(
    name="pmlm",
    help="Any-order language modelling: write text in any order, with exact likelihoods.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("score")(score.score)
app.command("evaluate")(evaluate.evaluate)
app.command("serve")(serve.serve)
app.command("info")(info.info)
app.command("prepare")(prepare.prepare)
app.command("train")(train.train)
app.command("plot")(plot.plot)
app.command("compare")(compare.compare)
app.command("classify")(classify.classify)
app.command("answer")(answer.answer)
app.add_typer(finetune.app, name="finetune")
app.command("convert")(convert.convert)
app.command("adapt")(adapt.adapt)
app.command("export")(export.export)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"pmlm {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    del version


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; every error a user can cause is one line on stderr."""
    try:
        result = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        message = error.format_message().rstrip(".")
        return _say(f"pmlm: {message}. Try --help.", 2) if message else 2
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", _INTERRUPTED)
    except PmlmError as error:
        return _say(f"{type(error).__name__}: {' '.join(str(error).split())}", error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no complaint at exit
        return 1
    except OSError as error:
        if error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _say(f"cannot write the output: {error.strerror}", 1)
        if error.filename is None:
            raise
        return _say(f"cannot use {error.filename}: {error.strerror}", 1)
    if result == _INTERRUPTED:  # typer has seen a Ctrl-C before us
        return _say("interrupted", _INTERRUPTED)
    return result if isinstance(result, int) else 0


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter shows its number
    leave(run())


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
