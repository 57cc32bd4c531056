"""The routes: each reads a request, asks the service and sends what it says. Errors are the command line's lines."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from pmlm import __version__
from pmlm.errors import PmlmError
from pmlm.lm import LM
from pmlm.nlu.finetuned import Finetuned
from pmlm.serve.guard import Guard
from pmlm.serve.limits import Busy, LimitError, Limits, TooSlow, UnknownModel, WrongModel
from pmlm.serve.openapi import EVENTS, complete, problems
from pmlm.serve.schemas import (
    AnsweredQuestion,
    AnsweredQuestions,
    AnswerRequest,
    Candidates,
    CandidatesRequest,
    ClassifiedText,
    ClassifiedTexts,
    ClassifyRequest,
    FilledText,
    FilledTexts,
    FillMaskRequest,
    GenerateRequest,
    Guess,
    Health,
    Models,
    RatedText,
    ScoredText,
    ScoreRequest,
)
from pmlm.serve.service import FAILED, Service, Writing

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
_RETRY_SECONDS = 1
_GONE = 499
_log = logging.getLogger("pmlm.serve")


def create_app(
    models: Mapping[str, LM | Finetuned], *, limits: Limits | None = None, token: str | None = None
) -> FastAPI:
    """An ASGI application that serves the given models; the first is the default."""
    limits = limits or Limits()
    service = Service(models, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await asyncio.to_thread(service.worker.stop)

    app = FastAPI(
        title="pmlm",
        version=__version__,
        description="Any-order language modelling over HTTP.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    _add_routes(app, service)
    _add_pages(app)
    _add_errors(app)
    complete(app, service.names, has_token=token is not None)
    app.add_middleware(Guard, limits=limits, metrics=service.metrics, token=token)
    return app


def _json_only(request: Request) -> None:
    """Anything else could be sent by another site's page without the browser asking us first."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(415, "the body must be JSON: send the header `Content-Type: application/json`")


_JSON = [Depends(_json_only)]


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post(
        "/v1/generate",
        response_model=FilledText | FilledTexts,
        responses=problems(),
        dependencies=_JSON,
        tags=["write"],
    )
    async def generate(asked: GenerateRequest, request: Request) -> Response:
        """Write what stands in a template's blanks: the document of `pmlm generate --json`."""
        return await _while_there(request, service.generate(asked))

    @app.post(
        "/v1/generate/stream",
        responses=problems() | EVENTS,
        response_class=EventSourceResponse,
        dependencies=_JSON,
        tags=["write"],
    )
    async def stream(asked: GenerateRequest) -> Response:
        """The same, as server-sent events: `draft`, a `step` for every token, `done` with the document."""
        writing = Writing(service, asked)
        events = writing.events()
        draft = await anext(events)  # what is wrong with the request is said by the status
        return EventSourceResponse(
            _events(writing, draft, events), ping=15, send_timeout=service.limits.seconds, sep="\n"
        )

    @app.post("/v1/score", response_model=ScoredText, responses=problems(), dependencies=_JSON, tags=["read"])
    async def score(asked: ScoreRequest, request: Request) -> Response:
        """The exact log-probability of a text along an order: the document of `pmlm score --json`."""
        return await _while_there(request, service.score(asked))

    @app.post(
        "/v1/fill-mask",
        response_model=list[Guess] | list[list[Guess]],
        responses=problems(),
        dependencies=_JSON,
        tags=["read"],
    )
    async def fill_mask(asked: FillMaskRequest, request: Request) -> Response:
        """The likeliest tokens at each [MASK] while every [MASK] is hidden."""
        return await _while_there(request, service.fill_mask(asked))

    @app.post("/v1/candidates", response_model=Candidates, responses=problems(), dependencies=_JSON, tags=["read"])
    async def candidates(asked: CandidatesRequest, request: Request) -> Response:
        """The likeliest tokens at one hidden position of a canvas in the middle of being written."""
        return await _while_there(request, service.candidates(asked))

    @app.post(
        "/v1/classify",
        response_model=ClassifiedText | RatedText | ClassifiedTexts,
        responses=problems(),
        dependencies=_JSON,
        tags=["understand"],
    )
    async def classify(asked: ClassifyRequest, request: Request) -> Response:
        """The class (or number) of a text or a pair, by a fine-tuned model: the document of `pmlm classify --json`."""
        return await _while_there(request, service.classify(asked))

    @app.post(
        "/v1/answer",
        response_model=AnsweredQuestion | AnsweredQuestions,
        responses=problems(),
        dependencies=_JSON,
        tags=["understand"],
    )
    async def answer(asked: AnswerRequest, request: Request) -> Response:
        """A stretch of a text that answers a question, or none: the document of `pmlm answer --json`."""
        return await _while_there(request, service.answer(asked))

    @app.get("/v1/models", response_model=Models, responses=problems(401), tags=["server"])
    async def models() -> Any:
        """What is served, and what can be asked of each; where none is named, the first that can be asked is."""
        return {"models": service.about()}

    @app.get("/healthz", response_model=Health, tags=["server"])
    async def healthz() -> Any:
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse, responses=problems(401), tags=["server"])
    async def metrics() -> Response:
        """For Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI) -> None:
    for path, name in (("/", "index.html"), ("/docs", "docs.html")):

        async def page(name: str = name) -> Response:
            return FileResponse(PAGE / name, headers={"cache-control": "no-cache"})

        app.add_api_route(path, page, include_in_schema=False)
    app.mount("/page", _Fresh(directory=PAGE), name="page")


class _Fresh(StaticFiles):
    """A browser asks each time: a new page must not meet modules of before."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


async def _events(
    writing: Writing, draft: tuple[str, dict[str, Any]], events: AsyncIterator[tuple[str, dict[str, Any]]]
) -> AsyncIterator[ServerSentEvent]:
    yield _event(*draft)
    try:
        async for event in events:
            yield _event(*event)
        yield _event("done", writing.document())
    except PmlmError as error:
        yield _event("error", {"error": _line(error)})
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def _event(name: str, data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(event=name, data=json.dumps(data, separators=(",", ":")), sep="\n")


async def _while_there(request: Request, answer: Awaitable[Any]) -> Response:
    """The answer, unless the client goes away before it is there."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    asking, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({asking, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await asking) if asking.done() else Response(status_code=_GONE)
    finally:
        for task in (asking, leaving):
            task.cancel()
        await asyncio.gather(asking, leaving, return_exceptions=True)


_STATUS: Sequence[tuple[type[PmlmError], int]] = (
    (Busy, 429),
    (TooSlow, 503),
    (UnknownModel, 404),
    (LimitError, 422),
    (WrongModel, 422),
)


def _line(error: PmlmError) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _add_errors(app: FastAPI) -> None:
    """Every failure is one line; what a client has not caused says nothing of the inside."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, PmlmError)
        usual = 422 if error.exit_code == 2 else 500
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), usual)
        headers = {"retry-after": str(_RETRY_SECONDS)} if status in (429, 503) else None
        return JSONResponse({"error": _line(error)}, status, headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return JSONResponse({"error": "RequestError: the body is not JSON"}, 400)
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return JSONResponse({"error": f"RequestError: {where}: {first['msg']}"}, 422)

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        says = {400: "the body is not JSON", 404: "there is nothing here", 405: "not that method"}.get(
            error.status_code, str(error.detail)
        )
        return JSONResponse({"error": f"RequestError: {says}"}, error.status_code, error.headers)

    async def bug(_: Request, error: Exception) -> Response:
        _log.error("a request failed", exc_info=error)
        return JSONResponse({"error": f"RunError: {FAILED}"}, 500)

    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        PmlmError: known,
        RequestValidationError: invalid,
        HTTPException: http,
        Exception: bug,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
