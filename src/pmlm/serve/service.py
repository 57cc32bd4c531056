"""Requests in, documents out: what the server does, without HTTP.

Everything that touches a model goes through the worker; here it is asked, awaited and given up in time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from pmlm.errors import ConfigError, PmlmError, RunError, TemplateError
from pmlm.generation.canvas import Canvas
from pmlm.generation.decode import Reveal
from pmlm.generation.engine import Job
from pmlm.generation.template import parse_template, template_source
from pmlm.lm import LM
from pmlm.results import filled_document
from pmlm.runtime import draw_seed
from pmlm.serve.limits import Busy, LimitError, Limits, TooSlow, UnknownModel
from pmlm.serve.metrics import Metrics
from pmlm.serve.schemas import CandidatesRequest, FillMaskRequest, GenerateRequest, ScoreRequest
from pmlm.serve.worker import Done, Failed, Ready, Report, Task, Worker, Wrote

T = TypeVar("T")
FAILED = "the server failed at this request"
"""All that a client is told of a bug; the log has the rest."""


class Service:
    """Models by name, and the worker that runs them."""

    def __init__(self, models: dict[str, LM], limits: Limits) -> None:
        self.models, self.limits, self.metrics = models, limits, Metrics()
        self.worker = Worker(limits.places, self.metrics)
        self.num_waiting = 0

    def lm(self, name: str | None) -> LM:
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UnknownModel(f"no model {name!r} is served. Known: {', '.join(self.models)}.")
        return self.models[name]

    def about(self) -> list[dict[str, Any]]:
        return [{**lm.describe(), "name": name} for name, lm in self.models.items()]

    async def generate(self, asked: GenerateRequest) -> dict[str, Any]:
        writing = Writing(self, asked)
        async for _ in writing.events():
            pass
        return writing.document()

    async def score(self, asked: ScoreRequest) -> dict[str, Any]:
        lm = self.lm(asked.model)

        def run() -> dict[str, Any]:
            if asked.given is not None:
                self.check_template(asked.given)
                lm.check_fits(asked.text)
            result = lm.score(
                asked.text, order=asked.order, seed=asked.seed, visibility=asked.visibility, given=asked.given
            )
            return result.to_dict()

        return await self.call(run)

    async def fill_mask(self, asked: FillMaskRequest) -> list[Any]:
        lm = self.lm(asked.model)

        def run() -> list[Any]:
            self.check_template(asked.template)
            return lm.fill_mask(asked.template, top_k=asked.top_k, targets=asked.targets, visibility=asked.visibility)

        return await self.call(run)

    async def candidates(self, asked: CandidatesRequest) -> dict[str, Any]:
        lm = self.lm(asked.model)

        def run() -> list[dict[str, Any]]:
            self.check_template(asked.template)
            return lm.candidates(asked.template, asked.position, count=asked.count, seed=asked.seed, **asked.options())

        return {"position": asked.position, "candidates": await self.call(run)}

    def check_template(self, template: str) -> None:
        if (num := len(parse_template(template).blanks)) > self.limits.blanks:
            raise LimitError(f"the template has {num} blanks; this server takes at most {self.limits.blanks}")

    async def call(self, run: Callable[[], T]) -> T:
        """What `run` returns, once the worker has come to it."""
        async for report in self.reports(lambda put: Task(put, call=run)):
            assert isinstance(report, Done)
            return report.value
        raise AssertionError("a call is answered")

    async def reports(self, make: Callable[[Callable[[Report], None]], Task]) -> AsyncIterator[Report]:
        """What the worker says about a task, to its end. Who stops listening cancels it."""
        if self.num_waiting >= self.limits.waiting:
            raise Busy(f"the server is busy: {self.num_waiting} requests are being served. Try again in a moment.")
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[Report]()

        def put(report: Report) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(inbox.put_nowait, report)

        task, is_done = make(put), False
        self._count(1)
        self.worker.submit(task)
        try:
            async with asyncio.timeout(self.limits.seconds):
                while not is_done:
                    report = await inbox.get()
                    is_done = isinstance(report, Done | Failed)
                    if isinstance(report, Failed):
                        raise report.error if isinstance(report.error, PmlmError) else RunError(FAILED)
                    yield report
        except TimeoutError:
            raise TooSlow(f"the request was not done within {self.limits.seconds:g} s, which is all it gets") from None
        finally:
            if not is_done:
                self.worker.cancel(task)
                self.metrics.add("pmlm_cancelled_total")
            self._count(-1)

    def _count(self, change: int) -> None:
        self.num_waiting += change
        self.metrics.set("pmlm_waiting", self.num_waiting)


class Writing:
    """One request to write, from its draft to its document."""

    def __init__(self, service: Service, asked: GenerateRequest) -> None:
        self.service, self.lm, self.asked = service, service.lm(asked.model), asked
        _check_asked(asked, service.limits)
        first = draw_seed() if asked.seed is None else asked.seed
        self.seeds = [first + i for i in range(asked.n)]
        self.settings = self.lm.settings(asked.options())
        self.begin = time.perf_counter()
        self.canvases: list[Canvas] = []
        self.reveals: list[list[Reveal]] = []

    def _prepare(self) -> Sequence[tuple[Canvas, Job]]:
        return list(self.lm.writer.jobs(self._templates(), self.seeds, self.settings))

    def _templates(self) -> list[str]:
        asked = self.asked
        if asked.words is not None:
            assert asked.length is not None
            most = self.lm.model.config.max_length - 2
            if asked.length > most:
                raise TemplateError(f"length must be at most {most}, what the model reads; got {asked.length}")
            return [self.lm.scatter(asked.words, asked.length, seed=seed) for seed in self.seeds]
        assert asked.template is not None
        self.service.check_template(asked.template)
        return [asked.template] * asked.n

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """`draft`, then a `step` for every token; names and data."""
        model, writer = self.lm.model, self.lm.writer
        async for report in self.service.reports(lambda put: Task(put, model=model, prepare=self._prepare)):
            if isinstance(report, Ready):
                self.canvases, self.reveals = report.canvases, [[] for _ in report.canvases]
                yield (
                    "draft",
                    {
                        "drafts": [writer.draft(canvas) for canvas in self.canvases],
                        "templates": [template_source(canvas.template) for canvas in self.canvases],
                        "seeds": self.seeds,
                    },
                )
            elif isinstance(report, Wrote):
                mine = self.reveals[report.text]
                mine.append(report.reveal)
                if len(mine) == 1 and report.text == 0:
                    self.service.metrics.observe("pmlm_first_step_seconds", time.perf_counter() - self.begin)
                step = writer.step(self.canvases[report.text], len(mine), report.reveal)
                yield "step", {"text": report.text, **step.to_dict()}

    def document(self) -> dict[str, Any]:
        """As `pmlm generate --json` prints it."""
        each = zip(self.canvases, self.reveals, self.seeds, strict=True)
        return filled_document([self.lm.writer.result(*parts, self.settings).to_dict() for parts in each])


def _check_asked(asked: GenerateRequest, limits: Limits) -> None:
    if asked.n < 1:
        raise ConfigError(f"n must be at least 1, got {asked.n}")
    if asked.n > limits.samples:
        raise LimitError(f"{asked.n} texts were asked for; this server writes at most {limits.samples} at once")
    if (asked.words is None) != (asked.length is None):
        raise ConfigError("words and length go together")
    if (asked.words is None) == (asked.template is None):
        raise ConfigError("give a template or words, not both" if asked.words is not None else "there is no template")
