"""The HTTP API: the command line's documents and lines over HTTP."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from serve_helpers import Served, close, events, printed, serving

from pmlm.cli import run
from pmlm.generation.engine import Engine, Event
from pmlm.lm import LM
from pmlm.options import FillOptions
from pmlm.serve.limits import Limits
from pmlm.serve.schemas import GenerateRequest, Options

TEMPLATE = "Tom is a cat and Jerry is a [MASK]. [MASK:6]"
ROUTES = [
    "/v1/generate", "/v1/generate/stream", "/v1/score", "/v1/fill-mask", "/v1/candidates", "/v1/classify", "/v1/answer",
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ({"template": TEMPLATE, "seed": 3}, [TEMPLATE, "--seed", "3"]),
        ({"template": TEMPLATE, "seed": 3, "n": 2, "order": "confidence", "temperature": 0.7},
         [TEMPLATE, "--seed", "3", "-n", "2", "--order", "confidence", "--temperature", "0.7"]),
        ({"words": "The quick fox", "length": 12, "seed": 1, "ban": ["dog"], "visibility": "bidirectional"},
         ["--words", "The quick fox", "--length", "12", "--seed", "1", "--ban", "dog", "--visibility", "bidirectional"]),
        ({"template": "A [MASK:3] b", "seed": 5, "order": [3, 1, 2], "whole_words": False, "top_p": 0.9, "top_k": 9, "min_p": 0.01},
         ["A [MASK:3] b", "--seed", "5", "--order", "3,1,2", "--any-pieces", "--top-p", "0.9", "--top-k", "9", "--min-p", "0.01"]),
        ({"template": "The [MASK:3].", "seed": 5, "written": [[2, " dog"]], "repetition_penalty": 1.2},
         ["The [MASK:3].", "--seed", "5", "--written", '[[2, " dog"]]', "--repetition-penalty", "1.2"]),
        ({"template": TEMPLATE, "seed": 3, "n": 2, "best_of": 3}, [TEMPLATE, "--seed", "3", "-n", "2", "--best-of", "3"]),
    ],
)  # fmt: skip
def test_generate_answers_what_the_command_line_prints(
    served: Served, capsys: pytest.CaptureFixture[str], body: dict[str, Any], arguments: list[str]
) -> None:
    expected = printed(capsys, "generate", *arguments, "--json")
    answer = served.post("/v1/generate", **body)
    assert answer.status_code == 200, answer.text
    assert close(answer.json(), expected)
    told = list(events(served, **body))
    assert (told[0][0], told[-1][0]) == ("draft", "done")
    assert close(told[-1][1], expected)


def test_score_and_fill_mask_answer_what_the_library_says(
    served: Served, model: LM, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Tom is a cat and Jerry is a mouse."
    expected = printed(capsys, "score", text, "--order", "random", "--seed", "1", "--json")
    assert close(served.post("/v1/score", text=text, order="random", seed=1).json(), expected)
    given = "Tom is a ___ and Jerry is a ___."
    assert close(served.post("/v1/score", text=text, given=given).json(), model.score(text, given=given).to_dict())
    assert close(
        served.post("/v1/fill-mask", template="A [MASK].", top_k=2).json(), model.fill_mask("A [MASK].", top_k=2)
    )
    two = served.post("/v1/fill-mask", template="A [MASK] [MASK]").json()
    assert [len(guesses) for guesses in two] == [5, 5]


def test_a_stream_tells_every_step_once_and_in_order(served: Served) -> None:
    told = list(events(served, template=TEMPLATE, seed=4, n=2))
    (_, draft), *steps, (_, document) = told
    assert draft["seeds"] == [4, 5]
    for number, result in enumerate(document["results"]):
        mine = [data for name, data in steps if name == "step" and data["text"] == number]
        assert [data["step"] for data in mine] == list(range(1, 8))
        assert [data["position"] for data in mine] == result["order"]
        canvas = draft["drafts"][number]
        for data in mine:
            assert canvas[data["position"]] is None
            canvas[data["position"]] = data["token"]
        assert canvas == result["tokens"]


def test_candidates_of_a_state_and_going_on_from_another_choice(served: Served) -> None:
    first = served.post("/v1/generate", template=TEMPLATE, seed=2).json()
    written = [[p, first["tokens"][p]] for p in first["order"][:3]]
    position = first["order"][3]
    found = served.post("/v1/candidates", template=TEMPLATE, seed=2, written=written, position=position, count=6).json()
    assert len(found["candidates"]) == 6
    other = next(c for c in found["candidates"] if c["token_str"] != first["tokens"][position])
    again = served.post(
        "/v1/generate", template=TEMPLATE, seed=2, written=[*written, [position, other["token_str"]]]
    ).json()
    assert again["order"] == first["order"]
    assert again["tokens"][position] == other["token_str"]
    assert [again["tokens"][p] for p, _ in written] == [token for _, token in written]


def test_models_health_metrics_and_pages(served: Served) -> None:
    models = served.client.get("/v1/models").json()["models"]
    assert [m["name"] for m in models][:2] == ["first", "second"]
    assert served.post("/v1/generate", template="A [MASK]", model="second", seed=1).status_code == 200
    assert served.client.get("/healthz").json() == {"status": "ok"}
    metrics = served.client.get("/metrics").text
    assert re.search(r'pmlm_requests_total\{route="/v1/models",status="200"\} [1-9]', metrics)
    assert re.search(r"^pmlm_tokens_total [1-9]", metrics, flags=re.MULTILINE)
    for line in metrics.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|[a-z_]+(\{[a-z]+="[^"]+"(,[a-z]+="[^"]+")*\})? [0-9.e+-]+', line), line
    for path in ("/", "/docs"):
        page = served.client.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"""(src|href)=["'](https?:)?//""", page.text)


LINES = [
    ({"template": "[MASK"}, "generate", "TemplateError: the blank that opens at character 0 is not closed"),
    ({"template": "no blank"}, "generate", "TemplateError: the template has no blank"),
    ({"template": "[MASK:500]"}, "generate", "TemplateError: the template needs 502 tokens"),
    ({"template": "[MASK:999999]" * 60}, "generate", "TemplateError: the template needs"),
    ({"template": "[MASK]", "temperature": -1}, "generate", "ConfigError: temperature must be 0 or more, got -1"),
    ({"template": "[MASK]", "top_k": 0}, "generate", "ConfigError: top_k must be at least 1, got 0"),
    ({"template": "[MASK]", "order": "sideways"}, "generate", "OrderError: unknown order 'sideways'"),
    ({"template": "[MASK]", "order": [5]}, "generate", "OrderError: the order names position 5"),
    ({"template": "[MASK]", "visibility": "causal"}, "generate", "OrderError: this model was not trained for"),
    ({"template": "a dog [MASK]", "ban": ["dog"]}, "generate", "ConstraintError: nothing that the template leaves open"),
    ({"template": "[MASK]", "written": [[7, " a"]]}, "generate", "DataError: nothing can be written at position 7"),
    ({"template": "[MASK]", "written": [[0, " two words"]]}, "generate", "is not one token"),
    ({"words": "a", "length": 10**12}, "generate", "TemplateError: length must be at most 126"),
    ({"words": "a"}, "generate", "ConfigError: words and length go together"),
    ({}, "generate", "ConfigError: there is no template"),
    ({"template": "[MASK]", "n": 0}, "generate", "ConfigError: n must be at least 1, got 0"),
    ({"template": "[MASK]", "n": 17}, "generate", "LimitError: 17 texts were asked for"),
    ({"template": "[MASK]", "n": 2, "best_of": 9}, "generate", "LimitError: 18 texts were asked for"),
    ({"template": "[MASK]", "best_of": 0}, "generate", "ConfigError: best_of must be at least 1, got 0"),
    ({"template": "___ " * 65}, "generate", "LimitError: the template has 65 blanks"),
    ({"template": "[MASK]", "bogus": 1}, "generate", "RequestError: bogus: Extra inputs"),
    ({"template": "[MASK]", "seed": False}, "generate", "RequestError: seed: Input should be a valid integer"),
    ({"template": "[MASK]", "temperature": "1"}, "generate", "RequestError: temperature: Input should be a valid number"),
    ({"template": 5}, "generate", "RequestError: template: Input should be a valid string"),
    ({"text": ""}, "score", "DataError: "),
    ({"text": "x " * 300}, "score", "DataError: the text needs"),
    ({"text": "x " * 300, "given": "[MASK] x"}, "score", "DataError: the text needs"),
    ({"template": "[MASK]", "top_k": 0}, "fill-mask", "ConfigError: top_k must be at least 1"),
    ({"template": "a [MASK]", "position": 0}, "candidates", "DataError: position 0 is not hidden"),
    ({"template": "a [MASK]", "position": 1, "count": 0}, "candidates", "ConfigError: count must be at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "route", "line"), LINES)
def test_what_is_wrong_is_said_in_one_line(served: Served, body: dict[str, Any], route: str, line: str) -> None:
    for path in (f"/v1/{route}", *(["/v1/generate/stream"] if route == "generate" else [])):
        answer = served.post(path, **body)
        assert answer.status_code == 422, answer.text
        assert line in answer.json()["error"]
        assert "\n" not in answer.json()["error"]
        assert answer.json().keys() == {"error"}


def test_the_lines_are_the_command_lines(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for body, arguments in [
        ({"template": "[MASK"}, ["[MASK"]),
        ({"template": "[MASK]", "order": "x"}, ["[MASK]", "--order", "x"]),
        ({"template": "[MASK]", "top_p": 2}, ["[MASK]", "--top-p", "2"]),
    ]:
        assert run(["generate", *arguments]) == 2
        assert served.post("/v1/generate", **body).json()["error"] + "\n" == capsys.readouterr().err


@pytest.mark.parametrize("path", ROUTES)
def test_bodies_that_are_no_requests(served: Served, path: str) -> None:
    json_type = {"content-type": "application/json"}
    for content, headers, status in [
        (b"{", json_type, 400),
        (b"\xff\xfe", json_type, 400),
        (b"[]", json_type, 422),
        (b"null", json_type, 422),
        (b"", json_type, 422),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b" " * 70_000, json_type, 413),
    ]:
        answer = served.client.post(path, content=content, headers=headers)
        assert answer.status_code == status, (content[:10], answer.text)
        assert answer.json().keys() == {"error"}
    chunks = served.client.post(path, content=(b" " * 9_000 for _ in range(10)), headers=json_type)
    assert chunks.status_code == 413


def test_wrong_places(served: Served) -> None:
    for method, path, status in [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/generate", 405),
        ("GET", "/page/../app.py", 404),
    ]:
        answer = served.client.request(method, path)
        assert answer.status_code == status
        assert answer.json().keys() == {"error"}
    assert served.post("/v1/generate", template="[MASK]", model="x").status_code == 404


def test_a_token_is_wanted_where_one_is_set(model: LM) -> None:
    with serving({"m": model}, token="s3cret") as served:
        for header in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic s3cret"},
            {"authorization": "Bearer"},
        ):
            for path in ("/v1/models", "/metrics"):
                answer = served.client.get(path, headers=header)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        good = {"authorization": "Bearer s3cret"}
        assert served.client.get("/v1/models", headers=good).status_code == 200
        assert served.client.get("/healthz").status_code == 200
        assert served.client.get("/").status_code == 200
        document = served.client.get("/openapi.json").json()
        assert document["paths"]["/v1/generate"]["post"]["security"] == [{"token": []}]


def test_time_is_up(model: LM) -> None:
    with serving({"m": model}, limits=Limits(seconds=0.01)) as served:
        answer = served.post("/v1/generate", template="[MASK:120]")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "TooSlow" in answer.json()["error"]
        assert served.settled()


def test_a_stream_whose_time_is_up_ends_with_an_error(
    model: LM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn = Engine.turn

    def slow(self: Engine) -> Iterator[Event]:
        time.sleep(0.05)
        return turn(self)

    monkeypatch.setattr(Engine, "turn", slow)
    with serving({"m": model}, limits=Limits(seconds=2)) as served:
        *before, last = events(served, template="[MASK:120]")
        assert [name for name, _ in before[:2]] == ["draft", "step"]
        assert last[0] == "error"
        assert "TooSlow" in last[1]["error"]
        assert served.settled()
    assert caplog.records == []


def test_a_bug_says_nothing_of_the_inside(served: Served, monkeypatch: pytest.MonkeyPatch, model: LM) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr(model.writer, "fill_mask", broken)
    answer = served.post("/v1/fill-mask", template="[MASK]")
    assert answer.status_code == 500
    assert answer.json() == {"error": "RunError: the server failed at this request"}
    monkeypatch.undo()
    monkeypatch.setattr("pmlm.generation.engine.Pool._draw", broken)
    assert served.post("/v1/generate", template="[MASK]").status_code == 500
    assert [name for name, _ in events(served, template="[MASK]")] == ["draft", "error"]
    monkeypatch.undo()
    assert served.post("/v1/generate", template="[MASK]").status_code == 200


def test_every_option_of_the_library_can_be_asked_for() -> None:
    assert Options.model_fields.keys() == get_type_hints(FillOptions).keys()


def test_the_openapi_document_is_complete(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    assert set(document["paths"]) == {*ROUTES, "/v1/models", "/healthz", "/metrics"}
    stream = document["paths"]["/v1/generate/stream"]["post"]["responses"]
    assert list(stream["200"]["content"]) == ["text/event-stream"]
    assert {"StepEvent", "DraftEvent", "RestartEvent", "Problem"} <= document["components"]["schemas"].keys()
    for path in ROUTES:
        assert {"400", "413", "415", "422", "429"} <= document["paths"][path]["post"]["responses"].keys()
    assert document["components"]["schemas"]["GenerateRequest"]["additionalProperties"] is False


def test_the_documented_options_are_those_that_are_taken() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text()
    listed = re.search(r"\nOptions have the names.+?\n\n", page, flags=re.DOTALL)
    assert listed is not None
    named = set(re.findall(r"`([a-z_]+)`", listed[0]))
    assert named == GenerateRequest.model_fields.keys()
    assert named >= get_type_hints(FillOptions).keys()
