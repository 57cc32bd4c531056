"""Attention over tokens and their queries: in two parts, as training does it, against the row of both as one.

    python scripts/time_attention.py [--length 256]

Forward and backward of one layer's attention in turns in one process, one thread, rotary positions; medians of
processor time, so that other work on the machine matters little.
"""

import argparse
import statistics
import time

import torch

from pmlm.batch import make_batch
from pmlm.model import ModelConfig, build_model
from pmlm.model.attention import Scene
from pmlm.model.positions import Geometry
from pmlm.runtime import generator
from pmlm.visibility import order_causal_inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = generator(0)
    config = ModelConfig(
        vocab_size=16, num_layers=1, width=256, num_heads=4, ff_width=1024, max_length=options.length,
        positions="rotary", dropout=0.0, mask_id=4,
    )  # fmt: skip
    attention = build_model(config, rng).backbone.layers[0].attention
    rows = torch.full((options.rows, options.length), 5).tolist()
    batch = make_batch(rows, [[True] * options.length] * options.rows, pad_id=0)
    rank_BL = torch.rand(options.rows, options.length, generator=rng).argsort(1).argsort(1) + 1
    inputs = order_causal_inputs(batch, rank_BL, config.mask_id)
    seconds: dict[int, list[float]] = {2: [], 0: []}
    for _ in range(options.rounds):
        for streams, found in seconds.items():
            x = torch.randn(options.rows, 2 * options.length, 256, generator=rng, requires_grad=True)
            scene = Scene(Geometry(inputs.positions_BL, inputs.positions_BL, streams), inputs.visible_BQK, None)
            began = time.process_time()
            attention(x, scene).sum().backward()
            found.append(time.process_time() - began)
    parts, whole = (statistics.median(found[2:]) for found in seconds.values())
    print(f"length {options.length}: in two parts {parts / whole:.2f} of the time of the row as one")


if __name__ == "__main__":
    main()
