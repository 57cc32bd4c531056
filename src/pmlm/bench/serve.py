"""The server with and without batching, side by side: requests per second, time to the first step, memory.

Two servers run as processes of their own; each number of clients is tried on one and then on the other, round after
round, so that whatever else the machine does hits both alike. Clients read streams to their end.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from pmlm.errors import RunError

TEMPLATES = (
    "Tom is a cat and Jerry is a mouse. [MASK:24] the end.",
    "[MASK:20] in the garden. [MASK:10]",
    "Once upon a time [MASK:30]",
    "Anna saw a [MASK:2] and [MASK:16]. They went home. [MASK:8]",
)


@dataclass(frozen=True, kw_only=True)
class ServeBench:
    clients: tuple[int, ...] = (1, 4, 16, 64)
    requests: int = 32
    """Of each client count, in each round, on each server; at least two per client."""
    rounds: int = 3
    places: int = 32
    soak_seconds: float = 60.0
    soak_clients: int = 16
    threads: int = 1
    """CPU threads of each server."""
    order: str = "random"
    visibility: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Run:
    """Some requests on one server."""

    seconds: float
    first_steps: list[float]
    lost: int


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024

    def stop(self) -> tuple[int, float]:
        """(exit code, seconds) of an orderly end."""
        begin = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60), time.perf_counter() - begin


@contextmanager
def running(settings: ServeBench, places: int) -> Iterator[Server]:
    command = [sys.executable, "-m", "pmlm", "serve", "--port", "0", "--places", str(places), "--waiting", "4096"]
    command += ["--seconds", "600", "--threads", str(settings.threads)]
    command += [] if settings.model is None else ["-m", settings.model]
    environment = os.environ | {"OMP_NUM_THREADS": str(settings.threads)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r":(\d+) \(", line)
        if found is None:
            raise RunError(f"the server did not start: {line.strip()}")
        yield Server(process, int(found[1]))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def ask(port: int, body: dict[str, Any]) -> float | None:
    """Seconds to the first step of a stream that is read to its end; None where it was lost."""
    begin, first, is_done = time.perf_counter(), None, False
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", "/v1/generate/stream", json.dumps(body), {"content-type": "application/json"})
        for line in connection.getresponse():
            if first is None and line.startswith(b"event: step"):
                first = time.perf_counter() - begin
            is_done = is_done or line.startswith(b"event: done")
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return first if is_done else None


def bodies(settings: ServeBench, first_seed: int) -> Iterator[dict[str, Any]]:
    seed = first_seed
    while True:
        body = {"template": TEMPLATES[seed % len(TEMPLATES)], "seed": seed, "order": settings.order}
        yield body if settings.visibility is None else body | {"visibility": settings.visibility}
        seed += 1


def measure(server: Server, settings: ServeBench, clients: int, first_seed: int) -> Run:
    num = max(settings.requests, 2 * clients)
    asked = [body for body, _ in zip(bodies(settings, first_seed), range(num), strict=False)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = list(pool.map(lambda body: ask(server.port, body), asked))
    good = [t for t in times if t is not None]
    return Run(time.perf_counter() - begin, good, len(times) - len(good))


def soak(server: Server, settings: ServeBench) -> dict[str, Any]:
    """Clients that never stop, and what the server's memory does meanwhile."""
    end, memory, answered, lost = time.perf_counter() + settings.soak_seconds, list[int](), 0, 0
    seed = 10_000
    while time.perf_counter() < end:
        run = measure(server, settings, settings.soak_clients, seed)
        seed += 1000
        answered, lost = answered + len(run.first_steps), lost + run.lost
        memory.append(server.memory())
    part = max(1, len(memory) // 3)
    early, late = statistics.mean(memory[part : 2 * part] or memory), statistics.mean(memory[-part:])
    return {
        "seconds": settings.soak_seconds, "answered": answered, "lost": lost, "memory_first": memory[0],
        "memory_middle": early, "memory_end": late, "growth": late / early - 1,
    }  # fmt: skip


def bench_serving(settings: ServeBench, advance: Callable[[int], None]) -> dict[str, Any]:
    with running(settings, settings.places) as batched, running(settings, 1) as single:
        servers = {"batched": batched, "one by one": single}
        for server in servers.values():
            measure(server, settings, 2, 0)  # tables are made, memory is taken
        rows = []
        for clients in settings.clients:
            runs: dict[str, list[Run]] = {name: [] for name in servers}
            for turn in range(settings.rounds):
                for name, server in servers.items():
                    runs[name].append(measure(server, settings, clients, 100 * turn))
                    advance(1)
            rows.append(_row(clients, runs))
        soaked = soak(batched, settings) if settings.soak_seconds else None
        advance(1)
        ends = {
            name: dict(zip(("exit_code", "seconds"), server.stop(), strict=True)) for name, server in servers.items()
        }
    return {"settings": asdict(settings), "clients": rows, "soak": soaked, "shutdown": ends, "cores": os.cpu_count()}


def _row(clients: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {"clients": clients}
    for name, mine in runs.items():
        first = sorted(t for run in mine for t in run.first_steps)
        row[name] = {
            "requests_per_second": statistics.median(_rate(run) for run in mine),
            "first_step_median": _quantile(first, 0.5),
            "first_step_p95": _quantile(first, 0.95),
            "lost": sum(run.lost for run in mine),
        }
    pairs = zip(runs["batched"], runs["one by one"], strict=True)
    row["ratio"] = statistics.median(_rate(one) / _rate(other) for one, other in pairs)
    return row


def _rate(run: Run) -> float:
    return max(len(run.first_steps), 1e-9) / run.seconds


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
