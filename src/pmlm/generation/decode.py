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
from pmlm.errors import ConstraintError
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


class Course:
    """A row's way through its hidden slots: first what is written already, then along its order."""

    def __init__(self, order: Order, row: Batch, rng: torch.Generator, written: Sequence[tuple[int, int]] = ()) -> None:
        self.order, self.rng, self.written, self.turn = order, rng, written, 0
        self.plan: list[int] | None = None
        if not order.is_policy:
            done = {slot for slot, _ in written}
            self.plan = [slot for slot in arranged_slots(row, order, [rng])[0] if slot not in done]

    def due(self, hidden_L: Tensor) -> list[int]:
        """The next slot; every hidden slot where the model chooses; none of a row that is left where it is."""
        if not hidden_L.any():
            return []
        if self.turn < len(self.written):
            return [self.written[self.turn][0]]
        if self.plan is None:
            return hidden_L.nonzero()[:, 0].tolist()
        done = self.turn - len(self.written)
        return self.plan[done : done + 1]

    def choose(self, logp_HV: Tensor) -> int:
        """Which of the slots that are due."""
        return choose(self.order.kind, logp_HV) if len(logp_HV) > 1 else 0

    def draw(self, sampled_V: Tensor, allowed_V: Tensor) -> tuple[int, float]:
        """The token, and the sampler's log-probability of it: 0 for one that is written already."""
        turn, self.turn = self.turn, self.turn + 1
        if turn >= len(self.written):
            token = draw_token(sampled_V, self.rng)
            return token, float(sampled_V[token])
        slot, token = self.written[turn]
        if not allowed_V[token]:
            raise ConstraintError(f"what is written at position {slot - 1} may not stand there under the constraints")
        return token, 0.0


@torch.no_grad()
def decode(
    stepper: Stepper,
    batch: Batch,
    allowed: Allowed,
    orders: Sequence[Order],
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
    written: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> Iterator[list[Reveal]]:
    """Fill the maskable slots of each row along the row's order; yields what was revealed at each turn.

    A row for which nothing is allowed any more is left where it is, and not spoken of again. `written` holds, for each
    row, slots and tokens that come first.
    """
    ids_BL, hidden_BL = batch.ids_BL.clone(), batch.maskable_BL.clone()
    rank_BL = torch.zeros_like(ids_BL)
    rows = [batch.rows(torch.tensor([b])) for b in range(batch.num_rows)]
    before = written or [()] * len(rows)
    courses = [Course(*each) for each in zip(orders, rows, rngs, before, strict=True)]
    turn = 0
    while hidden_BL.any():
        turn += 1
        at = slots_due([course.due(hidden_L) for course, hidden_L in zip(courses, hidden_BL, strict=True)])
        logp_MV = stepper.logp(State(replace(batch, ids_BL=ids_BL), hidden_BL, rank_BL), at)
        present_MV = None
        if sampling.repetition_penalty != 1:
            known_BL = ~hidden_BL & (batch.group_BL >= 0)
            present_MV = present(ids_BL, known_BL, logp_MV.shape[1])[at.rows_M]
        allowed_MV = allowed.at(at)
        open_M = allowed_MV.any(dim=1)
        sampled_MV = sampling_logp(logp_MV, allowed_MV | ~open_M[:, None], sampling, present_MV)
        reveals = []
        for row in at.rows_M.unique().tolist():
            mine = (at.rows_M == row).nonzero()[:, 0]
            if not open_M[mine].all():
                hidden_BL[row] = False
                continue
            m = int(mine[courses[row].choose(logp_MV[mine])])
            token, sampled_logp = courses[row].draw(sampled_MV[m], allowed_MV[m])
            reveals.append(Reveal(row, int(at.slots_M[m]), token, float(logp_MV[m, token]), sampled_logp))
        for r in reveals:
            ids_BL[r.row, r.slot], hidden_BL[r.row, r.slot], rank_BL[r.row, r.slot] = r.token, False, turn
            allowed.reveal(r)
        yield reveals


def present(ids_BL: Tensor, known_BL: Tensor, vocab_size: int) -> Tensor:
    """[B, V] which ids stand on each canvas."""
    present_BV = torch.zeros(len(ids_BL), vocab_size, dtype=torch.long, device=ids_BL.device)
    return present_BV.scatter_add_(1, ids_BL, known_BL.long()) > 0


def slots_due(due: Sequence[Sequence[int]]) -> Slots:
    """The slots that each row asks for, as one list."""
    rows = [row for row, slots in enumerate(due) for _ in slots]
    return Slots(torch.tensor(rows), torch.tensor([slot for slots in due for slot in slots]))
