"""Ranks: who we are, how a model is spread over them, and sums over all of them.

Without torchrun there is one rank and nothing here communicates.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pmlm.errors import RunError
from pmlm.rank_process import is_rank

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def joined_ranks(device: torch.device) -> Iterator[tuple[Ranks, torch.device]]:
    """Within it, part of the group that torchrun describes in the environment, and the device that is this rank's.

    One rank where there is no such group. A process that was in a group ends by `pmlm.rank_process.leave`.
    """
    if not is_rank():
        yield Ranks(), device
        return
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", 0)))
    own = own_device(device, ranks)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    dist.init_process_group(backends(own))
    group = dist.group.WORLD
    try:
        with naming_lost_ranks(ranks):
            yield ranks, own
    finally:
        dist.destroy_process_group()
        _never_free(group)


@contextlib.contextmanager
def naming_lost_ranks(ranks: Ranks) -> Iterator[None]:
    """One line instead of the transport's own words where another rank has gone."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not (isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "Gloo", "NCCL"))):
            raise
        raise RunError(
            f"rank {ranks.rank} lost touch with another rank, which may have ended: {' '.join(text.split())[:300]}. "
            "The same command goes on from the last checkpoint."
        ) from None


def backends(device: torch.device) -> str:
    """Who carries tensors between ranks. Counts and flags stay on the CPU, whatever the device of the model."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def _never_free(group: object) -> None:
    """Let the group's memory go with the process.

    Freeing it joins gloo's threads while Python's lock is held, and such a thread may need that lock to let go of its
    last tensors: the rank would never end. Models in copies hold on to the group until the interpreter leaves.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """Of the GPUs of a machine, each of its ranks takes one."""
    return torch.device("cuda", ranks.local) if str(device) == "cuda" else device


def spread_model(
    model: nn.Module, ranks: Ranks, how: Literal["ddp", "fsdp"], device: torch.device, *, partly_used: bool = False
) -> nn.Module:
    """The model as the training loop calls it; `partly_used`: a step may leave some of its parameters alone."""
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
    return nn.parallel.DistributedDataParallel(model, device_ids=ids, find_unused_parameters=partly_used)


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
    dist.all_reduce(total)
    return total


def most_over_ranks(number: int, ranks: Ranks) -> int:
    if ranks.world == 1:
        return number
    most = torch.tensor(number)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def from_main(make: Callable[[], T], ranks: Ranks) -> T:
    """What the first rank makes, on every rank."""
    if ranks.world == 1:
        return make()
    box = [make() if ranks.is_main else None]
    dist.broadcast_object_list(box)
    return box[0]  # type: ignore[return-value]


def barrier(ranks: Ranks) -> None:
    if ranks.world > 1:
        dist.barrier()


def whole(x: Tensor) -> Tensor:
    """A sharded scalar (such as a gradient norm) as a plain tensor."""
    full: Any = getattr(x, "full_tensor", None)
    return full() if full is not None else x
