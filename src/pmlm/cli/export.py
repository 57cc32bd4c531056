"""`pmlm export`: a checkpoint with a graph for ONNX Runtime beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pmlm.cli.common import JsonOption, ModelOption, print_json


def export(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", metavar="DIR")],
    model: ModelOption = None,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32: torch's own answers; int8: sooner still, and nearly so.")
    ] = "fp32",
    json: JsonOption = False,
) -> None:
    """Write the model with a graph that `--engine onnx` computes with: sooner than torch on a CPU."""
    from pmlm.lm import load
    from pmlm.model.graph import GRAPH

    load(model, device="cpu").export(out, precision=precision)
    size = (out / GRAPH).stat().st_size
    if json:
        print_json({"folder": str(out), "precision": precision, "graph_bytes": size})
        return
    print(f"{out}: {GRAPH} in {precision}, {size / 1e6:.1f} MB")
