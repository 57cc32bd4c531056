"""Counts of what the server does, as Prometheus reads them."""

import threading
from collections import defaultdict

_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP = {
    "pmlm_requests_total": ("counter", "Requests answered, by route and status."),
    "pmlm_tokens_total": ("counter", "Tokens written."),
    "pmlm_turns_total": ("counter", "Turns of the engine; each writes a token of every text in flight."),
    "pmlm_cancelled_total": ("counter", "Requests whose client went away or whose time was up."),
    "pmlm_restarts_total": ("counter", "Texts begun anew because their constraints left no way on."),
    "pmlm_in_flight": ("gauge", "Texts that are being written."),
    "pmlm_waiting": ("gauge", "Requests that are being served or wait."),
    "pmlm_request_seconds": ("histogram", "Time from request to answer, of streams to their end."),
    "pmlm_first_step_seconds": ("histogram", "Time from request to its first token."),
}


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, value: float = 1, **labels: object) -> None:
        with self._lock:
            self._values[name, _labels(labels)] += value

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name, ""] = value

    def observe(self, name: str, seconds: float) -> None:
        """One duration for a histogram."""
        with self._lock:
            for bound in _BUCKETS:
                self._values[f"{name}_bucket", _labels({"le": bound})] += seconds <= bound
            self._values[f"{name}_bucket", _labels({"le": "+Inf"})] += 1
            self._values[f"{name}_sum", ""] += seconds
            self._values[f"{name}_count", ""] += 1

    def value(self, name: str, **labels: object) -> float:
        with self._lock:
            return self._values.get((name, _labels(labels)), 0)

    def text(self) -> str:
        with self._lock:
            values = dict(self._values)
        lines = []
        for family, (kind, meaning) in _HELP.items():
            lines += [f"# HELP {family} {meaning}", f"# TYPE {family} {kind}"]
            members = (family,) if kind != "histogram" else tuple(f"{family}_{x}" for x in ("bucket", "sum", "count"))
            found = [(name, labels, value) for (name, labels), value in values.items() if name in members]
            if not found and kind != "histogram":
                found = [(family, "", 0)] if family != "pmlm_requests_total" else []
            lines += [f"{name}{labels} {_number(value)}" for name, labels, value in found]
        return "\n".join(lines) + "\n"


def _labels(labels: dict[str, object]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def _number(value: float) -> str:
    """To the last digit: a count that is rounded stands still, and then jumps."""
    return str(int(value)) if float(value).is_integer() else repr(value)
