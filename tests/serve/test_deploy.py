"""The deployment files against the program: there is no Docker here, but what they run can be run."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import Served

from pmlm.cli import run

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def stated(instruction: str) -> list[Any]:
    """What an instruction of the Dockerfile runs."""
    found = re.search(rf"^\s*{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found, instruction
    return list(json.loads(found[1]))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [name for line in re.findall(r"^COPY ([^-\n].*)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]]
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_health_check_tells_a_living_server_from_a_dead_one(served: Served) -> None:
    program, *arguments = stated("CMD")
    assert program == "/opt/pmlm/bin/python"
    for port, code in ((served.url.rsplit(":", 1)[1], 0), ("1", 1)):
        command = [sys.executable, *(a.replace(":8000", f":{port}") for a in arguments)]
        assert subprocess.run(command, check=False, capture_output=True).returncode == code


def test_the_entry_points_are_commands_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    unit = re.findall(r"^ExecStart=(.*)$", (ROOT / "deploy" / "pmlm.service").read_text(), re.MULTILINE)[0].split()
    for program, *arguments in (stated("ENTRYPOINT"), unit):
        assert program == "/opt/pmlm/bin/pmlm"
        assert run([*arguments, "--help"]) == 0
        assert "serve" in capsys.readouterr().out


def test_the_compose_file_builds_that_dockerfile_and_opens_the_loopback_alone() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]["pmlm"]
    assert (ROOT / "deploy" / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        ROOT / "deploy" / "Dockerfile"
    )
    exposed = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert service["ports"] == [f"127.0.0.1:{exposed[0]}:{exposed[0]}"]
    assert service["environment"]["PMLM_TOKEN"].startswith("${PMLM_TOKEN:?")
