"""The server with and without batching, side by side: requests per second, time to the first step, memory.

Two servers run as processes of their own; each number of clients is tried on one and then on the other, round after
round, so that whatever else the machine does hits both alike. Clients read streams to their end.
"""

import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
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


_SAMPLE_SECONDS = 0.5
"""Between two looks at the server's memory."""
_SETTLE_SECONDS = 5.0
"""Given to the server to count out the requests it has answered."""


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024

    def get(self, path: str) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def left_over(self, seconds: float = _SETTLE_SECONDS) -> int:
        """Requests and texts still counted `seconds` after every client has its answer; 0 as soon as none is.

        The server counts a request out after its last byte has gone, so a client may know of the end first.
        """
        end = time.perf_counter() + seconds
        while (counted := self._counted()) and time.perf_counter() < end:
            time.sleep(0.1)
        return counted

    def _counted(self) -> int:
        return sum(int(n) for n in re.findall(r"^pmlm_(?:waiting|in_flight) (\d+)", self.get("/metrics"), re.MULTILINE))

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
    """Clients that never pause, and what the server's memory does meanwhile."""
    start, end = server.memory(), time.perf_counter() + settings.soak_seconds
    asked, lock = bodies(settings, 10_000), threading.Lock()

    def client() -> tuple[int, int]:
        answered = lost = 0
        while time.perf_counter() < end:
            with lock:
                body = next(asked)
            is_lost = ask(server.port, body) is None
            answered, lost = answered + (not is_lost), lost + is_lost
        return answered, lost

    memory: list[int] = []
    with ThreadPoolExecutor(settings.soak_clients) as pool:
        clients = [pool.submit(client) for _ in range(settings.soak_clients)]
        while time.perf_counter() < end:
            time.sleep(min(_SAMPLE_SECONDS, settings.soak_seconds / 6))
            memory.append(server.memory())
    counts = [running.result() for running in clients]
    part = max(1, len(memory) // 3)
    middle, late = statistics.mean(memory[part : 2 * part] or memory), statistics.mean(memory[-part:])
    return {
        "seconds": settings.soak_seconds, "clients": settings.soak_clients, "answered": sum(a for a, _ in counts),
        "lost": sum(lost for _, lost in counts), "left_over": server.left_over(), "memory_start": start,
        "memory_middle": middle, "memory_end": late, "memory_peak": max(memory), "growth": late / middle - 1,
        "memory": memory,
    }  # fmt: skip


def bench_serving(settings: ServeBench, advance: Callable[[int], None]) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with running(settings, settings.places) as batched, running(settings, 1) as single:
        about = json.loads(batched.get("/v1/models"))["models"][0]
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
    return {
        "settings": asdict(settings), "model": {name: about[name] for name in ("name", "parameters", "visibilities")},
        "clients": rows, "soak": soaked, "shutdown": ends, "cores": os.cpu_count(), "load_before": load,
        "python": platform.python_version(), "torch": version("torch"),
    }  # fmt: skip


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


def serving_table(report: dict[str, Any]) -> str:
    """A report in Markdown."""
    settings, model = report["settings"], report["model"]
    lines = [
        f"{model['name']} ({model['parameters']:,} parameters), order {settings['order']}, visibility "
        f"{settings['visibility'] or model['visibilities'][0]}; {report['cores']} cores, threads of each server "
        f"{settings['threads']}, torch {report['torch']}, load average before the run {report['load_before']:.1f}. "
        f"Medians of {settings['rounds']} round(s); the ratio is taken round by round.",
        "",
        "| clients | requests/s | one by one | ratio | first step | one by one | lost |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["clients"]:
        one, other = row["batched"], row["one by one"]
        cells = [
            str(row["clients"]), f"{one['requests_per_second']:.1f}", f"{other['requests_per_second']:.1f}",
            f"{row['ratio']:.2f} ×", _milliseconds(one["first_step_median"]), _milliseconds(other["first_step_median"]),
            str(one["lost"] + other["lost"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    if (soaked := report["soak"]) is not None:
        start, middle, end = (f"{soaked[f'memory_{when}'] / 2**20:.0f}" for when in ("start", "middle", "end"))
        lines.append(
            f"Soak of {soaked['seconds']:g} s with {soaked['clients']} clients: {soaked['answered']} answered, "
            f"{soaked['lost']} lost, {soaked['left_over']} left over; memory {start} MiB at the start, {middle} in the "
            f"middle, {end} at the end ({soaked['growth']:+.1%} from middle to end)."
        )
    ends = "; ".join(
        f"{name}: exit {e['exit_code']} after {e['seconds']:.1f} s" for name, e in report["shutdown"].items()
    )
    return "\n".join([*lines, f"Shutdown, {ends}.", ""])


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.0f} ms"
