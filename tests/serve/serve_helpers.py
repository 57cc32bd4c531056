"""A server in this process, on a free port."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
import uvicorn

from conftest import STORIES
from fakes import tiny_config
from pmlm.cli import run
from pmlm.lm import LM
from pmlm.model import HeadSpec, TaskModel, initialise
from pmlm.nlu.finetuned import Finetuned
from pmlm.runtime import generator
from pmlm.serve.app import create_app
from pmlm.serve.service import Service
from pmlm.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(STORIES, vocab_size=330)


class Served:
    """A running server: its address, a client for it, and what is inside."""

    def __init__(self, url: str, service: Service) -> None:
        self.url, self.service = url, service
        self.client = httpx.Client(base_url=url, timeout=120)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def settled(self) -> bool:
        """Nothing is in flight; waited for, a while."""
        for _ in range(200):
            worker = self.service.worker
            places_taken = sum(engine.num_lines for engine in worker._engines.values())
            if not self.service.num_waiting and not worker._preparing and not worker._tasks and not places_taken:
                return True
            time.sleep(0.05)
        return False


HEADS = {
    "sentiment": [HeadSpec(name="SST-2", kind="classes", labels=("negative", "positive"))],
    "answers": [HeadSpec(name="SQuAD", kind="span", threshold=0.5)],
    "joint": [
        HeadSpec(name="RTE", kind="classes", labels=("entailment", "not_entailment"), is_pair=True),
        HeadSpec(name="STS-B", kind="number", is_pair=True, low=0.0, high=5.0),
    ],
}


def finetuned_models() -> dict[str, Finetuned]:
    """Fine-tuned models by name, with random weights: what they say is nonsense, and always the same."""
    found = {}
    for name, specs in HEADS.items():
        shape = {"vocab_size": TOKENIZER.vocab_size, "mask_id": TOKENIZER.mask_id, "max_length": 32}
        model = TaskModel(tiny_config(**shape, forbidden_ids=TOKENIZER.forbidden_ids), specs).eval()
        initialise(model, 0.3, generator(7, name))
        found[name] = Finetuned(model, TOKENIZER, {"name": name}, None)
    return found


@contextmanager
def serving(models: dict[str, LM] | dict[str, LM | Finetuned], **settings: Any) -> Iterator[Served]:
    app = create_app(models, **settings)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="on", ws="none", timeout_graceful_shutdown=3)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [free]})
        thread.start()
        served = Served(f"http://127.0.0.1:{free.getsockname()[1]}", app.state.service)
        while not server.started:
            time.sleep(0.01)
        try:
            yield served
        finally:
            served.client.close()
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server does not stop"
            assert not app.state.service.worker._thread.is_alive(), "the worker does not stop"


def events(served: Served, **body: Any) -> Iterator[tuple[str, Any]]:
    """Names and data of a stream."""
    with served.client.stream("POST", "/v1/generate/stream", json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The document that a command prints."""
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


def close(one: Any, other: Any) -> bool:
    """Equal, numbers up to what float32 leaves open."""
    if isinstance(one, float):
        return one == pytest.approx(other, rel=1e-4, abs=1e-4)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(close(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
