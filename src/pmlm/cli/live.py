"""How a training run looks on a terminal, and in a log."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pmlm.runtime import matmul_peak
from pmlm.training.loop import Measured, RunLoop, Saved
from pmlm.training.trainer import StepReport

Event = StepReport | Measured | Saved
Show = Callable[[Event], None]
Run = RunLoop[Any, Any]

MOST_PEAKS = 5
"""How often the peak is measured where steps are quicker than it."""


class Speed:
    """Tokens per second over the last steps, and what share of the machine's measured matmul peak they use."""

    def __init__(self, run: Run) -> None:
        self.recent: deque[tuple[int, float]] = deque(maxlen=20)
        self.device, self.world = run.device, run.ranks.world
        self.per_token = run.flops_per_token()
        self.peak, self.measured = 0.0, 0
        self._measure()

    def _measure(self) -> None:
        self.peak, self.measured = max(self.peak, matmul_peak(self.device) * self.world), self.measured + 1

    def update(self, report: StepReport) -> str:
        self.recent.append((report.tokens, report.seconds))
        seconds = sum(s for _, s in list(self.recent)[1:])
        if not seconds:
            return ""  # nothing to compare the first step with
        rate = (self.recent[-1][0] - self.recent[0][0]) / seconds
        if rate * self.per_token > self.peak and self.measured < MOST_PEAKS:  # something else ran when it was measured
            self._measure()
        return f"{rate:,.0f} tokens/s  {rate * self.per_token / self.peak:.0%} of matmul peak"


@contextmanager
def live_display(run: Run, start: int) -> Iterator[Show]:
    """A bar with loss, speed and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(run.name, total=run.pace.num_steps, completed=start, loss=0.0, speed="")
        speed = Speed(run)

        def show(event: Event) -> None:
            if isinstance(event, StepReport):
                bar.update(task, completed=event.step, loss=event.loss, speed=speed.update(event))
            else:
                bar.console.print(_line(event))

        yield show


@contextmanager
def plain_display(run: Run, start: int) -> Iterator[Show]:
    """A line a minute, and one for each evaluation; each names the run, since a log may hold several."""
    del start
    speed, said = Speed(run), [0.0]

    def show(event: Event) -> None:
        if isinstance(event, StepReport):
            now = speed.update(event)
            if time.monotonic() - said[0] < 60:
                return
            said[0] = time.monotonic()
            text = f"step {event.step}/{run.pace.num_steps}  loss {event.loss:.4f}  {now}"
        elif isinstance(event, Saved):
            return
        else:
            text = _line(event)
        print(f"{run.name}: {text}", file=sys.stderr, flush=True)

    yield show


def _line(event: Measured | Saved) -> str:
    return f"saved {event.path.name}" if isinstance(event, Saved) else event.line()
