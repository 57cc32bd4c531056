"""A template filled by an adapted BERT in three orders, each with the probability of what was written, in nats.

    python examples/adapted_bert.py [DIR]

DIR is a model that `pmlm adapt` made (see docs/interop.md). Without it: the environment's PMLM_ADAPTED, else
runs/adapted/model.
"""

import os
import sys
from pathlib import Path

import pmlm

TEMPLATE = "The capital of [MASK:2] is [MASK:2]."


def model_folder(arguments: list[str]) -> Path:
    return Path(arguments[0] if arguments else os.environ.get("PMLM_ADAPTED", "runs/adapted/model"))


def main(arguments: list[str]) -> None:
    folder = model_folder(arguments)
    if not folder.is_dir():
        print(f"no adapted model in {folder}: make one by `pmlm adapt`, or name its folder")
        return
    lm = pmlm.load(folder)
    for order in ("l2r", "r2l", "random"):
        filled = lm.fill(TEMPLATE, order=order, seed=1, temperature=0.7)
        print(f"{order:8}{filled.text}   ({filled.nll:.1f} nats)")


if __name__ == "__main__":
    main(sys.argv[1:])
