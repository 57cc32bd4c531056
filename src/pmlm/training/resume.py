"""The state of a run on disk: saved atomically, the last few and the best kept, read back bit for bit.

A checkpoint is a folder `step-00001000` with the tensors and `loop.json` (step, data position, settings). It gets its
name only when it is complete, so whatever has the name can be used. One rank, or copies on several, write one
safetensors file; a model in shards is written by torch.distributed.checkpoint, each rank its part, and can be read by
any number of ranks. Nothing but the latter's own index is ever unpickled. loop.json has the checksums of the other
files: a run does not go on from damaged ones.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.distributed.tensor import DTensor, distribute_tensor

from pmlm.errors import CheckpointError, RunError
from pmlm.keeping import file_sha256
from pmlm.training.distributed import barrier, from_main
from pmlm.training.trainer import Trainer

LOOP, TENSORS = "loop.json", "state.safetensors"
_PREFIX = "step-"


def step_folders(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / LOOP).is_file())


def save_state(folder: Path, trainer: Trainer, facts: dict[str, Any]) -> Path:
    """Write a checkpoint of the current step; every rank calls this."""
    target = folder / f"{_PREFIX}{trainer.step:08}"
    part = folder / f".{target.name}.part"
    ranks = trainer.ranks
    try:
        if ranks.is_main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        barrier(ranks)
        tensors = dict(state_tensors(trainer))
        if _is_sharded(tensors):
            save_sharded(tensors, checkpoint_id=part)
        elif ranks.is_main:
            save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, part / TENSORS)
        if ranks.is_main:
            document = {
                "facts": facts,
                "loop": trainer.loop_state(),
                "sha256": {p.name: file_sha256(p) for p in sorted(part.iterdir())},
            }
            (part / LOOP).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            _commit(part, target)
        barrier(ranks)
    except (OSError, SafetensorError, CheckpointException) as error:
        shutil.rmtree(part, ignore_errors=True)
        reason = getattr(error, "strerror", None) or _line(error)
        raise RunError(f"cannot write {target}: {reason}. The checkpoints before it are intact.") from None
    return target


def _line(error: BaseException) -> str:
    """What went wrong, in one line; of several ranks, the first one's."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _damage(target: Path, expected: dict[str, str]) -> str | None:
    """The name of a file that is not as it was written, or cannot be read."""
    for name, value in expected.items():
        try:
            if file_sha256(target / name) != value:
                return name
        except OSError:
            return name
    return None


def _commit(part: Path, target: Path) -> None:
    for path in part.rglob("*"):
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def keep_latest(folder: Path, keep: int, best: str | None) -> None:
    """Remove older checkpoints but for the best; half-written ones of killed runs too."""
    for path in step_folders(folder)[:-keep]:
        if path.name != best:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f".{_PREFIX}*.part"):
        shutil.rmtree(path, ignore_errors=True)


def load_state(target: Path, trainer: Trainer) -> dict[str, Any]:
    """Put a checkpoint back into a freshly built trainer; returns the facts saved with it. Every rank calls this."""
    try:
        document = json.loads((target / LOOP).read_text(encoding="utf-8"))
        loop, facts = document["loop"], dict(document["facts"])
        expected = dict(document.get("sha256", {}))  # older checkpoints have none
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{target} is no checkpoint of a run: {error!r}") from None
    damaged = from_main(lambda: _damage(target, expected), trainer.ranks)
    if damaged is not None:
        raise CheckpointError(
            f"{target / damaged} is damaged: its checksum is not the one in {LOOP}. "
            f"Remove {target.name} to go on from the checkpoint before it, or to begin anew."
        )
    if (target / TENSORS).is_file():
        _load_safetensors(target / TENSORS, trainer)
    else:
        _make_optimizer_state(trainer)
        _load_sharded(target, dict(state_tensors(trainer)))
    trainer.load_loop_state(loop)
    return facts


def state_tensors(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    """Weights, optimizer state and average by name."""
    names = {id(p): name for name, p in trainer.core.named_parameters()}
    for name, p in trainer.core.named_parameters():
        yield f"model.{name}", p.data
    for parameter, state in trainer.optimizer.state.items():
        for key, value in state.items():
            yield f"optim.{names[id(parameter)]}.{key}", value
    if trainer.average is not None:
        for name, value in trainer.average.weights.items():
            yield f"average.{name}", value


def _is_sharded(tensors: dict[str, Tensor]) -> bool:
    return any(isinstance(t, DTensor) for t in tensors.values())


def _make_optimizer_state(trainer: Trainer, names: set[str] | None = None) -> None:
    """An update with zero gradients and zero learning rate: it changes nothing but makes the state's tensors.

    `names` are the tensors of a checkpoint: a parameter that was never updated has no state in it, and gets none.
    """
    for name, p in trainer.core.named_parameters():
        if p.requires_grad and (names is None or any(key.startswith(f"optim.{name}.") for key in names)):
            p.grad = torch.zeros_like(p)
    for group in trainer.optimizer.param_groups:
        group["lr"] = 0.0
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def _load_safetensors(path: Path, trainer: Trainer) -> None:
    try:
        with safe_open(path, framework="pt") as saved:
            found = set(saved.keys())
            _make_optimizer_state(trainer, found)
            tensors = dict(state_tensors(trainer))
            wanted = set(tensors)
            if found != wanted:
                odd = sorted(found ^ wanted)
                raise CheckpointError(f"{path} does not fit these settings: {odd[0]} (and {len(odd) - 1} more) differ")
            for name, target in tensors.items():
                value = saved.get_tensor(name)
                if value.shape != target.shape:
                    raise CheckpointError(f"{path}: {name} has shape {tuple(value.shape)}, not {tuple(target.shape)}")
                if isinstance(target, DTensor):
                    value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
                target.copy_(value)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _load_sharded(target: Path, tensors: dict[str, Tensor]) -> None:
    try:
        load_sharded(tensors, checkpoint_id=target, no_dist=not dist.is_initialized())
    except (Exception, CheckpointException) as error:  # many kinds, all of which mean that the folder cannot be used
        raise CheckpointError(f"{target} cannot be read: {_line(error)}") from None
