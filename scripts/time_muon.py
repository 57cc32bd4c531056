"""Orthogonalising a network's matrices: as `pmlm.training.optim` does it against one Newton-Schulz step after the other.

    python scripts/time_muon.py [--layers 6] [--width 256] [--threads 2]

In turns in one process; medians. What both give is compared too.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pmlm.runtime import generator
from pmlm.training.optim import orthogonalise


def step_by_step(x_BMN: Tensor) -> Tensor:
    x = x_BMN.mT if x_BMN.shape[-2] > x_BMN.shape[-1] else x_BMN
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if x_BMN.shape[-2] > x_BMN.shape[-1] else x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = {"attention": (4, 1, 1), "up": (1, 4, 1), "down": (1, 1, 4)}
    stacks = [
        torch.randn(n * options.layers, rows * options.width, columns * options.width, generator=generator(0, name))
        for name, (n, rows, columns) in shapes.items()
    ]
    ways: dict[str, Callable[[Tensor], Tensor]] = {"now": orthogonalise, "step by step": step_by_step}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            for stack in stacks:
                way(stack)
            seconds[name].append(time.perf_counter() - began)
    now, before = (statistics.median(found[2:]) for found in seconds.values())
    apart = max(float((orthogonalise(stack) - step_by_step(stack)).abs().max()) for stack in stacks)
    print(f"{now / before:.2f} of the time of one step after the other; entries differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
