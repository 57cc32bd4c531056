"""What is learnt from: examples as rows with targets, one loss per kind of head, and the job that deals them out.

Every step is of one lesson (task). Which one, and which of its examples, follows from the seed and from how many steps
there were before, so a run goes on bit for bit. Rows of like length go together, which spares padding.

Shapes: B rows, L slots, C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmlm.model import HeadSpec, ModelConfig
from pmlm.nlu.framing import PairRow, fingerprint, read_rows
from pmlm.runtime import generator
from pmlm.training.distributed import Ranks
from pmlm.training.job import Task

_SORTED_BATCHES = 16
"""So many batches are sorted by length together."""


@dataclass(frozen=True)
class Lesson:
    spec: HeadSpec
    rows: list[PairRow]
    targets: Tensor
    """[n] numbers of classes, or numbers; [n, 2] slots of spans."""

    def __post_init__(self) -> None:
        assert len(self.rows) == len(self.targets) > 0

    def some(self, num: int | None) -> "Lesson":
        """`num` examples drawn once and for all; all where there are no more."""
        if num is None or num >= len(self.rows):
            return self
        index = torch.randperm(len(self.rows), generator=generator("subset", self.spec.name))[:num]
        return replace(self, rows=[self.rows[i] for i in index.tolist()], targets=self.targets[index])

    def fingerprint(self) -> str:
        """Of rows and targets."""
        return fingerprint((self.spec.kind, [row.ids for row in self.rows], self.targets.tolist()))

    def shuffled(self, seed: int) -> "Lesson":
        """The same targets, dealt out at random."""
        index = torch.randperm(len(self.rows), generator=generator(seed, "shuffled-labels", self.spec.name))
        return replace(self, targets=self.targets[index])


def summed_loss(spec: HeadSpec, said: Tensor, target: Tensor) -> Tensor:
    """Over rows: nats for classes and spans (the mean of both ends), squares on a scale from 0 to 1 for numbers."""
    match spec.kind:
        case "classes":
            return F.cross_entropy(said, target.long(), reduction="sum")
        case "number":
            return (said[:, 0] - (target - spec.low) / (spec.high - spec.low)).square().sum()
        case "span":
            ends = [F.cross_entropy(said[:, :, i], target[:, i].long(), reduction="sum") for i in (0, 1)]
            return (ends[0] + ends[1]) / 2


@dataclass(frozen=True)
class LessonTask:
    """Some rows of a lesson: a task of the trainer."""

    member: int
    spec: HeadSpec
    rows: list[PairRow]
    target_B: Tensor
    pad_id: int
    config: ModelConfig
    device: torch.device
    weight: float = 1.0
    """0: computed to keep step with the other ranks, and not counted."""

    @property
    def count(self) -> Tensor:
        return torch.tensor(self.weight * len(self.rows))

    def total(self, model: nn.Module) -> Tensor:
        reading = read_rows(self.rows, self.pad_id, self.config, self.device)
        said = model(reading.inputs, reading.is_token_BL, self.spec.name).float()
        return self.weight * summed_loss(self.spec, said, self.target_B.to(self.device))


class Finetuning:
    """A job of one lesson, or of several drawn by size."""

    def __init__(
        self,
        lessons: Sequence[Lesson],
        config: ModelConfig,
        *,
        pad_id: int,
        seed: int,
        batch_rows: int,
        micro_rows: int | None,
        sampling: float,
        device: torch.device,
    ) -> None:
        self.lessons, self.config, self.pad_id, self.device = lessons, config, pad_id, device
        self.seed, self.batch_rows, self.micro_rows = seed, batch_rows, micro_rows
        self.chance = torch.tensor([len(lesson.rows) ** sampling for lesson in lessons], dtype=torch.float64)
        self.taken = [0] * len(lessons)
        self.tokens_seen = 0
        self._dealt: dict[int, tuple[int, list[list[int]]]] = {}

    @property
    def steps_per_epoch(self) -> int:
        """As many as it takes to see each example of each lesson once."""
        return sum(self._num_batches(member) for member in range(len(self.lessons)))

    def member(self, step: int) -> int:
        if len(self.lessons) == 1:
            return 0
        return int(torch.multinomial(self.chance, 1, generator=generator(self.seed, "task", step)))

    def shares(self, step: int) -> list[float]:
        return [float(i == self.member(step)) for i in range(len(self.lessons))]

    def tasks(self, step: int, ranks: Ranks) -> list[Task]:
        member = self.member(step)
        lesson, index = self.lessons[member], self._next(member)
        self.tokens_seen += sum(len(lesson.rows[i]) for i in index)
        mine = torch.tensor(index).tensor_split(ranks.world)[ranks.rank].tolist()
        weight, mine = (1.0, mine) if mine else (0.0, index[:1])  # an epoch's last rows may be fewer than the ranks
        size = self.micro_rows or len(mine)
        return [
            LessonTask(
                member,
                lesson.spec,
                [lesson.rows[i] for i in part],
                lesson.targets[part],
                self.pad_id,
                self.config,
                self.device,
                weight,
            )
            for part in (mine[at : at + size] for at in range(0, len(mine), size))
        ]

    def tokens(self) -> int:
        return self.tokens_seen

    def state_dict(self) -> dict[str, Any]:
        return {"taken": list(self.taken), "tokens": self.tokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken, self.tokens_seen = list(state["taken"]), state["tokens"]

    def _num_batches(self, member: int) -> int:
        return math.ceil(len(self.lessons[member].rows) / self.batch_rows)

    def _next(self, member: int) -> list[int]:
        epoch, at = divmod(self.taken[member], self._num_batches(member))
        self.taken[member] += 1
        if self._dealt.get(member, (None, None))[0] != epoch:
            self._dealt[member] = (epoch, self._deal(member, epoch))
        return self._dealt[member][1][at]

    def _deal(self, member: int, epoch: int) -> list[list[int]]:
        """An epoch's batches: every example once."""
        lesson, size = self.lessons[member], self.batch_rows
        rng = generator(self.seed, "examples", lesson.spec.name, epoch)
        order = torch.randperm(len(lesson.rows), generator=rng).tolist()
        for at in range(0, len(order), size * _SORTED_BATCHES):
            part = slice(at, at + size * _SORTED_BATCHES)
            order[part] = sorted(order[part], key=lambda i: len(lesson.rows[i]))
        batches = [order[at : at + size] for at in range(0, len(order), size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=rng).tolist()]
