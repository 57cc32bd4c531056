"""Ranks: who we are, how a model is spread over them, and sums over all of them.

Without torchrun there is one rank and nothing here communicates.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pmlm.errors import RunError


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def start_ranks(device: torch.device) -> Ranks:
    """Join the group that torchrun describes in the environment; one rank where there is none."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return Ranks()
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", 0)))
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return ranks


def stop_ranks() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def spread_model(model: nn.Module, ranks: Ranks, how: Literal["ddp", "fsdp"], device: torch.device) -> nn.Module:
    """The model as the training loop calls it."""
    if how == "fsdp" and dist.is_initialized():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (ranks.world,))
        for layer in model.backbone.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    if ranks.world == 1:
        return model
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids)


@contextlib.contextmanager
def gradient_sync(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Within it, backward passes exchange gradients only where wanted."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with contextlib.nullcontext() if wanted else model.no_sync():
            yield
        return
    set_sync = getattr(model, "set_requires_gradient_sync", None)
    if set_sync is not None:
        set_sync(wanted)
    yield


def shared_work(work: Callable[[Tensor], Tensor], stack: Tensor) -> Tensor:
    """`work` on a stack whose members it treats one by one, each rank doing a part of what all of them need."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    share = -(-len(stack) // world)
    if world == 1 or len(stack) < world:
        return work(stack)
    mine = stack[dist.get_rank() * share :][:share]
    done = stack.new_zeros(share, *stack.shape[1:])
    if len(mine):
        done[: len(mine)] = work(mine)
    parts = [torch.empty_like(done) for _ in range(world)]
    dist.all_gather(parts, done)
    return torch.cat(parts)[: len(stack)]


def sum_over_ranks(x: Tensor, ranks: Ranks) -> Tensor:
    if ranks.world == 1:
        return x
    total = x.clone()
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        raise RunError(f"rank {ranks.rank} lost touch with another rank: {str(error).splitlines()[0]}") from None
    return total


def most_over_ranks(number: int, ranks: Ranks) -> int:
    if ranks.world == 1:
        return number
    most = torch.tensor(number)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def barrier(ranks: Ranks) -> None:
    if ranks.world > 1:
        dist.barrier()


def whole(x: Tensor) -> Tensor:
    """A sharded scalar (such as a gradient norm) as a plain tensor."""
    full: Any = getattr(x, "full_tensor", None)
    return full() if full is not None else x
