"""Following a run to its end or to an interrupt, with a display."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmlm.training.loop import RunLoop


def follow(
    run: RunLoop[Any, Any], start: int, *, shown: bool, write: Callable[[Any], None] = lambda _event: None
) -> dict[str, Any]:
    """Returns the last figures; whether the run has ended is asked of the run."""
    from pmlm.training.loop import Saved
    from pmlm.training.trainer import StepReport

    last: dict[str, Any] = {"step": start}
    with _interrupts() as stopped, _display(run, start, shown) as show:
        for event in run.events(lambda: bool(stopped)):
            if isinstance(event, StepReport):
                last |= {"step": event.step, "loss": event.loss, "tokens": event.tokens}
            elif not isinstance(event, Saved):
                last |= event.record()
            show(event)
            write(event)
    if shown and not run.has_ended:
        where = f"stopped at step {last['step']} of {run.pace.num_steps} and saved"
        print(f"{run.name}: {where}; the same command goes on from there", file=sys.stderr, flush=True)
    return last


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The first Ctrl-C or termination asks to stop after this step; a second one stops at once."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _display(run: RunLoop[Any, Any], start: int, shown: bool) -> Iterator[Any]:
    """A live line on a terminal; a line now and then elsewhere."""
    if not shown:
        yield lambda _event: None
        return
    from pmlm.cli.live import live_display, plain_display

    with live_display(run, start) if sys.stderr.isatty() else plain_display(run, start) as show:
        yield show
