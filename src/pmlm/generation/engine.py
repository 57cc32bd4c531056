"""Canvases that come and go while they share forward passes: decoding for a server.

`pmlm.generation.decode` fills a batch from beginning to end. Here a canvas may join or leave between any two turns,
whatever its template, order, seed, sampling or constraints; what it becomes does not depend on who else is there.
Those of one visibility, and among them those whose order the model chooses, form a pool. In a pool the first places
are taken; who leaves makes room for the last. Order-causal pools keep their keys and values, the others recompute.
Canvases that take a shortcut (pmlm.generation.speed) have passes of their own; one on which nothing is hidden has none,
and leaves at its first turn.

Ids in, ids out; no threads and no clocks here.

Shapes: P places, B rows of a pass, L slots, M predictions, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pmlm.batch import Batch, make_batch
from pmlm.corpus.framing import Row
from pmlm.errors import ConstraintError, PmlmError
from pmlm.generation.decode import Allowed, Course, Reveal, draw_rows, present, slots_due
from pmlm.generation.sampling import Sampling
from pmlm.generation.speed import Speed, fill_batch
from pmlm.generation.steppers import MOST_NUMBERS, OrderCached, Recompute, State
from pmlm.model import LanguageModel, Slots, Visibility
from pmlm.orders import Order
from pmlm.visibility import is_ordered


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One canvas to be filled, and how."""

    row: Row
    """Its maskable slots are the hidden ones."""
    allowed: Allowed
    """Of this one row."""
    order: Order
    """A list names slots."""
    sampling: Sampling
    visibility: Visibility
    rng: torch.Generator
    speed: Speed = field(default_factory=Speed)
    written: Sequence[tuple[int, int]] = ()
    """Slots and tokens that come first."""


@dataclass(eq=False)
class Line:
    """A job on its way."""

    job: Job
    num_done: int = field(default=0, init=False)


@dataclass(eq=False)
class Seat(Line):
    """One that shares passes with others."""

    course: Course
    place: int


@dataclass(eq=False)
class Solo(Line):
    """One that takes a shortcut, and passes of its own; or needs none."""

    turns: Iterator[list[Reveal]]


@dataclass(frozen=True)
class Event:
    """What happened to a line at a turn: a token, or an error; `is_last` where it has left.

    Neither of the two, where there was nothing to write.
    """

    line: Line
    reveal: Reveal | None
    error: PmlmError | None
    is_last: bool


class Cornered(ConstraintError):
    """Constraints that are each possible have together left nothing for a slot: another draw may find a way."""


class Engine:
    """Pools of canvases over one model."""

    def __init__(self, model: LanguageModel, *, places: int = 32) -> None:
        self.model, self.places = model, places
        self.pools: dict[tuple[Visibility, bool], Pool] = {}
        self.solos = Solos(model, places)

    def pool(self, job: Job) -> "Pool | Solos":
        """Where a canvas is filled."""
        if job.speed != Speed() or not job.row.num_tokens:
            return self.solos
        key = (job.visibility, job.order.is_policy)
        if key not in self.pools:
            self.pools[key] = Pool(self.model, job.visibility, self.places)
        return self.pools[key]

    def has_room(self, job: Job) -> bool:
        return self.pool(job).has_room(job)

    def join(self, job: Job) -> Line:
        return self.pool(job).join(job)

    def leave(self, line: Line) -> None:
        """Before its end; nothing happens where it has left already."""
        self.pool(line.job).leave(line)

    @property
    def num_lines(self) -> int:
        return sum(pool.num for pool in self.pools.values()) + self.solos.num

    def turn(self) -> Iterator[Event]:
        """One token of every canvas; pool by pool, so that nobody waits for the others' news."""
        for pool in self.pools.values():
            yield from pool.turn()
        yield from self.solos.turn()


class Solos:
    """Canvases that are filled in a way of their own, each for itself; and those that are full already."""

    def __init__(self, model: LanguageModel, places: int) -> None:
        self.model, self.places = model, places
        self.lines: list[Solo] = []

    @property
    def num(self) -> int:
        return len(self.lines)

    def has_room(self, job: Job) -> bool:
        """A crowd takes a place for each of its particles, or all there are."""
        return sum(self._places(each) for each in (*(line.job for line in self.lines), job)) <= self.places

    def _places(self, job: Job) -> int:
        return min(job.speed.particles or 1, self.places)

    def join(self, job: Job) -> Line:
        assert self.has_room(job), "ask has_room first"
        alone = make_batch([job.row.ids], [job.row.maskable], pad_id=0).to(self.model.device)
        one = ([job.order], job.sampling, [job.rng], [job.written])
        line = Solo(job, fill_batch(self.model, alone, job.allowed, *one, job.visibility, job.speed))
        self.lines.append(line)
        return line

    def leave(self, line: Line) -> None:
        self.lines = [other for other in self.lines if other is not line]

    def turn(self) -> Iterator[Event]:
        """What one turn of each canvas wrote."""
        for line in list(self.lines):
            try:
                reveals = next(line.turns, None)
                if reveals is None and line.job.row.num_tokens:
                    raise Cornered("no way is left to fill the rest under the constraints given")
                events = [self._event(line, reveal) for reveal in reveals or []]
                if not line.job.row.num_tokens:
                    events = [Event(line, None, None, is_last=True)]
            except PmlmError as error:
                events = [Event(line, None, error, is_last=True)]
            for event in events:
                if event.is_last:
                    self.leave(line)
                yield event

    @staticmethod
    def _event(line: Solo, reveal: Reveal) -> Event:
        line.num_done += 1
        return Event(line, reveal, None, is_last=line.num_done == line.job.row.num_tokens)


class Pool:
    """Canvases of one visibility, at places 0, 1, … of tensors made once."""

    def __init__(self, model: LanguageModel, visibility: Visibility, places: int) -> None:
        self.model, self.places = model, places
        empty = make_batch([[]] * places, [[]] * places, pad_id=0, length=model.config.max_length).to(model.device)
        self.ids_PL, self.hidden_PL, self.group_PL = empty.ids_BL, empty.maskable_BL, empty.group_BL
        self.rank_PL = torch.zeros_like(self.ids_PL)
        self.lines: list[Seat] = []
        self.cached = OrderCached(model, empty, visibility) if is_ordered(visibility) else None
        if self.cached is not None:
            model.pack(2, 1)
        self.plain = Recompute(model, visibility)

    @property
    def num(self) -> int:
        return len(self.lines)

    def has_room(self, _job: Job) -> bool:
        return self.num < self.places

    def join(self, job: Job) -> Line:
        assert self.has_room(job), "ask has_room first"
        place, size = self.num, len(job.row.ids)
        alone = make_batch([job.row.ids], [job.row.maskable], pad_id=0)
        line = Seat(job, Course(job.order, alone, job.rng, job.written), place)
        for tensor_PL, values_L, rest in (
            (self.ids_PL, alone.ids_BL[0], 0),
            (self.hidden_PL, alone.maskable_BL[0], False),
            (self.group_PL, alone.group_BL[0], -1),
        ):
            tensor_PL[place] = rest
            tensor_PL[place, :size] = values_L.to(tensor_PL.device)
        self.rank_PL[place] = 0
        if self.cached is not None:
            self.cached.forget(place)
        self.lines.append(line)
        return line

    def leave(self, line: Line) -> None:
        if not isinstance(line, Seat) or line not in self.lines:
            return
        last, place = self.lines.pop(), line.place
        if last is line:
            return
        for tensor_PL in (self.ids_PL, self.hidden_PL, self.group_PL, self.rank_PL):
            tensor_PL[place] = tensor_PL[last.place]
        if self.cached is not None:
            self.cached.move(last.place, place)
        last.place, self.lines[place] = place, last

    @torch.no_grad()
    def turn(self) -> list[Event]:
        """One token of each canvas; those that are full, or cannot go on, leave."""
        events = [event for first, due in list(self._passes()) for event in self._pass(first, due)]
        for event in events:
            if event.is_last:
                self.leave(event.line)
        return events

    def _passes(self) -> Iterator[tuple[int, list[list[int]]]]:
        """(the first place, the slots due at each place): neighbours, as many as one pass should hold.

        With a cache, those that just joined go apart: their pass is as wide as their text.
        """
        most = max(1, MOST_NUMBERS // self.model.config.vocab_size)
        first, due, is_new = 0, list[list[int]](), False
        for line in self.lines:
            mine = line.course.due()
            joined = self.cached is not None and line.num_done == 0
            if due and (joined != is_new or sum(map(len, due)) + len(mine) > most):
                yield first, due
                first, due = line.place, []
            is_new = joined
            due.append(mine)
        if due:
            yield first, due

    def _pass(self, first: int, due: list[list[int]]) -> list[Event]:
        lines = self.lines[first : first + len(due)]
        at = slots_due(due)
        at = Slots(at.rows_M.to(self.model.device), at.slots_M.to(self.model.device))
        state = self._state(first, lines)
        stepper = self.cached
        logp_MV = self.plain.logp(state, at) if stepper is None else stepper.logp(state, at, first)
        picks = [
            line.course.choose(mine_HV)[0]
            for line, mine_HV in zip(lines, logp_MV.split([len(slots) for slots in due]), strict=True)
        ]
        starts = torch.tensor([0, *(len(slots) for slots in due)]).cumsum(0)[:-1]
        logp_BV = logp_MV[(starts + torch.tensor(picks)).to(logp_MV.device)]
        slots = [slots[pick] for slots, pick in zip(due, picks, strict=True)]
        return self._draw(lines, slots, logp_BV, state)

    def _state(self, first: int, lines: Sequence[Seat]) -> State:
        rows, length = slice(first, first + len(lines)), max(len(line.job.row.ids) for line in lines)
        hidden_BL = self.hidden_PL[rows, :length]
        batch = Batch(self.ids_PL[rows, :length], hidden_BL, self.group_PL[rows, :length])
        return State(batch, hidden_BL, self.rank_PL[rows, :length])

    def _draw(self, lines: Sequence[Seat], slots: list[int], logp_BV: Tensor, state: State) -> list[Event]:
        """A token for each line, at its slot; lines that sample alike are drawn together."""
        allowed: dict[int, Tensor] = {}
        errors: dict[int, PmlmError] = {}
        for b, (line, slot) in enumerate(zip(lines, slots, strict=True)):
            try:
                allowed[b] = _some(line.job.allowed.at(_one(slot))[0], slot).to(logp_BV.device)
                line.course.check(slot, allowed[b])
            except PmlmError as error:
                errors[b] = error
                allowed.pop(b, None)
        alike: dict[Sampling, list[int]] = {}
        for b in allowed:
            alike.setdefault(lines[b].job.sampling, []).append(b)
        reveals: dict[int, Reveal] = {}
        for sampling, rows in alike.items():
            logp, flags = logp_BV[rows], torch.stack([allowed[b] for b in rows])
            present_BV = None
            if sampling.repetition_penalty != 1:
                known_BL = ~state.hidden_BL & (state.batch.group_BL >= 0)
                present_BV = present(state.batch.ids_BL[rows], known_BL[rows], logp.shape[1])
            courses = [lines[b].course for b in rows]
            drawn = draw_rows(courses, [slots[b] for b in rows], logp, flags, sampling, present_BV)
            for b, each in zip(rows, drawn, strict=True):
                reveals[b] = Reveal(0, slots[b], *each, lines[b].num_done + 1)
        return [self._event(line, reveals.get(b), errors.get(b)) for b, line in enumerate(lines)]

    def _event(self, line: Seat, reveal: Reveal | None, error: PmlmError | None) -> Event:
        if reveal is None:
            return Event(line, None, error, is_last=True)
        place, slot = line.place, reveal.slot
        line.num_done += 1
        line.course.reveal(slot)
        self.ids_PL[place, slot], self.hidden_PL[place, slot] = reveal.token, False
        self.rank_PL[place, slot] = line.num_done
        line.job.allowed.reveal(reveal)
        return Event(line, reveal, None, is_last=not line.course.left)


def _some(allowed_V: Tensor, slot: int) -> Tensor:
    if not allowed_V.any():
        raise Cornered(f"no piece may stand at position {slot - 1} under the constraints given")
    return allowed_V


def _one(slot: int) -> Slots:
    """A slot of a row that is alone."""
    return Slots(torch.tensor([0]), torch.tensor([slot]))
