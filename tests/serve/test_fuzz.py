"""Schemathesis against the running server: whatever is sent, the answer is a documented one and never a 5xx."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from serve_helpers import Served

pytestmark = pytest.mark.slow
pytest.importorskip("schemathesis", reason="schemathesis is not installed")
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method",
]  # fmt: skip
CASES = 2000
CONFIG = "[checks]\nnegative_data_rejection.expected-statuses = [400, 404, 405, 413, 415, 422]\n"


def test_two_thousand_requests_get_documented_answers(served: Served, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    report = tmp_path / "report.ndjson"
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "run", f"{served.url}/openapi.json", "--checks", ",".join(CHECKS),
        "--max-examples", "240", "--phases", "examples,coverage,fuzzing", "--seed", "1", "--request-timeout", "100",
        "--report", "ndjson", "--report-ndjson-path", str(report), "--suppress-health-check", "all", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=1500)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    statuses = answered(report)
    total = sum(counts.total() for counts in statuses.values())
    assert total >= CASES, f"only {total} requests were sent"
    assert not [(route, status) for route, counts in statuses.items() for status in counts if status >= 500]
    for route in (route for route in statuses if route.startswith("POST")):
        assert {200, 422} <= statuses[route].keys(), f"{route} was not reached: {statuses[route]}"
    assert served.settled()


def answered(report: Path) -> dict[str, Counter[int]]:
    """How often each route gave each status."""
    found: dict[str, Counter[int]] = {}
    with report.open() as lines:
        for line in lines:
            recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
            for interaction in recorder.get("interactions", {}).values():
                if response := interaction.get("response"):
                    found.setdefault(recorder["label"], Counter())[response["status_code"]] += 1
    return found
