"""The one decode loop (the paper's Algorithm 1, for a batch of canvases and any order).

Each turn reveals one hidden slot of every canvas that still has one. How the conditionals come about is the stepper's
business (pmlm.generation.steppers).

Shapes: B canvases, L slots, M predictions, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.generation.sampling import Sampling, draw_token, sampling_logp
from pmlm.generation.steppers import State, Stepper
from pmlm.likelihood import arranged_slots
from pmlm.model import Slots
from pmlm.orders import Order, choose


@dataclass(frozen=True)
class Reveal:
    """One token written on one canvas."""

    row: int
    slot: int
    token: int
    logp: float
    """The model's own log-probability: temperature 1, specials removed, before any filter."""
    sampled_logp: float
    """The sampler's."""


@torch.no_grad()
def decode(
    stepper: Stepper,
    batch: Batch,
    allowed_BLV: Tensor,
    order: Order,
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
) -> Iterator[list[Reveal]]:
    """Fill the maskable slots of each row; yields what was revealed at each turn.

    `allowed_BLV` says which ids may come out at each slot; its first two dimensions may be 1.
    """
    ids_BL, hidden_BL = batch.ids_BL.clone(), batch.maskable_BL.clone()
    rank_BL = torch.zeros_like(ids_BL)
    plans = _plans(order, batch, rngs)
    allowed_BLV = allowed_BLV.expand(*ids_BL.shape, -1)
    turn = 0
    while hidden_BL.any():
        turn += 1
        at = _candidates(hidden_BL, plans, turn)
        logp_MV = stepper.logp(State(replace(batch, ids_BL=ids_BL), hidden_BL, rank_BL), at)
        sampled_MV = sampling_logp(logp_MV, allowed_BLV[at.rows_M, at.slots_M], sampling)
        reveals = []
        for row in hidden_BL.any(dim=1).nonzero()[:, 0].tolist():
            mine = (at.rows_M == row).nonzero()[:, 0]
            m = int(mine[choose(order.kind, logp_MV[mine])] if order.is_policy else mine[0])
            token, slot = draw_token(sampled_MV[m], rngs[row]), int(at.slots_M[m])
            reveals.append(Reveal(row, slot, token, float(logp_MV[m, token]), float(sampled_MV[m, token])))
        for r in reveals:
            ids_BL[r.row, r.slot], hidden_BL[r.row, r.slot], rank_BL[r.row, r.slot] = r.token, False, turn
        yield reveals


def _plans(order: Order, batch: Batch, rngs: Sequence[torch.Generator]) -> list[list[int]] | None:
    """Each row's slots in the order of prediction; None where the model chooses."""
    return None if order.is_policy else arranged_slots(batch, order, rngs)


def _candidates(hidden_BL: Tensor, plans: list[list[int]] | None, turn: int) -> Slots:
    if plans is None:
        return Slots.where(hidden_BL)
    due = [(b, plan[turn - 1]) for b, plan in enumerate(plans) if turn <= len(plan)]
    return Slots(torch.tensor([b for b, _ in due]), torch.tensor([slot for _, slot in due]))
