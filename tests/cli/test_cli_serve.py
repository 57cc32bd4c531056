"""pmlm serve as a program: it says where it is, warns, refuses and ends well."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from test_cli import Capture, ok, refused

from pmlm.bench.serve import Server, serving_table
from pmlm.cli import run

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_with_code_0(number: int) -> None:
    command = [sys.executable, "-m", "pmlm", "serve", "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("warning: 0.0.0.0 can be reached from elsewhere and no --token")
            line = process.stderr.readline()
            found = re.fullmatch(r"pmlm serves on http://0\.0\.0\.0:(\d+) \(Ctrl-C stops it\)\n", line)
            assert found, line
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/healthz", timeout=60) as answer:
                assert json.load(answer) == {"status": "ok"}
            process.send_signal(number)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_what_cannot_be_served_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no folder" in refused(capsys, "serve", "-m", "nowhere")
    assert "places must be positive" in refused(capsys, "serve", "--places", "0")
    for bad in (" ", "t\r", " t"):
        assert "the token must be" in refused(capsys, "serve", "--token", bad)
    monkeypatch.setenv("PMLM_TOKEN", "é")
    assert "the token must be" in refused(capsys, "serve")
    monkeypatch.delenv("PMLM_TOKEN")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", "--port", port]) == 1
        assert f"RunError: cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "uvicorn is not installed: `pip install 'pmlm[serve]'`" in refused(capsys, "serve")


def test_bench_serve_checks_its_options(capsys: Capture) -> None:
    assert "--clients takes whole numbers" in refused(capsys, "bench", "serve", "--clients", "x")
    assert "--rounds must be at least 1" in refused(capsys, "bench", "serve", "--rounds", "0")
    for seconds in ("-1", "nan", "inf"):
        assert "--soak takes seconds" in refused(capsys, "bench", "serve", "--soak", seconds)


@pytest.mark.parametrize(("seconds", "left"), [(5.0, 0), (0.0, 3)])
def test_a_request_is_left_over_if_it_stays_counted(monkeypatch: pytest.MonkeyPatch, seconds: float, left: int) -> None:
    pages = iter(["pmlm_waiting 2\npmlm_in_flight 1\n", "pmlm_waiting 0\npmlm_in_flight 0\n"])
    monkeypatch.setattr(Server, "get", lambda *_: next(pages))
    process = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process.wait()
    assert Server(process, 0).left_over(seconds) == left


@pytest.mark.slow
def test_bench_serve_loses_nothing_and_memory_is_steady(capsys: Capture, tmp_path: Path) -> None:
    arguments = [
        "bench",
        "serve",
        "--clients",
        "2,8",
        "--requests",
        "8",
        "--rounds",
        "1",
        "--soak",
        "8",
        "-o",
        str(tmp_path / "r"),
    ]
    assert run(arguments) == 0
    report = json.loads((tmp_path / "r" / "bench.json").read_text())
    table = (tmp_path / "r" / "bench.md").read_text()
    assert capsys.readouterr().out == table == serving_table(report)
    for row in report["clients"]:
        assert f"| {row['clients']} | {row['batched']['requests_per_second']:.1f} |" in table
    assert [row["clients"] for row in report["clients"]] == [2, 8]
    assert all(row[name]["lost"] == 0 for row in report["clients"] for name in ("batched", "one by one"))
    assert report["clients"][1]["ratio"] > 1
    soak = report["soak"]
    assert (soak["lost"], soak["left_over"]) == (0, 0)
    assert soak["answered"] >= soak["clients"]
    assert abs(soak["growth"]) < 0.05
    assert abs(soak["memory_end"] / soak["memory_start"] - 1) < 0.3
    assert all(end["exit_code"] == 0 for end in report["shutdown"].values())


def test_the_help_names_the_default_model_as_it_is_chosen(capsys: Capture) -> None:
    said = " ".join(re.sub(r"[│|]", " ", ok(capsys, "serve", "--help")).split())
    assert "Without it: PMLM_MODEL, else the model inside the package." in said
