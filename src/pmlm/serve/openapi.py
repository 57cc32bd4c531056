"""The parts of the OpenAPI document that routes do not give by themselves: problems, the event stream, the token."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from pmlm.serve.schemas import DraftEvent, Problem, RestartEvent, StepEvent

_MEANING = {
    400: "The body is not JSON.",
    401: "A token is wanted, and none or another one was sent.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "Something must be corrected; the line says what, as the command line would.",
    429: "Too many requests are being served; come back after Retry-After seconds.",
    500: "The server failed at this request.",
    503: "The request was not done in time.",
}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events: one `draft` (data: DraftEvent), a `step` for each token (data: StepEvent), "
        "a `restart` where a text is begun anew because its constraints left no way on (data: RestartEvent), then one "
        "`done` (data: the document of /v1/generate) or one `error` (data: Problem).",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "event": {"enum": ["draft", "step", "restart", "done", "error"]},
                        "data": {"type": "string", "contentMediaType": "application/json"},
                    },
                    "required": ["event", "data"],
                },
                "example": 'event: step\ndata: {"text":0,"step":1,"of":8,"position":4,"token":" cat","logp":-0.7,'
                '"sampled_logp":-0.7}\n\n',
            }
        },
    }
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route can refuse; without statuses, in every way that a POST can."""
    return {status: {"model": Problem, "description": _MEANING[status]} for status in statuses or _MEANING}


def complete(app: FastAPI, names: Callable[[str], list[str]], *, has_token: bool) -> None:
    """Add the schemas of events, the names of the models that a route can ask, and the token where one is wanted."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            components = document.setdefault("components", {})
            for event in (DraftEvent, StepEvent, RestartEvent):
                components.setdefault("schemas", {})[event.__name__] = event.model_json_schema()
            for path, methods in document["paths"].items():
                body = methods.get("post", {}).get("requestBody")
                if body is not None and (known := names(path)):
                    schema = components["schemas"][body["content"]["application/json"]["schema"]["$ref"].split("/")[-1]]
                    schema["properties"]["model"]["anyOf"] = [{"enum": known}, {"type": "null"}]
            if has_token:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                for path, methods in document["paths"].items():
                    for method in methods.values() if path != "/healthz" else ():
                        method["security"] = [{"token": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
