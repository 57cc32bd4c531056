"""Run by torchrun in the tests: trains the test settings and prints the losses of rank 0."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from training_helpers import make_settings

from pmlm.corpus.shards import open_corpus
from pmlm.rank_process import leave
from pmlm.training.distributed import joined_ranks, sum_over_ranks
from pmlm.training.run import Evaluation, Run
from pmlm.training.trainer import StepReport


def main() -> None:
    torch.set_num_threads(1)
    corpus, folder, changes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    stop_at, die_at, starve = (changes.pop(name, None) for name in ("stop_at", "die_at", "starve"))
    with joined_ranks(torch.device("cpu")) as (ranks, device):
        run = Run(make_settings(**changes), open_corpus(corpus), folder, device=device, ranks=ranks)
        start = run.resume()
        losses, figures = [], []
        for event in run.events(lambda: run.trainer.step == stop_at):
            if isinstance(event, StepReport):
                losses.append(event.loss)
                if event.step == die_at and ranks.rank == 1:
                    os._exit(9)  # as if killed: nothing is tidied up
            if isinstance(event, Evaluation):
                figures.append(event.headline)
        if starve:
            starve_threads()
            for _ in range(5):
                sum_over_ranks(torch.ones(1000), ranks)
        if ranks.is_main:
            print("RESULT " + json.dumps({"start": start, "losses": losses, "figures": figures}), flush=True)


def starve_threads() -> None:
    """All threads but this one get only what nobody else wants of the processor, and there is somebody who does."""
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    for _ in range(os.cpu_count() or 1):
        subprocess.Popen(["timeout", "3", sys.executable, "-c", "while True: pass"])  # outlives this process


if __name__ == "__main__":
    main()
    leave(0)
