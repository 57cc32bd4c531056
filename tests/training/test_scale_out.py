"""Several ranks: the curve of one, copies or shards, checkpoints read by other numbers of ranks, a rank that dies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pmlm.corpus.shards import Corpus
from pmlm.training.resume import step_folders

HERE = Path(__file__).parent
LIMIT = 240
"""Seconds; a run takes about 20 on an idle machine, and is not to fail on a busy one."""
STILL = {"model": {"dropout": 0.0}, "num_steps": 6, "evaluation": {"every": 3}, "saving": {"every": 3}}

pytestmark = pytest.mark.slow


def launch(ranks: int, corpus: Corpus, folder: Path, *, check: bool = True, **changes: Any) -> dict[str, Any]:
    worker = [str(HERE / "worker.py"), str(corpus.folder), str(folder), json.dumps({**STILL, **changes})]
    command = [sys.executable, *worker]
    if ranks > 0:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *worker]
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT, check=False)
    if not check:
        return {"code": done.returncode, "stderr": done.stderr}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(lines[0].removeprefix("RESULT ")))


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_two_ranks_give_the_curve_of_one(corpus: Corpus, tmp_path: Path, how: str) -> None:
    one = launch(0, corpus, tmp_path / "one")
    two = launch(2, corpus, tmp_path / "two", parallel=how, micro_rows=3)
    assert two["losses"] == pytest.approx(one["losses"], rel=2e-4)
    assert two["figures"] == pytest.approx(one["figures"], rel=2e-4)


def test_lamb_runs_on_shards(corpus: Corpus, tmp_path: Path) -> None:
    one = launch(0, corpus, tmp_path / "one", optim={"kind": "lamb"})
    two = launch(2, corpus, tmp_path / "two", optim={"kind": "lamb"}, parallel="fsdp")
    assert two["losses"] == pytest.approx(one["losses"], rel=2e-4)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_work_of_muon(corpus: Corpus, tmp_path: Path, ranks: int) -> None:
    one = launch(0, corpus, tmp_path / "one", optim={"kind": "muon"})
    several = launch(ranks, corpus, tmp_path / "several", optim={"kind": "muon"})
    assert several["losses"] == pytest.approx(one["losses"], rel=2e-4)


@pytest.mark.parametrize("reader", [0, 1, 3])
def test_shards_saved_by_two_ranks_are_read_by_others(corpus: Corpus, tmp_path: Path, reader: int) -> None:
    whole = launch(0, corpus, tmp_path / "one")
    first = launch(2, corpus, tmp_path / "two", parallel="fsdp", stop_at=3)
    assert len(first["losses"]) == 3
    rest = launch(reader, corpus, tmp_path / "two", parallel="fsdp")
    assert rest["start"] == 3
    assert first["losses"] + rest["losses"] == pytest.approx(whole["losses"], rel=2e-4)


def test_one_rank_saves_and_three_shards_go_on(corpus: Corpus, tmp_path: Path) -> None:
    whole = launch(0, corpus, tmp_path / "one")
    first = launch(0, corpus, tmp_path / "two", stop_at=3)
    rest = launch(3, corpus, tmp_path / "two", parallel="fsdp")
    assert first["losses"] + rest["losses"] == pytest.approx(whole["losses"], rel=2e-4)


def test_the_command_of_the_docs_runs_on_two_ranks(corpus: Corpus, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    small = ["--set", "num_steps=2", "--set", "batch_rows=4", "--set", "micro_rows=1", "--json", "--quiet"]
    done = subprocess.run(
        [*torchrun, "-m", "pmlm", "train", "tiny-u-pmlm-r", "--data", str(corpus.folder), "--out", str(tmp_path), *small],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finished"] is True
    assert [path.name for path in step_folders(tmp_path / "checkpoints")] == ["step-00000002"]


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads are starved as Linux does it")
def test_a_rank_ends_well_where_a_thread_of_the_transport_is_kept_waiting(corpus: Corpus, tmp_path: Path) -> None:
    for k in range(3):
        assert len(launch(3, corpus, tmp_path / str(k), starve=True, num_steps=1)["losses"]) == 1


def test_a_rank_that_dies_ends_the_job_and_leaves_a_usable_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    whole = launch(0, corpus, tmp_path / "one")
    dead = launch(2, corpus, tmp_path / "two", check=False, die_at=4)
    assert dead["code"] != 0
    assert "exitcode  : 9" in dead["stderr"] or "exitcode: 9" in dead["stderr"]
    assert [path.name for path in step_folders(tmp_path / "two" / "checkpoints")] == ["step-00000003"]
    rest = launch(0, corpus, tmp_path / "two")
    assert rest["start"] == 3
    assert rest["losses"] == pytest.approx(whole["losses"][3:], rel=2e-4)
