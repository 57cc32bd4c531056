"""The rows of the next step, made ready by a thread while a GPU is at the current one.

What a step draws follows from (seed, step, row) alone, so it does not matter when it is drawn. What the outside sees of
the job is where the current step left it: a checkpoint knows nothing of the step that is already prepared.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pmlm.training.distributed import Ranks
from pmlm.training.job import Job, Task


@dataclass(frozen=True)
class _Ready:
    """A prepared step, and the job as it was after preparing it."""

    tasks: list[Task]
    tokens: int
    state: dict[str, Any]


class Ahead:
    """A job that is one step ahead."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._next: tuple[int, Future[_Ready]] | None = None
        self._tokens, self._state = job.tokens(), job.state_dict()

    def tasks(self, step: int, ranks: Ranks) -> list[Task]:
        if self._next is not None and self._next[0] != step:
            self.load_state_dict(self._state)  # another step than the one after the last
        ready = self._prepare(step, ranks) if self._next is None else self._next[1].result()
        self._tokens, self._state = ready.tokens, ready.state
        self._next = (step + 1, self._thread.submit(self._prepare, step + 1, ranks))
        return ready.tasks

    def _prepare(self, step: int, ranks: Ranks) -> _Ready:
        tasks = self.job.tasks(step, ranks)
        return _Ready(tasks, self.job.tokens(), self.job.state_dict())

    def shares(self, step: int) -> list[float]:
        return self.job.shares(step)

    def tokens(self) -> int:
        return self._tokens

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._next is not None:
            self._next[1].exception()  # until the thread is done with the job
            self._next = None
        self.job.load_state_dict(state)
        self._tokens, self._state = self.job.tokens(), self.job.state_dict()
