"""Where computation runs and where randomness comes from.

Named random streams come from one seed. Draws for training rows are functions of (seed, step, global row), never of
how the rows are split over micro-batches or ranks.
"""

import ctypes
import hashlib
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from pmlm.errors import ConfigError


def stream_seed(*names: object) -> int:
    """A 63-bit seed from any printable names: the same on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*names: object) -> torch.Generator:
    """A CPU generator for the named stream."""
    return torch.Generator().manual_seed(stream_seed(*names))


def draw_seed() -> int:
    """A seed for a user who gave none; small enough to type again."""
    return secrets.randbelow(2**31)


def pick_device(name: str = "auto") -> torch.device:
    """`auto` takes a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it computes nothing")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return device


@dataclass(frozen=True)
class RowRandom:
    """Random numbers for some rows of a global batch of `total` rows.

    `rows_B` holds the global row numbers; whoever holds a row draws the same numbers for it. The widths asked for
    must therefore not depend on the split.
    """

    seed: int
    step: int
    rows_B: Tensor
    total: int

    @staticmethod
    def whole(seed: int, step: int, total: int) -> "RowRandom":
        """The whole global batch in one piece."""
        return RowRandom(seed, step, torch.arange(total), total)

    def uniform(self, stream: str, width: int) -> Tensor:
        """[B, width] numbers in [0, 1), float64."""
        rng = generator(self.seed, self.step, stream)
        return torch.rand(self.total, width, generator=rng, dtype=torch.float64)[self.rows_B]

    def stratified(self, stream: str, width: int) -> Tensor:
        """[B, width] numbers in [0, 1); each column has exactly one in each of `total` equal strata."""
        rng = generator(self.seed, self.step, stream)
        jitter = torch.rand(self.total, width, generator=rng, dtype=torch.float64)
        stratum = torch.stack([torch.randperm(self.total, generator=rng) for _ in range(width)], dim=1)
        return ((stratum + jitter) / self.total)[self.rows_B]

    def gamma(self, stream: str, width: int, shape: float) -> Tensor:
        """[B, width] draws of a Gamma(shape, 1) variable, float64."""
        rng = generator(self.seed, self.step, stream)
        alpha = torch.full((self.total, width), shape, dtype=torch.float64)
        return torch._standard_gamma(alpha, generator=rng)[self.rows_B]

    def part(self, name: str, rows_B: Tensor, total: int) -> "RowRandom":
        """The numbers of one named part of the batch, whose rows are numbered anew from 0 to total - 1."""
        return RowRandom(stream_seed(self.seed, name), self.step, rows_B, total)


def matmul_peak(device: torch.device | None = None, size: int = 2048, repeats: int = 3) -> float:
    """The best rate of a large fp32 product, in FLOP/s: what training speed is measured against."""
    a, b = (torch.rand(size, size, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        torch.mm(a, b)
        if a.is_cuda:
            torch.cuda.synchronize(a.device)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best


_PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.{name}); print(float((a @ a).sum()))"


def can_multiply(name: str) -> bool:
    """Whether the CPU can multiply matrices of a 16-bit type. Some die trying, so a child process tries."""
    command = [sys.executable, "-c", _PROBE.format(name=name)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def training_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The type to compute in beside float32; None: float32 alone."""
    if precision == "fp32" or (precision == "auto" and device.type != "cuda"):
        return None
    if precision == "auto":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    dtype, name = (torch.bfloat16, "bfloat16") if precision == "bf16" else (torch.float16, "float16")
    if device.type == "cpu" and not can_multiply(name):
        raise ConfigError(f"precision {precision!r} cannot be used: this CPU fails on {name} matrices. Use fp32.")
    return dtype


def tune_allocator(*, keep: bool = True) -> bool:
    """Let glibc keep freed memory instead of giving it back to the system after each large tensor.

    A training step frees and asks again for the same hundreds of megabytes; getting them back from the system costs a
    page fault for every 4 KiB. `keep=False` goes back to glibc's own ways. True where it could be done (Linux, glibc).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    values = (
        {mmap_max: 0, trim_threshold: -1, top_pad: 1 << 28}
        if keep
        else {mmap_max: 65536, trim_threshold: 1 << 17, top_pad: 1 << 17}
    )
    done = [mallopt(name, value) for name, value in values.items()]
    return all(done)
