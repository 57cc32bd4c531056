"""`pmlm plot`: curves of training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of training runs.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture, .png or .svg.")] = Path("curves.png"),
) -> None:
    """Draw training loss and held-out bits per byte of several RUNS against tokens."""
    from pmlm.bench.curves import draw_curves, read_all

    draw_curves(read_all(runs), out)
    print(out)
