"""Clients that leave, dawdle or come all at once, and a model whose folder disappears: nobody else is hurt."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_helpers import Served, events, serving

from pmlm import load
from pmlm.generation.canvas import Canvas
from pmlm.generation.engine import Job
from pmlm.lm import LM, default_model_folder
from pmlm.serve.limits import Limits
from pmlm.serve.metrics import Metrics
from pmlm.serve.worker import Task, Worker

LONG = "[MASK:120]"


def raw_request(served: Served, path: str, *, buffer: int | None = None, **body: object) -> socket.socket:
    """A request sent by hand; the answer is left to the caller, who may take in little at a time."""
    address = httpx.URL(served.url)
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((address.host, address.port or 80))
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/generate/stream"])
def test_a_client_that_goes_away_frees_its_place(served: Served, path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert served.settled()
    before = served.service.metrics.value("pmlm_cancelled_total")
    connections = [raw_request(served, path, template=LONG, n=16, order="entropy") for _ in range(3)]
    while not served.service.metrics.value("pmlm_in_flight"):
        time.sleep(0.01)
    if path.endswith("stream"):
        assert connections[0].recv(100)
    for connection in connections:
        connection.close()
    assert served.settled()
    assert served.service.metrics.value("pmlm_cancelled_total") == before + 3
    assert [record for record in caplog.records if record.name == "pmlm.serve"] == []
    assert served.post("/v1/generate", template="A [MASK].", seed=1).status_code == 200


def test_a_request_that_is_given_up_is_prepared_no_further(model: LM) -> None:
    worker, told, taken = Worker(4, Metrics()), threading.Event(), list[int]()
    pairs = model.writer.jobs([LONG] * 9, range(9), model.settings({}))

    def prepare() -> Iterator[tuple[Canvas, Job]]:
        for i, pair in enumerate(pairs):
            taken.append(i)
            time.sleep(0.1)  # longer than there is time for between two turns
            if i == 1:
                worker.cancel(task)
                worker.submit(Task(lambda _done: told.set(), call=lambda: None))
            yield pair

    task = Task(lambda _report: None, model=model.model, prepare=prepare, num_texts=9)
    worker.start()
    worker.submit(task)
    assert told.wait(60)
    worker.stop()
    assert taken == [0, 1]


def test_a_slow_reader_keeps_nobody_waiting(served: Served) -> None:
    connection = raw_request(served, "/v1/generate/stream", buffer=1024, template=LONG, n=8)
    try:
        while not served.service.metrics.value("pmlm_in_flight"):
            time.sleep(0.01)
        begin = time.perf_counter()
        assert served.post("/v1/generate", template="A [MASK].", seed=1).status_code == 200
        assert time.perf_counter() - begin < 20
    finally:
        connection.close()
    assert served.settled()


@pytest.mark.parametrize("shortcut", [{}, {"parallel": "count:2"}, {"speculative": 3}])
def test_a_text_with_nothing_to_write_is_answered_and_hurts_nobody(served: Served, shortcut: dict[str, Any]) -> None:
    company = events(served, template=LONG, seed=1)
    assert next(company)[0] == "draft"
    full = {"template": "The [MASK:1] ran.", "must": ["cat"], "seed": 3, **shortcut}
    answer = served.post("/v1/generate", **full, n=2, best_of=2)
    assert answer.status_code == 200, answer.text
    assert [(r["text"], r["order"], r["seed"]) for r in answer.json()["results"]] == [
        ("The cat ran.", [], 6),
        ("The cat ran.", [], 8),
    ]
    assert [name for name, _ in events(served, **full)] == ["draft", "done"]
    assert [name for name, _ in company] == [*["step"] * 120, "done"]
    assert served.settled()


def test_half_a_request_and_nonsense_do_no_harm(served: Served) -> None:
    address = httpx.URL(served.url)
    for raw in (b"POST /v1/generate HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{", b"\x00\xff\r\n\r\n", b"GET"):
        with socket.create_connection((address.host, address.port or 80)) as connection:
            connection.sendall(raw)
    assert served.client.get("/healthz").status_code == 200


def test_two_hundred_at_once_are_all_answered_and_those_alike_alike(model: LM) -> None:
    with serving({"m": model}, limits=Limits(waiting=200)) as served:
        expected = [model.fill("Tom is a [MASK:3].", seed=s).text for s in range(4)]

        together = threading.Barrier(200)

        def ask(number: int) -> str:
            together.wait(60)
            answer = httpx.post(
                f"{served.url}/v1/generate", json={"template": "Tom is a [MASK:3].", "seed": number % 4}, timeout=120
            )
            assert answer.status_code == 200, answer.text
            return str(answer.json()["text"])

        with ThreadPoolExecutor(200) as pool:
            assert list(pool.map(ask, range(200))) == expected * 50
        assert served.settled()


def test_too_many_are_told_to_come_back_and_then_find_room(model: LM) -> None:
    with serving({"m": model}, limits=Limits(waiting=2, places=1)) as served:
        busy = [raw_request(served, "/v1/generate", template=LONG) for _ in range(2)]
        while served.service.num_waiting < 2:
            time.sleep(0.01)
        for path, body in (
            ("/v1/generate", {"template": "[MASK]"}),
            ("/v1/generate/stream", {"template": "[MASK]"}),
            ("/v1/score", {"text": "Tom"}),
        ):
            answer = served.post(path, **body)
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            assert "Busy: the server is busy" in answer.json()["error"]
        for connection in busy:
            connection.close()
        assert served.settled()
        assert served.post("/v1/generate", template="[MASK]").status_code == 200


def test_a_model_whose_folder_is_removed_is_served_on(tmp_path: Path) -> None:
    shutil.copytree(default_model_folder(), tmp_path / "m")
    with serving({"m": load(tmp_path / "m")}) as served:
        first = served.post("/v1/generate", template="A [MASK:3].", seed=1).json()
        shutil.rmtree(tmp_path / "m")
        assert served.post("/v1/generate", template="A [MASK:3].", seed=1).json() == first
        assert served.post("/v1/score", text="Tom is a cat.").status_code == 200
        assert str(tmp_path) not in served.client.get("/v1/models").text


def test_a_server_that_is_stopped_tells_those_it_serves(model: LM) -> None:
    told: list[int] = []
    with serving({"m": model}, limits=Limits(places=1)) as served:

        def ask() -> None:
            try:
                told.append(
                    httpx.post(f"{served.url}/v1/generate", json={"template": LONG, "n": 16}, timeout=60).status_code
                )
            except httpx.HTTPError:
                told.append(0)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        while served.service.num_waiting < 3:
            time.sleep(0.01)
    for thread in threads:
        thread.join(30)
    assert len(told) == 3
