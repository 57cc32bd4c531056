"""What is trained: a job hands the trainer, for each step, tasks with their counts. Pretraining is one such job.

A task knows its count before the model is called. So the trainer can sum the counts over micro-batches and ranks first
and give every task its exact weight: how a batch is split cannot change the result.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pmlm.corpus.rows import RowStream
from pmlm.model import ModelConfig
from pmlm.objectives import Mixture, Prepared, member_weights, prepare_mixture, weighted_nll
from pmlm.runtime import RowRandom, stream_seed
from pmlm.training.distributed import Ranks


class Task(Protocol):
    @property
    def member(self) -> int:
        """Which member of the job's mixture it belongs to."""
        ...

    @property
    def count(self) -> Tensor: ...

    def total(self, model: nn.Module) -> Tensor:
        """The summed loss, differentiable."""
        ...


class Job(Protocol):
    def tasks(self, step: int, ranks: Ranks) -> list[Task]:
        """This rank's tasks of a step; at least one, the same members on every rank not required."""
        ...

    def shares(self, step: int) -> list[float]:
        """What each member counts in this step, where it has tasks."""
        ...

    def tokens(self) -> int:
        """Content tokens seen so far, over all ranks."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class PredictionTask:
    member: int
    prepared: Prepared
    device: torch.device

    @property
    def count(self) -> Tensor:
        return self.prepared.count

    def total(self, model: nn.Module) -> Tensor:
        return weighted_nll(model, move(self.prepared, self.device))


def move(prepared: Prepared, device: torch.device) -> Prepared:
    if device.type == "cpu":
        return prepared
    from dataclasses import fields, replace

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, non_blocking=True)
        if hasattr(value, "__dataclass_fields__"):
            return replace(value, **{f.name: moved(getattr(value, f.name)) for f in fields(value)})
        return value

    result: Prepared = moved(prepared)
    return result


class Pretraining:
    """Rows from a stream, prepared by a mixture of objectives."""

    def __init__(
        self,
        stream: RowStream,
        mixture: Mixture,
        config: ModelConfig,
        *,
        seed: int,
        batch_rows: int,
        micro_rows: int | None,
        num_steps: int,
        device: torch.device,
    ) -> None:
        self.stream, self.mixture, self.config, self.device = stream, mixture, config, device
        self.seed, self.batch_rows, self.micro_rows = stream_seed(seed, "masking"), batch_rows, micro_rows
        self.num_steps = num_steps
        self.tokens_seen = 0

    def progress(self, step: int) -> float:
        return min(1.0, step / max(1, self.num_steps - 1))

    def shares(self, step: int) -> list[float]:
        return member_weights(self.mixture.shares(self.progress(step)), self.batch_rows)

    def tasks(self, step: int, ranks: Ranks) -> list[Task]:
        refs = self.stream.take(self.batch_rows)
        self.tokens_seen += sum(piece.stop - piece.start for row in refs for piece in row)
        mine = torch.arange(self.batch_rows).tensor_split(ranks.world)[ranks.rank]
        tasks: list[Task] = []
        for part in mine.split(self.micro_rows or len(mine)):
            batch = self.stream.build([refs[i] for i in part.tolist()])
            random = RowRandom(self.seed, step, part, self.batch_rows)
            prepared = prepare_mixture(batch, self.mixture, self.progress(step), random, self.config)
            tasks += [PredictionTask(m, p, self.device) for m, p in enumerate(prepared) if p is not None]
        return tasks

    def tokens(self) -> int:
        return self.tokens_seen

    def state_dict(self) -> dict[str, Any]:
        return {"stream": self.stream.state_dict(), "tokens": self.tokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state["stream"])
        self.tokens_seen = state["tokens"]
