"""Fine-tuned models over HTTP: the documents and lines of `pmlm classify` and `pmlm answer`, beside models that write."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import TOKENIZER, Served, close, events, finetuned_models, printed, serving

from pmlm.lm import LM
from pmlm.model.checkpoint import Checkpoint, save_checkpoint
from pmlm.nlu.finetuned import Finetuned, load_any
from pmlm.serve.limits import Limits

CONTEXT = "Tom is a cat and Jerry is a mouse. They live in a small house by the sea. " * 3
LM_ROUTES = ["/v1/generate", "/v1/generate/stream", "/v1/score", "/v1/fill-mask", "/v1/candidates"]
ROUTES = {"sentiment": ["/v1/classify"], "joint": ["/v1/classify"], "answers": ["/v1/answer"], "first": LM_ROUTES}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/generate": {"template": "[MASK]"},
    "/v1/generate/stream": {"template": "[MASK]"},
    "/v1/score": {"text": "Tom"},
    "/v1/fill-mask": {"template": "[MASK]"},
    "/v1/candidates": {"template": "[MASK]", "position": 0},
    "/v1/classify": {"texts": ["Tom"]},
    "/v1/answer": {"question": "Who?", "context": "Tom."},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The served fine-tuned models as folders."""
    root = tmp_path_factory.mktemp("tuned")
    for name, tuned in finetuned_models().items():
        save_checkpoint(
            root / name, Checkpoint(tuned.model, tuned.about), card="# x\n", add_files=TOKENIZER.save,
            vocabulary=TOKENIZER.fingerprint,
        )  # fmt: skip
    return {name: root / name for name in finetuned_models()}


@pytest.mark.parametrize(
    ("name", "route", "body", "arguments"),
    [
        ("sentiment", "classify", {"texts": ["a small house"]}, ["a small house"]),
        ("sentiment", "classify", {"texts": [""], "task": "SST-2"}, [""]),
        ("joint", "classify", {"texts": ["It rained.", "We stayed."], "task": "RTE"}, ["It rained.", "We stayed.", "--task", "RTE"]),
        ("joint", "classify", {"texts": ["It rained.", "We stayed."], "task": "STS-B"}, ["It rained.", "We stayed.", "--task", "STS-B"]),
        ("answers", "answer", {"question": "Who is a mouse?", "context": CONTEXT}, ["--question", "Who is a mouse?", "--context", CONTEXT]),
        ("answers", "answer", {"question": "Who?", "context": CONTEXT, "num": 5, "threshold": -1e9},
         ["--question", "Who?", "--context", CONTEXT, "--num", "5", "--threshold=-1e9"]),
        ("answers", "answer", {"question": "Who?", "context": CONTEXT, "num": 1, "threshold": 1e9},
         ["--question", "Who?", "--context", CONTEXT, "-n", "1", "--threshold", "1e9"]),
    ],
)  # fmt: skip
def test_they_answer_what_the_command_line_prints(
    served: Served, folders: dict[str, Path], capsys: pytest.CaptureFixture[str],
    name: str, route: str, body: dict[str, Any], arguments: list[str],
) -> None:  # fmt: skip
    expected = printed(capsys, route, "-m", str(folders[name]), *arguments, "--json")
    answer = served.post(f"/v1/{route}", model=name, **body)
    assert answer.status_code == 200, answer.text
    assert close(answer.json(), expected)


def test_a_batch_is_the_single_ones_in_a_list(served: Served) -> None:
    texts = [["a warm house"], ["the lazy dog slept"], ["It rained"]]
    single = [served.post("/v1/classify", model="sentiment", texts=group).json() for group in texts]
    assert close(served.post("/v1/classify", model="sentiment", batch=texts).json(), {"results": single})
    pairs = [["Who is a cat?", CONTEXT], ["Where?", "By the sea."]]
    alone = [served.post("/v1/answer", question=q, context=c).json() for q, c in pairs]
    assert close(served.post("/v1/answer", batch=pairs).json(), {"results": alone})


def test_models_say_what_can_be_asked_of_them(served: Served) -> None:
    models = {about["name"]: about for about in served.client.get("/v1/models").json()["models"]}
    assert {name: models[name]["endpoints"] for name in ROUTES} == ROUTES
    assert models["first"]["tasks"] == []
    assert models["joint"]["tasks"] == [
        {"name": "RTE", "kind": "classes", "texts": 2, "labels": ["entailment", "not_entailment"]},
        {"name": "STS-B", "kind": "number", "texts": 2, "labels": []},
    ]


@pytest.mark.parametrize("name", ROUTES)
def test_the_wrong_route_for_a_model_is_said(served: Served, name: str) -> None:
    for route, body in BODIES.items():
        answer = served.post(route, model=name, **body)
        if route in ROUTES[name]:
            assert answer.status_code == 200 or name == "joint", answer.text  # which reads pairs, and has two heads
            continue
        asked = "/v1/generate" if route == "/v1/generate/stream" else route
        line = f"WrongModel: the model {name!r} is not one for {asked}; it is for {', '.join(ROUTES[name])}"
        assert (answer.status_code, answer.json()) == (422, {"error": line})


def test_without_a_name_it_is_the_first_that_can_be_asked(served: Served, model: LM) -> None:
    first = served.post("/v1/classify", texts=["a house"]).json()
    assert close(first, served.post("/v1/classify", texts=["a house"], model="sentiment").json())
    with serving({"m": model}) as writes_only:
        for route in ("/v1/classify", "/v1/answer"):
            answer = writes_only.post(route, **BODIES[route])
            assert (answer.status_code, answer.json()["error"].split(":")[0]) == (404, "UnknownModel")
    tuned: dict[str, LM | Finetuned] = {**finetuned_models()}
    with serving(tuned) as reads_only:
        assert reads_only.post("/v1/answer", **BODIES["/v1/answer"]).status_code == 200
        for route in LM_ROUTES:
            answer = reads_only.post(route, **BODIES[route])
            assert answer.status_code == 404
            assert "no model for /v1/" in answer.json()["error"]


LINES = [
    ("classify", {"texts": []}, "DataError: SST-2 reads 1 text at a time, got 0"),
    ("classify", {"texts": ["a", "b"]}, "DataError: SST-2 reads 1 text at a time, got 2"),
    ("classify", {"texts": ["a", "b", "c"]}, "RequestError: texts: List should have at most 2 items"),
    ("classify", {"texts": ["a"], "model": "joint", "task": "RTE"}, "DataError: RTE reads 2 texts at a time, got 1"),
    ("classify", {"texts": ["a", "b"], "model": "joint"}, "DataError: the model knows several tasks: name one of RTE, STS-B"),
    ("classify", {"texts": ["a"], "task": "X"}, "DataError: the model does not know the task 'X'; it knows SST-2"),
    ("classify", {}, "DataError: give texts"),
    ("classify", {"texts": ["a"], "batch": [["a"]]}, "DataError: give texts"),
    ("classify", {"batch": []}, "DataError: the batch is empty"),
    ("classify", {"batch": [["a"]] * 17}, "LimitError: the batch has 17 entries; this server takes at most 16"),
    ("classify", {"texts": ["a" * 20_001]}, "RequestError: texts.0: String should have at most 20000 characters"),
    ("classify", {"texts": "a"}, "RequestError: texts: Input should be a valid list"),
    ("classify", {"texts": ["a"], "seed": 1}, "RequestError: seed: Extra inputs"),
    ("answer", {"question": "a"}, "DataError: give question and context"),
    ("answer", {"context": "a"}, "DataError: give question and context"),
    ("answer", {"question": "a", "context": "b", "batch": [["a", "b"]]}, "DataError: give question and context"),
    ("answer", {"batch": [["a"]]}, "RequestError: batch.0.1: Field required"),
    ("answer", {"batch": [["a", "b"]] * 17}, "LimitError: the batch has 17 entries"),
    ("answer", {"question": "a", "context": " "}, "has an empty paragraph"),
    ("answer", {"question": "a", "context": "b", "num": 0}, "ConfigError: num must be at least 1, got 0"),
    ("answer", {"question": "a", "context": "b", "num": 101}, "RequestError: num: Input should be less than or equal to 100"),
    ("answer", {"question": "a", "context": "b", "threshold": "x"}, "RequestError: threshold: Input should be a valid number"),
]  # fmt: skip


@pytest.mark.parametrize(("route", "body", "line"), LINES)
def test_what_is_wrong_is_said_in_one_line(served: Served, route: str, body: dict[str, Any], line: str) -> None:
    answer = served.post(f"/v1/{route}", **body)
    assert answer.status_code == 422, answer.text
    assert answer.json().keys() == {"error"}
    assert line in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_halves_of_characters_and_texts_without_an_answer_are_no_bugs(served: Served) -> None:
    for route, body in (("classify", '{"texts": ["\\ud800"]}'), ("answer", '{"question": "\\ud800", "context": "a"}')):
        answer = served.client.post(f"/v1/{route}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
    for context in ("\x00", "\u200b", "​ \x01"):
        answer = served.post("/v1/answer", question="Who?", context=context)
        assert answer.status_code in (200, 422), answer.text


def test_long_readings_do_not_block_the_event_loop(model: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a model reads, the server answers: the reading is done by the worker."""
    tuned = finetuned_models()["sentiment"]
    real = tuned.classify_batch

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(3)
        return real(*args, **kwargs)

    monkeypatch.setattr(tuned, "classify_batch", slow)
    with serving({"m": model, "t": tuned}, limits=Limits(seconds=60)) as served, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(served.post, "/v1/classify", texts=["a"])
        while not served.service.num_waiting:
            time.sleep(0.01)
        assert served.client.get("/healthz").status_code == 200
        assert served.client.get("/v1/models").status_code == 200
        assert not reading.done()
        assert reading.result().status_code == 200


def test_a_fine_tuned_model_can_be_the_default(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMLM_MODEL", str(folders["sentiment"]))
    tuned = load_any()
    assert isinstance(tuned, Finetuned)
    assert tuned.tasks() == finetuned_models()["sentiment"].tasks()


def test_a_folder_is_served_as_what_it_is(folders: dict[str, Path], model: LM) -> None:
    assert isinstance(load_any(), LM)
    assert isinstance(load_any(folders["sentiment"]), Finetuned)
    with serving({"m": model, "t": load_any(folders["sentiment"])}) as served:
        assert served.post("/v1/classify", texts=["a"]).status_code == 200
        assert list(events(served, template="A [MASK]."))[-1][0] == "done"
        assert str(folders["sentiment"]) not in served.client.get("/v1/models").text
        document = served.client.get("/openapi.json").json()
    model_of = {
        name: document["components"]["schemas"][f"{name}Request"]["properties"]["model"]["anyOf"]
        for name in ("Generate", "Classify")
    }
    assert model_of == {
        "Generate": [{"enum": ["m"]}, {"type": "null"}],
        "Classify": [{"enum": ["t"]}, {"type": "null"}],
    }
    assert json.dumps(document)
