"""The one decode loop (the paper's Algorithm 1, for a batch of canvases, each along its own order).

Each turn reveals one hidden slot of every canvas that still has one; several, where `parallel` allows it. How the
conditionals come about is the stepper's business (pmlm.generation.steppers). A row draws from its own generator, so it
does not matter who else is in the batch.

Shapes: B canvases, L slots, M predictions, R roles, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.errors import ConstraintError
from pmlm.generation.parallel import Parallel
from pmlm.generation.rules import Rule, allowed_by
from pmlm.generation.sampling import Sampling, draw_tokens
from pmlm.generation.steppers import State, Stepper
from pmlm.likelihood import arranged_slots
from pmlm.model import Slots
from pmlm.orders import Order, choose, priority
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
    turn: int
    """Passes over this canvas so far."""


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

    def fork(self, row: int) -> "Allowed":
        """The same, with a copy of one row's rules that goes its own way."""
        if self.rules is None:
            return self
        other = copy(self)
        other.rules = [[rule.fork() for rule in rules] if b == row else rules for b, rules in enumerate(self.rules)]
        return other

    def copies(self, row: int, num: int) -> "Allowed":
        """Of one row, as many that go their own ways."""
        rules = None if self.rules is None else [[rule.fork() for rule in self.rules[row]] for _ in range(num)]
        return Allowed(self.role_BL[row].expand(num, -1), self.ids_RV, rules)

    def take(self, rows: Sequence[int]) -> None:
        """Each row goes on as a copy of another one."""
        if self.rules is not None:
            self.rules = [[rule.fork() for rule in self.rules[row]] for row in rows]

    def reveal(self, reveal: Reveal) -> None:
        for rule in self.rules[reveal.row] if self.rules is not None else ():
            rule.reveal(reveal.slot, reveal.token)


class Course:
    """A row's way through its hidden slots: first what is written already, then along its order.

    With `parallel`, several at a turn.
    """

    def __init__(
        self,
        order: Order,
        row: Batch,
        rng: torch.Generator,
        written: Sequence[tuple[int, int]] = (),
        parallel: Parallel | None = None,
    ) -> None:
        self.order, self.rng, self.parallel = order, rng, parallel
        self.left = [slot for slot, _ in written]
        """Hidden slots; in the order in which they are due, as far as that is known beforehand."""
        self.forced = dict(written)
        if order.is_policy:
            self.left += [slot for slot in row.maskable_BL[0].nonzero()[:, 0].tolist() if slot not in self.forced]
        else:
            self.left += [slot for slot in arranged_slots(row, order, [rng])[0] if slot not in self.forced]
        self._uniform: list[float] = []

    def due(self) -> list[int]:
        """The next slots; every hidden slot where the model chooses; none of a row that is left where it is."""
        if self.left and self.left[0] in self.forced:
            return self.left[:1]
        if self.order.is_policy:
            return list(self.left)
        return self.left[: 1 if self.parallel is None else self.parallel.look_ahead]

    def choose(self, logp_HV: Tensor) -> list[int]:
        """Which of the slots that are due, one after the other."""
        if len(logp_HV) == 1:
            return [0]
        if not self.order.is_policy:
            assert self.parallel is not None
            return list(range(self.parallel.num(logp_HV)))
        if self.parallel is None:
            return [choose(self.order.kind, logp_HV)]
        first_H = priority(self.order.kind, logp_HV).argsort(descending=True, stable=True)
        return first_H[: self.parallel.num(logp_HV[first_H])].tolist()

    def uniform(self) -> float:
        """The next random number in [0, 1)."""
        if not self._uniform:
            self._uniform = torch.rand(32, generator=self.rng, dtype=torch.float64).tolist()[::-1]
        return self._uniform.pop()

    def check(self, slot: int, allowed_V: Tensor) -> None:
        """ConstraintError where a token that is written already may not stand at its slot."""
        if slot in self.forced and not allowed_V[self.forced[slot]]:
            raise ConstraintError(f"what is written at position {slot - 1} may not stand there under the constraints")

    def reveal(self, slot: int) -> None:
        if self.left[0] == slot:
            del self.left[0]
        else:
            self.left.remove(slot)

    def stop(self) -> None:
        """It is left where it is."""
        self.left = []


class Canvases:
    """A batch of canvases while they are being filled."""

    def __init__(self, batch: Batch) -> None:
        self.batch = replace(batch, ids_BL=batch.ids_BL.clone())
        self.hidden_BL, self.rank_BL = batch.maskable_BL.clone(), torch.zeros_like(batch.ids_BL)
        self.num_revealed = [0] * batch.num_rows

    def state(self, fresh: Slots | None = None) -> State:
        return State(self.batch, self.hidden_BL, self.rank_BL, fresh)

    def write(self, rows: Sequence[int], slots: Sequence[int], tokens: Sequence[int]) -> Slots:
        """One token for each of some rows."""
        for row in rows:
            self.num_revealed[row] += 1
        ranks = [self.num_revealed[row] for row in rows]
        device = self.hidden_BL.device
        row_M, slot_M, token_M, rank_M = (torch.tensor(x, device=device) for x in (rows, slots, tokens, ranks))
        self.batch.ids_BL[row_M, slot_M], self.hidden_BL[row_M, slot_M] = token_M, False
        self.rank_BL[row_M, slot_M] = rank_M
        return Slots(row_M, slot_M)

    def present(self, rows: Sequence[int], sampling: Sampling, vocab_size: int) -> Tensor | None:
        """[M, V] which ids stand on some canvases, where that matters."""
        if sampling.repetition_penalty == 1:
            return None
        known_BL = ~self.hidden_BL & (self.batch.group_BL >= 0)
        return present(self.batch.ids_BL[rows], known_BL[rows], vocab_size)


@dataclass(frozen=True)
class Pick:
    """A slot that is to be written now, and the prediction (of a pass) that it is drawn from."""

    row: int
    slot: int
    prediction: int


@torch.no_grad()
def decode(
    stepper: Stepper,
    batch: Batch,
    allowed: Allowed,
    orders: Sequence[Order],
    sampling: Sampling,
    rngs: Sequence[torch.Generator],
    written: Sequence[Sequence[tuple[int, int]]] | None = None,
    parallel: Parallel | None = None,
) -> Iterator[list[Reveal]]:
    """Fill the maskable slots of each row along the row's order; yields what was revealed at each turn.

    A row for which nothing is allowed any more is left where it is, and not spoken of again. `written` holds, for each
    row, slots and tokens that come first.
    """
    rows = [batch.rows(torch.tensor([b])) for b in range(batch.num_rows)]
    before = written or [()] * len(rows)
    courses = [Course(*each, parallel) for each in zip(orders, rows, rngs, before, strict=True)]
    canvases, fresh, turn = Canvases(batch), None, 0
    while any(course.left for course in courses):
        turn += 1
        due = [course.due() for course in courses]
        in_step = all(len(slots) == 1 for slots in due)
        at = slots_due(due, canvases.hidden_BL.device)
        logp_MV = stepper.logp(canvases.state(fresh if in_step else None), at)
        rounds = _rounds(courses, due, logp_MV)
        reveals, fresh = list[Reveal](), None
        for picks in rounds:
            mine, where = _write(picks, logp_MV, canvases, allowed, courses, sampling, turn)
            reveals += mine
            fresh = where if len(rounds) == 1 and len(mine) == len(courses) else None
        yield reveals


def _rounds(courses: Sequence[Course], due: Sequence[Sequence[int]], logp_MV: Tensor) -> list[list[Pick]]:
    """What is written at this turn: the first pick of each row, the second of each that has one, and so on."""
    if len(logp_MV) == len(courses) and all(len(slots) == 1 for slots in due):
        return [[Pick(row, slots[0], row) for row, slots in enumerate(due)]]
    rounds: list[list[Pick]] = []
    for row, (slots, mine_HV) in enumerate(zip(due, logp_MV.split([len(slots) for slots in due]), strict=True)):
        start = sum(len(other) for other in due[:row])
        for number, pick in enumerate(courses[row].choose(mine_HV) if slots else []):
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(Pick(row, slots[pick], start + pick))
    return rounds


def _write(
    picks: Sequence[Pick],
    logp_MV: Tensor,
    canvases: Canvases,
    allowed: Allowed,
    courses: Sequence[Course],
    sampling: Sampling,
    turn: int,
) -> tuple[list[Reveal], Slots | None]:
    """One token for each row that is picked and can go on."""
    picks = [pick for pick in picks if courses[pick.row].left]  # some may have been stopped at this very turn
    if not picks:
        return [], None
    if len(picks) < len(logp_MV):
        logp_MV = logp_MV[[pick.prediction for pick in picks]]
    flags_MV = allowed.at(slots_at([pick.row for pick in picks], [pick.slot for pick in picks], logp_MV.device))
    if allowed.rules is not None and not (open_M := flags_MV.any(dim=1)).all():
        for pick, is_open in zip(picks, open_M.tolist(), strict=True):
            if not is_open:
                courses[pick.row].stop()
                canvases.hidden_BL[pick.row] = False
        kept = open_M.nonzero()[:, 0].tolist()
        picks, logp_MV, flags_MV = [picks[m] for m in kept], logp_MV[open_M], flags_MV[open_M]
    if not picks:
        return [], None
    rows, slots = [pick.row for pick in picks], [pick.slot for pick in picks]
    for m, (row, slot) in enumerate(zip(rows, slots, strict=True)):
        courses[row].check(slot, flags_MV[m])
    present_MV = canvases.present(rows, sampling, logp_MV.shape[1])
    drawn = draw_rows([courses[row] for row in rows], slots, logp_MV, flags_MV, sampling, present_MV)
    reveals = [Reveal(row, slot, *each, turn) for row, slot, each in zip(rows, slots, drawn, strict=True)]
    for reveal in reveals:
        courses[reveal.row].reveal(reveal.slot)
        allowed.reveal(reveal)
    return reveals, canvases.write(rows, slots, [reveal.token for reveal in reveals])


def draw_rows(
    courses: Sequence[Course],
    slots: Sequence[int],
    logp_MV: Tensor,
    allowed_MV: Tensor,
    sampling: Sampling,
    present_MV: Tensor | None,
) -> list[tuple[int, float, float]]:
    """For each row a token, its log-probability, and the sampler's of it (0 for one that is written already)."""
    uniform_M = torch.tensor([course.uniform() for course in courses], dtype=torch.float64, device=logp_MV.device)
    token_M, sampled_M = draw_tokens(logp_MV, allowed_MV, sampling, uniform_M, present_MV)
    for m, (course, slot) in enumerate(zip(courses, slots, strict=True)):
        if slot in course.forced:
            token_M[m], sampled_M[m] = course.forced[slot], 0.0
    logp_M = logp_MV.gather(1, token_M[:, None])[:, 0]
    return list(zip(token_M.tolist(), logp_M.tolist(), sampled_M.tolist(), strict=True))


def present(ids_BL: Tensor, known_BL: Tensor, vocab_size: int) -> Tensor:
    """[B, V] which ids stand on each canvas."""
    present_BV = torch.zeros(len(ids_BL), vocab_size, dtype=torch.long, device=ids_BL.device)
    return present_BV.scatter_add_(1, ids_BL, known_BL.long()) > 0


def slots_due(due: Sequence[Sequence[int]], device: torch.device | None = None) -> Slots:
    """The slots that each row asks for, as one list."""
    rows = [row for row, slots in enumerate(due) for _ in slots]
    return slots_at(rows, [slot for slots in due for slot in slots], device)


def slots_at(rows: Sequence[int], slots: Sequence[int], device: torch.device | None = None) -> Slots:
    return Slots(torch.tensor(rows, device=device), torch.tensor(slots, device=device))
