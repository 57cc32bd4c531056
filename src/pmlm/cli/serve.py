"""`pmlm serve`: the HTTP API and the page."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmlm.cli.common import DeviceOption, EngineOption, QuietOption, ThreadsOption, use_threads
from pmlm.errors import ConfigError, RunError

if TYPE_CHECKING:
    from pmlm.lm import LM
    from pmlm.nlu.finetuned import Finetuned

_TOKEN = "PMLM_TOKEN"


def serve(
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="DIR",
            help="Checkpoint folder, of a language model or a fine-tuned one; repeatable. Without it: PMLM_MODEL, else "
            "the model inside the package.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option("--token", help=f"Bearer token that requests must carry. Better: in {_TOKEN}.", metavar="TOKEN"),
    ] = None,
    places: Annotated[
        int | None, typer.Option("--places", help="Texts that share forward passes; 1: one after the other.")
    ] = None,
    waiting: Annotated[
        int | None, typer.Option("--waiting", help="Requests served or waiting; the next is told to come back.")
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Time that one request gets.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Texts of one request, at most: n times best_of.")
    ] = None,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "torch",
    quiet: QuietOption = False,
) -> None:
    """Serve models over HTTP, with a page to watch them write."""
    try:
        import uvicorn

        from pmlm.serve.app import create_app
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: `pip install 'pmlm[serve]'` brings it") from None
    from pmlm.serve.limits import Limits

    given = {"places": places, "waiting": waiting, "seconds": seconds, "samples": samples}
    limits = Limits(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    token = token if token is not None else os.environ.get(_TOKEN)
    if token is not None and (not token.isascii() or not token.strip() or token != token.strip()):
        raise ConfigError("the token must be plain letters, digits and marks, not empty, with no space around it")
    use_threads(threads)
    app = create_app(_load(models or [], device, engine), limits=limits, token=token)
    if token is None and not _is_loopback(host):
        typer.echo(f"warning: {host} can be reached from elsewhere and no --token is set: anybody may use it", err=True)
    server = uvicorn.Server(
        uvicorn.Config(
            app, host=host, port=port, log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=5,
        )
    )  # fmt: skip
    _listen(server, host, port, quiet)


def _listen(server: object, host: str, port: int, quiet: bool) -> None:
    import uvicorn

    assert isinstance(server, uvicorn.Server)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)  # before it is announced
    except (OSError, OverflowError) as error:
        raise RunError(f"cannot listen on {host} port {port}: {error}") from None
    if not quiet:
        name = f"[{host}]" if ":" in host else host
        typer.echo(f"pmlm serves on http://{name}:{listening.getsockname()[1]} (Ctrl-C stops it)", err=True)
        sys.stderr.flush()

    def stop(*_: object) -> None:
        server.should_exit = True  # uvicorn hands the signal back to us once it has stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _load(folders: list[Path], device: str, engine: str) -> dict[str, LM | Finetuned]:
    from pmlm.nlu.finetuned import load_any

    models: dict[str, LM | Finetuned] = {}
    for folder in folders or [None]:  # type: ignore[list-item]
        model = load_any(folder, device=device, engine=engine)
        name = str(model.describe()["name"])
        while name in models:
            name += "+"
        models[name] = model
    return models


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
