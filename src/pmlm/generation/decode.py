"""The one decode loop (the paper's Algorithm 1, for a batch of canvases, each along its own order).

Each turn reveals one hidden slot of every canvas that still has one. How the conditionals come about is the stepper's
business (pmlm.generation.steppers). A row draws from its own generator, so it does not matter who else is in the batch.

Shapes: B canvases, L slots, M predictions, R roles, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.generation.rules import Rule, allowed_by
from pmlm.generation.sampling import Sampling, draw_token, sampling_logp
from pmlm.generation.steppers import State, Stepper
from pmlm.likelihood import arranged_slots
from pmlm.model import Slots
from pmlm.orders import Order, choose
from pmlm.words import Flags


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


class Allowed:
    """Which ids may come out where: each slot has a role, each role its ids, and rows may have rules of their own."""

    def __init__(self, role_BL: Tensor, ids_RV: Flags, rules: Sequence[Sequence[Rule]] | None = None) -> None:
        self.role_BL, self.ids_RV = role_BL, ids_RV
        self.ids_torch_RV = torch.from_numpy(ids_RV).to(role_BL.device)
        self.rules = rules if rules is not None and any(rules) else None

    def at(self, slots: Slots) -> Tensor:
        """[M, V]"""
        role_M = self.role_BL[slots.rows_M, slots.slots_M]
        if self.rules is None:
            return self.ids_torch_RV[role_M]
        places = zip(slots.rows_M.tolist(), slots.slots_M.tolist(), role_M.tolist(), strict=True)
        flags = [allowed_by(self.rules[row], slot, self.ids_RV[role]) for row, slot, role in places]
        return torch.from_numpy(np.stack(flags)).to(self.role_BL.device)

    def reveal(self, reveal: Reveal) -> None:
        for rule in self.rules[reveal.row] if self.rules is not None else ():
            rule.reveal(reveal.slot, reveal.token)


@torch.no_grad()
def decode(
    stepper: Stepper,
    batch: Batch,
    allowed: Allowed,
    orders: Sequence[Order],
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
) -> Iterator[list[Reveal]]:
    """Fill the maskable slots of each row along the row's order; yields what was revealed at each turn.

    A row for which nothing is allowed any more is left where it is, and not spoken of again.
    """
    ids_BL, hidden_BL = batch.ids_BL.clone(), batch.maskable_BL.clone()
    rank_BL = torch.zeros_like(ids_BL)
    plans = _plans(orders, batch, rngs)
    turn = 0
    while hidden_BL.any():
        turn += 1
        at = _candidates(hidden_BL, plans, turn)
        logp_MV = stepper.logp(State(replace(batch, ids_BL=ids_BL), hidden_BL, rank_BL), at)
        present_MV = None
        if sampling.repetition_penalty != 1:
            known_BL = ~hidden_BL & (batch.group_BL >= 0)
            present_MV = _present(ids_BL, known_BL, logp_MV.shape[1])[at.rows_M]
        allowed_MV = allowed.at(at)
        open_M = allowed_MV.any(dim=1)
        sampled_MV = sampling_logp(logp_MV, allowed_MV | ~open_M[:, None], sampling, present_MV)
        reveals = []
        for row in at.rows_M.unique().tolist():
            mine = (at.rows_M == row).nonzero()[:, 0]
            if not open_M[mine].all():
                hidden_BL[row] = False
                continue
            m = int(mine[choose(orders[row].kind, logp_MV[mine])] if orders[row].is_policy else mine[0])
            token, slot = draw_token(sampled_MV[m], rngs[row]), int(at.slots_M[m])
            reveals.append(Reveal(row, slot, token, float(logp_MV[m, token]), float(sampled_MV[m, token])))
        for r in reveals:
            ids_BL[r.row, r.slot], hidden_BL[r.row, r.slot], rank_BL[r.row, r.slot] = r.token, False, turn
            allowed.reveal(r)
        yield reveals


def _present(ids_BL: Tensor, known_BL: Tensor, vocab_size: int) -> Tensor:
    """[B, V] which ids stand on each canvas."""
    present_BV = torch.zeros(len(ids_BL), vocab_size, dtype=torch.long, device=ids_BL.device)
    return present_BV.scatter_add_(1, ids_BL, known_BL.long()) > 0


def _plans(orders: Sequence[Order], batch: Batch, rngs: Sequence[torch.Generator]) -> list[list[int] | None]:
    """Each row's slots in the order of prediction; None where the model chooses."""
    plans: list[list[int] | None] = []
    for b, order in enumerate(orders):
        row = batch.rows(torch.tensor([b]))
        plans.append(None if order.is_policy else arranged_slots(row, order, [rngs[b]])[0])
    return plans


def _candidates(hidden_BL: Tensor, plans: list[list[int] | None], turn: int) -> Slots:
    """The next slot of each plan; every hidden slot where the model chooses."""
    due: list[tuple[int, int]] = []
    for b, plan in enumerate(plans):
        if plan is None:
            due += [(b, slot) for slot in hidden_BL[b].nonzero()[:, 0].tolist()]
        elif turn <= len(plan) and hidden_BL[b, plan[turn - 1]]:
            due.append((b, plan[turn - 1]))
    return Slots(torch.tensor([b for b, _ in due]), torch.tensor([slot for _, slot in due]))
