"""The one thread that runs models: it takes requests in between turns of the engine and hands out what comes of them.

The event loop only queues. What a request asks for is prepared here too, since that may run the model. Reports go to a
`put` that must be safe to call from this thread.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pmlm.errors import ConstraintError, PmlmError, RunError
from pmlm.generation.canvas import Canvas
from pmlm.generation.decode import Reveal
from pmlm.generation.engine import Cornered, Engine, Event, Job, Line, Pool, Solos
from pmlm.model import LanguageModel
from pmlm.serve.metrics import Metrics
from pmlm.writer import CORNERED, MOST_ATTEMPTS

_log = logging.getLogger("pmlm.serve")
_PER_TURN = 4
"""New requests taken in between two turns, so that those in flight are not kept waiting."""
_PREPARE_SECONDS = 0.05
"""Between two turns, for making texts ready; one is always made ready, and may take longer."""


@dataclass(frozen=True)
class Ready:
    """The canvases, before the first token."""

    canvases: list[Canvas]


@dataclass(frozen=True)
class Wrote:
    """A token of the request's text number `text`."""

    text: int
    reveal: Reveal


@dataclass(frozen=True)
class Restarted:
    """Constraints have driven a text into a corner: it is begun anew, on this canvas."""

    text: int
    attempt: int
    """2, 3, … of MOST_ATTEMPTS."""
    canvas: Canvas


@dataclass(frozen=True)
class Done:
    """All is written; or, for a call, what it returned."""

    value: Any = None


@dataclass(frozen=True)
class Failed:
    error: Exception


Report = Ready | Wrote | Restarted | Done | Failed


@dataclass(eq=False)
class Task:
    """A request: canvases to be filled, or one call."""

    put: Callable[[Report], None]
    model: LanguageModel | None = None
    prepare: Callable[[], Iterator[tuple[Canvas, Job]]] | None = None
    """Its texts, each made ready when it is taken."""
    num_texts: int = 0
    again: Callable[[int, int], tuple[Canvas, Job]] | None = None
    """A text's canvas and job by its number and how often it was begun before."""
    call: Callable[[], Any] | None = None
    is_cancelled: bool = False
    num_left: int = 0
    preparing: Iterator[tuple[Canvas, Job]] | None = None
    prepared: list[tuple[Canvas, Job]] = field(default_factory=list)
    waiting: deque[tuple[int, Job]] = field(default_factory=deque)
    lines: dict[Line, int] = field(default_factory=dict)
    failed_attempts: Counter[int] = field(default_factory=Counter)
    """Of each text."""


class Worker:
    def __init__(self, places: int, metrics: Metrics) -> None:
        self.places, self.metrics = places, metrics
        self._engines: dict[LanguageModel, Engine] = {}
        self._inbox: deque[Task] = deque()
        self._preparing: list[Task] = []
        self._tasks: list[Task] = []
        self._news = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pmlm-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let go of everything and end the thread."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join()

    def submit(self, task: Task) -> None:
        with self._news:
            self._inbox.append(task)
            self._news.notify()

    def cancel(self, task: Task) -> None:
        """It leaves before the next turn; nothing happens where it is done."""
        with self._news:
            task.is_cancelled = True
            self._news.notify()

    def _run(self) -> None:
        while (new := self._wait()) is not None:
            for task in new:
                self._begin(task)
            self._drop_cancelled()
            self._prepare()
            self._admit()
            self._turn()
        for task in (*self._tasks, *self._preparing, *self._inbox):
            task.put(Failed(RunError("the server is being stopped")))

    def _wait(self) -> list[Task] | None:
        """New tasks, once there is something to do; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._inbox or self._preparing or self._tasks or self._stopping)
            if self._stopping:
                return None
            return [self._inbox.popleft() for _ in range(min(_PER_TURN, len(self._inbox)))]

    def _begin(self, task: Task) -> None:
        if task.is_cancelled:
            return
        if task.prepare is not None:
            self._preparing.append(task)
            return
        assert task.call is not None
        try:
            task.put(Done(task.call()))
        except Exception as error:
            self._fail(task, error)

    def _prepare(self) -> None:
        """A text of each request in turn, as long as there is time: one may take long, and a request has many."""
        until = time.perf_counter() + _PREPARE_SECONDS
        while self._preparing:
            self._prepare_one(self._preparing.pop(0))
            if time.perf_counter() > until:
                return

    def _prepare_one(self, task: Task) -> None:
        assert task.prepare is not None
        try:
            task.preparing = task.preparing or task.prepare()
            task.prepared.append(next(task.preparing))
        except Exception as error:
            self._fail(task, error)
            return
        if len(task.prepared) < task.num_texts:
            self._preparing.append(task)
            return
        task.put(Ready([canvas for canvas, _ in task.prepared]))
        task.waiting.extend(enumerate(job for _, job in task.prepared))
        task.num_left = task.num_texts
        self._tasks.append(task)

    def _engine(self, task: Task) -> Engine:
        assert task.model is not None
        if task.model not in self._engines:
            self._engines[task.model] = Engine(task.model, places=self.places)
        return self._engines[task.model]

    def _drop_cancelled(self) -> None:
        self._preparing = [task for task in self._preparing if not task.is_cancelled]
        for task in [task for task in self._tasks if task.is_cancelled]:
            self._drop(task)

    def _drop(self, task: Task) -> None:
        for line in task.lines:
            self._engine(task).leave(line)
        self._tasks.remove(task)

    def _admit(self) -> None:
        """First come, first served, as far as there is room for a text's kind: nobody overtakes one that waits."""
        full: set[Pool | Solos] = set()
        for task in self._tasks:
            engine = self._engine(task)
            while task.waiting:
                number, job = task.waiting[0]
                pool = engine.pool(job)
                if pool in full or not pool.has_room(job):
                    full.add(pool)
                    break
                task.waiting.popleft()
                task.lines[engine.join(job)] = number

    def _turn(self) -> None:
        for model, engine in list(self._engines.items()):
            if not engine.num_lines:
                continue
            owners = {line: task for task in self._tasks for line in task.lines}
            try:
                for event in engine.turn():
                    self._report(owners[event.line], event)
            except Exception as error:  # a bug: those in flight are told, and others are served on
                for task in [task for task in self._tasks if task.model is model]:
                    self._tasks.remove(task)
                    self._fail(task, error)
                del self._engines[model]
            self.metrics.add("pmlm_turns_total")
        self.metrics.set("pmlm_in_flight", sum(engine.num_lines for engine in self._engines.values()))

    def _report(self, task: Task, event: Event) -> None:
        if task not in self._tasks:
            return  # another of its texts has failed at this turn
        if isinstance(event.error, Cornered):
            self._begin_again(task, task.lines.pop(event.line))
            return
        if event.error is not None:
            self._drop(task)
            self._fail(task, event.error)
            return
        if event.reveal is not None:
            self.metrics.add("pmlm_tokens_total")
            task.put(Wrote(task.lines[event.line], event.reveal))
        if event.is_last:
            del task.lines[event.line]
            task.num_left -= 1
            if not task.num_left:
                self._tasks.remove(task)
                task.put(Done())

    def _begin_again(self, task: Task, number: int) -> None:
        """As the library does: from other draws, a bounded number of times."""
        assert task.again is not None
        task.failed_attempts[number] += 1
        attempt = task.failed_attempts[number]
        try:
            if attempt == MOST_ATTEMPTS:
                raise ConstraintError(CORNERED)
            canvas, job = task.again(number, attempt)
        except Exception as error:
            self._drop(task)
            self._fail(task, error)
            return
        self.metrics.add("pmlm_restarts_total")
        task.put(Restarted(number, attempt + 1, canvas))
        task.waiting.appendleft((number, job))

    def _fail(self, task: Task, error: Exception) -> None:
        if not isinstance(error, PmlmError):
            _log.error("a request failed", exc_info=error)
        task.put(Failed(error))
