"""A server in this process, on a free port."""

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

from pmlm.lm import LM
from pmlm.serve.app import create_app
from pmlm.serve.service import Service


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
            if not self.service.num_waiting and not worker._tasks and not places_taken:
                return True
            time.sleep(0.05)
        return False


@contextmanager
def serving(models: dict[str, LM], **settings: Any) -> Iterator[Served]:
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
