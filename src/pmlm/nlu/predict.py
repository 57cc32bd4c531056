"""What a head says of many rows, computed in batches of like length and given back in order."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pmlm.model import HeadSpec, ModelConfig, TaskModel
from pmlm.nlu.framing import PairRow, Reading, read_rows


def predict(
    model: TaskModel,
    name: str,
    rows: Sequence[PairRow],
    pad_id: int,
    *,
    batch_rows: int = 64,
    advance: Callable[[int], None] = lambda _rows: None,
) -> list[Tensor]:
    """For each row [C] of classes, [1] of a number, or [L, 2] of a span, on the CPU. The model's mode is kept."""
    was_training = model.training
    model.eval()
    said = in_batches(
        rows,
        pad_id,
        model.config,
        model.device,
        lambda reading: model(reading.inputs, reading.is_token_BL, name),
        batch_rows=batch_rows,
        advance=advance,
    )
    model.train(was_training)
    return [out[: len(row)] if out.dim() == 2 else out for out, row in zip(said, rows, strict=True)]


@torch.no_grad()
def in_batches(
    rows: Sequence[PairRow],
    pad_id: int,
    config: ModelConfig,
    device: torch.device,
    say: Callable[[Reading], Tensor],
    *,
    batch_rows: int = 64,
    advance: Callable[[int], None] = lambda _rows: None,
) -> list[Tensor]:
    """What `say` gives for each row, on the CPU; rows of like length are read together, so as to pad little."""
    said: list[Tensor] = [torch.empty(0)] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for at in range(0, len(order), batch_rows):
        part = order[at : at + batch_rows]
        outs = say(read_rows([rows[i] for i in part], pad_id, config, device)).float().cpu()
        for i, out in zip(part, outs, strict=True):
            said[i] = out
        advance(len(part))
    return said


def decide(spec: HeadSpec, said: Sequence[Tensor]) -> list[float]:
    """The number of the likeliest class, or the number itself, within its scale."""
    if spec.kind == "classes":
        return [float(out.argmax()) for out in said]
    return [min(max(spec.low + float(out[0]) * (spec.high - spec.low), spec.low), spec.high) for out in said]
