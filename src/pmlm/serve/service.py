"""Requests in, documents out: what the server does, without HTTP.

Everything that touches a model goes through the worker; here it is asked, awaited and given up in time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pmlm.errors import ConfigError, DataError, PmlmError, RunError, TemplateError
from pmlm.generation.canvas import Canvas
from pmlm.generation.decode import Reveal
from pmlm.generation.engine import Job
from pmlm.generation.template import parse_template, template_source, with_lengths
from pmlm.lm import LM, default_model_folder
from pmlm.nlu.finetuned import ANSWER, CLASSIFY, Answered, Classified, Finetuned
from pmlm.results import candidate_seeds, filled_document, likeliest
from pmlm.runtime import draw_seed
from pmlm.serve.limits import Busy, LimitError, Limits, TooSlow, UnknownModel, WrongModel
from pmlm.serve.metrics import Metrics
from pmlm.serve.schemas import (
    AnswerRequest,
    CandidatesRequest,
    ClassifyRequest,
    FillMaskRequest,
    GenerateRequest,
    ScoreRequest,
)
from pmlm.serve.worker import Done, Failed, Ready, Report, Restarted, Task, Worker, Wrote

T = TypeVar("T")
FAILED = "the server failed at this request"
"""All that a client is told of a bug; the log has the rest."""
_LM_ROUTES = ("/v1/generate", "/v1/generate/stream", "/v1/score", "/v1/fill-mask", "/v1/candidates")


def routes_of(model: LM | Finetuned) -> list[str]:
    """What can be asked of a model."""
    if isinstance(model, LM):
        return list(_LM_ROUTES)
    heads = {"/v1/classify": CLASSIFY, "/v1/answer": ANSWER}
    return [route for route, kinds in heads.items() if model.has_head(kinds)]


class Service:
    """Models by name, and the worker that runs them."""

    def __init__(self, models: Mapping[str, LM | Finetuned], limits: Limits) -> None:
        self.models, self.limits, self.metrics = models, limits, Metrics()
        self.worker = Worker(limits.places, self.metrics)
        self.num_waiting = 0

    def lm(self, name: str | None, route: str) -> LM:
        model = self._model(name, route)
        assert isinstance(model, LM)
        return model

    def finetuned(self, name: str | None, route: str) -> Finetuned:
        model = self._model(name, route)
        assert isinstance(model, Finetuned)
        return model

    def names(self, route: str) -> list[str]:
        """The models that a route can ask; the first is its default."""
        return [name for name, model in self.models.items() if route in routes_of(model)]

    def _model(self, name: str | None, route: str) -> LM | Finetuned:
        able = self.names(route)
        if name is None and not able:
            raise UnknownModel(f"no model for {route} is served: /v1/models says what each one is for")
        if name is not None and name not in self.models:
            raise UnknownModel(f"no model {name!r} is served. Known: {', '.join(self.models)}.")
        if name is not None and name not in able:
            knows = ", ".join(routes_of(self.models[name]))
            raise WrongModel(f"the model {name!r} is not one for {route}; it is for {knows}")
        return self.models[able[0] if name is None else name]

    def about(self) -> list[dict[str, Any]]:
        return [
            {
                **model.describe(),
                "name": name,
                "endpoints": routes_of(model),
                "packaged": model.folder == default_model_folder(),
                "tasks": model.tasks() if isinstance(model, Finetuned) else [],
                "sampling": {} if isinstance(model, Finetuned) else model.sampling.choices(),
            }
            for name, model in self.models.items()
        ]

    async def generate(self, asked: GenerateRequest) -> dict[str, Any]:
        writing = Writing(self, asked)
        async for _ in writing.events():
            pass
        return writing.document()

    async def score(self, asked: ScoreRequest) -> dict[str, Any]:
        lm = self.lm(asked.model, "/v1/score")

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
        lm = self.lm(asked.model, "/v1/fill-mask")

        def run() -> list[Any]:
            self.check_template(asked.template)
            return lm.fill_mask(asked.template, top_k=asked.top_k, targets=asked.targets, visibility=asked.visibility)

        return await self.call(run)

    async def candidates(self, asked: CandidatesRequest) -> dict[str, Any]:
        lm = self.lm(asked.model, "/v1/candidates")

        def run() -> list[dict[str, Any]]:
            self.check_template(asked.template)
            return lm.candidates(asked.template, asked.position, count=asked.count, seed=asked.seed, **asked.options())

        return {"position": asked.position, "candidates": await self.call(run)}

    async def classify(self, asked: ClassifyRequest) -> dict[str, Any]:
        model = self.finetuned(asked.model, "/v1/classify")
        match asked.texts, asked.batch:
            case list() as texts, None:
                groups = [texts]
            case None, list() as batch:
                groups = self._batch(batch)
            case _:
                raise DataError("give texts (one, or two for a task of pairs), or a batch of them")
        said = await self.call(lambda: model.classify_batch(groups, task=asked.task))
        return _documents(said, is_batch=asked.texts is None)

    async def answer(self, asked: AnswerRequest) -> dict[str, Any]:
        model = self.finetuned(asked.model, "/v1/answer")
        match asked.question, asked.context, asked.batch:
            case str() as question, str() as context, None:
                pairs = [(question, context)]
            case None, None, list() as batch:
                pairs = self._batch(batch)
            case _:
                raise DataError("give question and context, or a batch of them")
        said = await self.call(lambda: model.answer_batch(pairs, num=asked.num, threshold=asked.threshold))
        return _documents(said, is_batch=asked.batch is not None)

    def _batch(self, items: list[T]) -> list[T]:
        if not items:
            raise DataError("the batch is empty")
        if len(items) > self.limits.samples:
            raise LimitError(f"the batch has {len(items)} entries; this server takes at most {self.limits.samples}")
        return items

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
        deadline = loop.time() + self.limits.seconds
        self.worker.submit(task)
        try:
            while not is_done:
                async with asyncio.timeout_at(deadline):  # never across a yield: another task may ask for what follows
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
        self.service, self.lm, self.asked = service, service.lm(asked.model, "/v1/generate"), asked
        _check_asked(asked, service.limits)
        first = draw_seed() if asked.seed is None else asked.seed
        self.seeds = candidate_seeds(first, asked.n, asked.best_of)
        self.settings = self.lm.settings(asked.options())
        self.begin, self.has_begun = time.perf_counter(), False
        self.templates: list[str] = []
        self.canvases: list[Canvas] = []
        self.reveals: list[list[Reveal]] = []
        self.attempts: list[int] = []

    def _prepare(self) -> Iterator[tuple[Canvas, Job]]:
        self.templates = self._templates()
        return self.lm.writer.jobs(self.templates, self.seeds, self.settings)

    def _again(self, text: int, attempt: int) -> tuple[Canvas, Job]:
        (again,) = self.lm.writer.jobs([self.templates[text]], [self.seeds[text]], self.settings, attempt)
        return again

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
        return [asked.template] * len(self.seeds)

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """`draft`, then a `step` for every token and a `restart` where one text is begun anew; names and data."""
        model, writer = self.lm.model, self.lm.writer

        def make(put: Callable[[Report], None]) -> Task:
            return Task(put, model=model, prepare=self._prepare, num_texts=len(self.seeds), again=self._again)

        async for report in self.service.reports(make):
            if isinstance(report, Ready):
                self.canvases, self.reveals = report.canvases, [[] for _ in report.canvases]
                self.attempts = [1] * len(report.canvases)
                drawn = [self._drawn(canvas) for canvas in self.canvases]
                told = {"drafts": [d for d, _ in drawn], "templates": [t for _, t in drawn], "seeds": self.seeds}
                yield "draft", told
            elif isinstance(report, Restarted):
                self.canvases[report.text], self.reveals[report.text] = report.canvas, []
                self.attempts[report.text] = report.attempt
                draft, template = self._drawn(report.canvas)
                told = {"text": report.text, "attempt": report.attempt, "draft": draft, "template": template}
                yield "restart", told
            elif isinstance(report, Wrote):
                mine = self.reveals[report.text]
                mine.append(report.reveal)
                if not self.has_begun:
                    self.has_begun = True
                    self.service.metrics.observe("pmlm_first_step_seconds", time.perf_counter() - self.begin)
                step = writer.step(self.canvases[report.text], len(mine), report.reveal)
                yield "step", {"text": report.text, **step.to_dict()}

    def _drawn(self, canvas: Canvas) -> tuple[list[str | None], str]:
        """A canvas before anything is written: its tokens, and the template with all that was chosen for it."""
        return self.lm.writer.draft(canvas), template_source(with_lengths(canvas.template))

    def document(self) -> dict[str, Any]:
        """As `pmlm generate --json` prints it."""
        each = zip(self.canvases, self.reveals, self.seeds, self.attempts, strict=True)
        written = [
            self.lm.writer.result(canvas, reveals, seed, self.settings, attempts)
            for canvas, reveals, seed, attempts in each
        ]
        return filled_document([result.to_dict() for result in likeliest(written, self.asked.best_of)])


def _documents(said: Sequence[Classified] | Sequence[Answered], *, is_batch: bool) -> dict[str, Any]:
    """As `pmlm classify --json` and `pmlm answer --json` print it; those of a batch in a list."""
    documents = [result.to_dict() for result in said]
    return {"results": documents} if is_batch else documents[0]


def _check_asked(asked: GenerateRequest, limits: Limits) -> None:
    if asked.n < 1:
        raise ConfigError(f"n must be at least 1, got {asked.n}")
    if (texts := asked.n * asked.best_of) > limits.samples:
        raise LimitError(f"{texts} texts were asked for; this server writes at most {limits.samples} at once")
    if (asked.words is None) != (asked.length is None):
        raise ConfigError("words and length go together")
    if (asked.words is None) == (asked.template is None):
        raise ConfigError("give a template or words, not both" if asked.words is not None else "there is no template")
