"""Twenty kills at random moments: no run is lost, and the end is bit for bit that of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pmlm.corpus.shards import Corpus
from pmlm.training.resume import step_folders

HERE = Path(__file__).parent
SETTINGS = {
    "num_steps": 120,
    "evaluation": {"every": 7},
    "saving": {"every": 2, "keep": 2},
    "optim": {"kind": "muon", "ema": 0.9},
}
KILLS = 20


def start(corpus: Corpus, folder: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "worker.py"), str(corpus.folder), str(folder), json.dumps(SETTINGS)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def wait_for_a_moment(
    process: subprocess.Popen[bytes], folder: Path, lines_before: int, rng: random.Random, *, early: bool
) -> bool:
    """Some time while the process starts, or some time after it has logged something; False where it has ended."""
    if early:
        end = time.monotonic() + rng.uniform(0, 4)
        while time.monotonic() < end and num_lines(folder) == lines_before and process.poll() is None:
            time.sleep(0.002)
        return process.poll() is None
    if not wait_for_progress(process, folder, lines_before):
        return False
    time.sleep(rng.uniform(0, 0.12))
    return True


def wait_for_progress(process: subprocess.Popen[bytes], folder: Path, lines_before: int) -> bool:
    """Until the run has logged something new; False where it has ended."""
    while process.poll() is None:
        if num_lines(folder) != lines_before:
            return True
        time.sleep(0.002)
    return False


def num_lines(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.is_file() else 0


@pytest.mark.slow
def test_twenty_kills_lose_no_run_and_change_no_bit(corpus: Corpus, tmp_path: Path) -> None:
    assert start(corpus, tmp_path / "calm").wait() == 0
    rng, kills, folder = random.Random(1), 0, tmp_path / "killed"
    while kills < KILLS:
        before = num_lines(folder)
        process = start(corpus, folder)
        if not wait_for_a_moment(process, folder, before, rng, early=kills % 4 == 0):
            break
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == KILLS, f"the run ended after {kills} kills: it needs more steps"
    assert start(corpus, folder).wait() == 0
    calm, killed = (
        load_file(step_folders(f / "checkpoints")[-1] / "state.safetensors") for f in (tmp_path / "calm", folder)
    )
    assert calm.keys() == killed.keys()
    assert all(bool((calm[name] == killed[name]).all()) for name in calm)
    steps = [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines() if '"step"' in line
    ]
    assert [s for i, s in enumerate(steps) if i == 0 or s != steps[i - 1]] == list(range(1, 121))
    assert not list((folder / "checkpoints").glob(".*"))
