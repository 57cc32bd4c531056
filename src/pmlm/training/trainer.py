"""The training loop. It yields a report after each step; when to log, evaluate and save is the caller's business.

What dropout draws follows from (seed, step, rank), so no generator's state has to be saved.

A step: take the tasks, sum their counts over ranks, run them, clip, check, update. Nothing is updated unless the loss
and the gradient are finite.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pmlm.errors import TrainingDiverged
from pmlm.runtime import stream_seed
from pmlm.training.ahead import Ahead
from pmlm.training.distributed import Ranks, gradient_sync, most_over_ranks, sum_over_ranks, whole
from pmlm.training.job import Job, Task
from pmlm.training.optim import OptimSettings, build_optimizer, lr_scale, set_lr

MOST_SKIPPED = 25
"""The scale halves with each skipped update: after so many in a row it is not the scale."""


@dataclass(frozen=True)
class StepReport:
    step: int
    """Steps done."""
    loss: float
    """Nats per token, members added by share."""
    member_losses: tuple[float | None, ...]
    grad_norm: float
    lr: float
    tokens: int
    """Content tokens seen since the beginning."""
    seconds: float


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        job: Job,
        settings: OptimSettings,
        *,
        num_steps: int,
        seed: int = 0,
        layer_decay: float = 1.0,
        ranks: Ranks | None = None,
        autocast: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model, self.settings, self.num_steps = model, settings, num_steps
        self.seed = seed
        self.ranks = ranks or Ranks()
        self.device = device or torch.device("cpu")
        self.job: Job = job if self.device.type == "cpu" else Ahead(job)  # a CPU has its hands full
        self.autocast = autocast
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=autocast == torch.float16)
        self.core: nn.Module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self.optimizer = build_optimizer(self.core, settings, layer_decay)
        self.average = Average(self.core, settings.ema) if settings.ema else None
        self.step = 0
        self.skipped = 0
        """Updates in a row that 16-bit gradients were too large for."""

    def run(self) -> Iterator[StepReport]:
        self.model.train()
        while self.step < self.num_steps:
            begin = time.perf_counter()
            torch.manual_seed(stream_seed(self.seed, "dropout", self.step, self.ranks.rank))
            tasks = self.job.tasks(self.step, self.ranks)
            counts = self._counts(tasks)
            losses = self._backward(tasks, counts)
            norm = self._clip()
            self._check(losses, counts, norm)
            set_lr(self.optimizer, scale := lr_scale(self.settings, self.step, self.num_steps))
            self._update()
            self.step += 1
            yield self._report(losses, counts, norm, scale, time.perf_counter() - begin)

    def _counts(self, tasks: list[Task]) -> Tensor:
        """Per member, over all micro-batches and ranks."""
        counts = torch.zeros(len(self.job.shares(self.step)), dtype=torch.float64)
        for task in tasks:
            counts[task.member] += task.count
        return sum_over_ranks(counts.to(self.device), self.ranks).cpu()

    def _backward(self, tasks: list[Task], counts: Tensor) -> Tensor:
        """Accumulate the gradient of the share-weighted mean losses; returns each member's mean loss."""
        shares = self.job.shares(self.step)
        totals = torch.zeros(len(shares), dtype=torch.float64)
        passes = most_over_ranks(len(tasks), self.ranks)  # shards are gathered by all ranks together, or by none
        for i in range(passes):
            task, is_real = tasks[min(i, len(tasks) - 1)], i < len(tasks)
            with gradient_sync(self.model, wanted=i == passes - 1):
                with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                    total = task.total(self.model)
                weight = is_real * shares[task.member] / max(counts[task.member].item(), 1.0)
                self.scaler.scale(total * (weight * self.ranks.world)).backward()
            totals[task.member] += is_real * total.detach().double().cpu()
        totals = sum_over_ranks(totals.to(self.device), self.ranks).cpu()
        return torch.where(counts > 0, totals / counts, torch.nan)

    def _clip(self) -> Tensor:
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.max_norm or float("inf")
        return whole(nn.utils.clip_grad_norm_(self.core.parameters(), limit))

    def _check(self, losses: Tensor, counts: Tensor, norm: Tensor) -> None:
        present = losses[counts > 0]
        is_sound = bool(present.isfinite().all())
        self.skipped = self.skipped + 1 if self.scaler.is_enabled() and not norm.isfinite() else 0
        if is_sound and 0 < self.skipped < MOST_SKIPPED:
            return  # the scaler skips this update and lowers its scale
        if not (is_sound and norm.isfinite()):
            raise TrainingDiverged(
                f"step {self.step}: the loss is {present.mean().item():.4g} and the gradient norm {norm.item():.4g}. "
                "Nothing was updated. Lower the learning rate, or resume from an earlier checkpoint."
            )

    def _update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.core)

    def _report(self, losses: Tensor, counts: Tensor, norm: Tensor, scale: float, seconds: float) -> StepReport:
        shares = torch.tensor(self.job.shares(self.step - 1), dtype=torch.float64)
        return StepReport(
            step=self.step,
            loss=float((losses * shares)[counts > 0].sum()),
            member_losses=tuple(
                x if count > 0 else None for x, count in zip(losses.tolist(), counts.tolist(), strict=True)
            ),
            grad_norm=norm.item(),
            lr=self.settings.lr * scale,
            tokens=self.job.tokens(),
            seconds=seconds,
        )

    def loop_state(self) -> dict[str, Any]:
        """Everything but weights and optimizer: small, and the same on every rank."""
        return {
            "step": self.step,
            "job": self.job.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_loop_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.job.load_state_dict(state["job"])
        if state["scaler"]:  # empty where the run had no use for one before
            self.scaler.load_state_dict(state["scaler"])


class Average:
    """An exponential moving average of the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.weights[name].lerp_(p, 1 - self.decay)
