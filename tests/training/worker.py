"""Run by torchrun in the tests: trains the test settings and prints the losses of rank 0."""

import json
import os
import sys
from pathlib import Path

import torch
from training_helpers import make_settings

from pmlm.corpus.shards import open_corpus
from pmlm.training.distributed import joined_ranks
from pmlm.training.run import Evaluation, Run
from pmlm.training.trainer import StepReport


def main() -> None:
    torch.set_num_threads(1)
    corpus, folder, changes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    stop_at, die_at = changes.pop("stop_at", None), changes.pop("die_at", None)
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
        if ranks.is_main:
            print("RESULT " + json.dumps({"start": start, "losses": losses, "figures": figures}), flush=True)


if __name__ == "__main__":
    main()
