"""Optimizers and the learning-rate schedule, a pure function of the step.

AdamW is torch's. LAMB (You et al. 2020) is the paper's choice for large batches; it is written out of place so that it
runs on sharded parameters. Muon orthogonalises the momentum of the layers' matrices, here in float32 throughout, and
leaves everything else to AdamW. Biases and norms are neither decayed nor rescaled.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pmlm.errors import ConfigError
from pmlm.training.distributed import shared_work

STACKED = 3
"""Queries, keys and values are three maps in one matrix."""


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    kind: Literal["adamw", "lamb", "muon"] = "adamw"
    lr: float = 1e-3
    """The peak learning rate."""
    matrix_lr: float = 0.02
    """muon: the peak learning rate of the layers' matrices."""
    warmup_steps: int = 100
    decay: Literal["linear", "cosine", "constant", "trapezoid"] = "linear"
    """From the peak to `final` over the rest of the run; trapezoid: flat, then linear over the last part."""
    decay_share: float = 0.2
    """trapezoid: how much of the run, after the warm-up, that part is."""
    final: float = 0.0
    """The share of the peak that is left at the end."""
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    max_norm: float = 1.0
    """Gradients are scaled down to this norm; 0: never."""
    ema: float = 0.0
    """Keep an exponential moving average of the weights with this decay, and evaluate and export it; 0: none."""

    def __post_init__(self) -> None:
        if not all(math.isfinite(rate) and rate > 0 for rate in (self.lr, self.matrix_lr)):
            raise ConfigError("learning rates must be positive")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise ConfigError("beta1 and beta2 must be in [0, 1), and eps be positive")
        if not (self.max_norm >= 0 and self.weight_decay >= 0):
            raise ConfigError("max_norm and weight_decay must not be negative")
        if self.warmup_steps < 0 or not 0 <= self.final <= 1 or not 0 <= self.ema < 1:
            raise ConfigError("warmup_steps must not be negative, final be in [0, 1] and ema in [0, 1)")
        if not 0 < self.decay_share <= 1:
            raise ConfigError(f"decay_share must be in (0, 1], got {self.decay_share}")
        if self.decay != "trapezoid" and self.decay_share != OptimSettings.decay_share:
            raise ConfigError(f"decay_share means nothing for {self.decay}: leave it out")


def lr_scale(settings: OptimSettings, step: int, num_steps: int) -> float:
    """The share of the peak learning rate at a step (0-based)."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = min(1.0, (step - settings.warmup_steps) / max(1, num_steps - settings.warmup_steps))
    match settings.decay:
        case "constant":
            left = 1.0
        case "linear":
            left = 1 - progress
        case "cosine":
            left = (1 + math.cos(math.pi * progress)) / 2
        case "trapezoid":
            left = min(1.0, (1 - progress) / settings.decay_share)
    return settings.final + (1 - settings.final) * left


def build_optimizer(model: nn.Module, settings: OptimSettings, layer_decay: float = 1.0) -> torch.optim.Optimizer:
    """The optimizer with its groups; each group's `peak` is what the schedule scales.

    With `layer_decay`, each layer learns at that share of the rate of the layer above it: heads at the full rate, the
    embeddings least.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain = [p for name, p in named if _is_plain(name, p)]
    shaped = [(name, p) for name, p in named if not _is_plain(name, p)]
    betas = (settings.beta1, settings.beta2)
    if settings.kind == "muon":
        named_matrices = [
            (name, p) for name, p in shaped if ".layers." in name and p.dim() == 2 and "tables" not in name
        ]
        stacked = [p for name, p in named_matrices if name.endswith("qkv.weight")]
        matrices = [p for name, p in named_matrices if not name.endswith("qkv.weight")]
        ours = {id(p) for _, p in named_matrices}
        others = [p for _, p in shaped if id(p) not in ours]
        groups = [
            {"params": matrices, "peak": settings.matrix_lr, "weight_decay": settings.weight_decay, "matrix": True},
            {
                "params": stacked,
                "peak": settings.matrix_lr,
                "weight_decay": settings.weight_decay,
                "matrix": True,
                "stacked": STACKED,
            },
            {"params": others, "peak": settings.lr, "weight_decay": settings.weight_decay, "matrix": False},
            {"params": plain, "peak": settings.lr, "weight_decay": 0.0, "matrix": False},
        ]
        return Muon(_by_depth(groups, named, layer_decay), lr=settings.lr, betas=betas, eps=settings.eps)
    adapt = [p for _, p in shaped]
    groups = [
        {"params": adapt, "peak": settings.lr, "weight_decay": settings.weight_decay},
        {"params": plain, "peak": settings.lr, "weight_decay": 0.0},
    ]
    if settings.kind == "lamb":
        groups[0]["adapt"], groups[1]["adapt"] = True, False
        return Lamb(_by_depth(groups, named, layer_decay), lr=settings.lr, betas=betas, eps=settings.eps)
    return torch.optim.AdamW(
        _by_depth(groups, named, layer_decay), lr=settings.lr, betas=betas, eps=settings.eps, fused=True
    )


def set_lr(optimizer: torch.optim.Optimizer, scale: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * scale


def _is_plain(name: str, parameter: Tensor) -> bool:
    return parameter.dim() < 2 or name.endswith("bias")


def _by_depth(
    groups: list[dict[str, Any]], named: list[tuple[str, nn.Parameter]], layer_decay: float
) -> list[dict[str, Any]]:
    """The groups that have parameters; with layer_decay, each cut into one group per distance from the top."""
    below = _steps_below([name for name, _ in named])
    distance = {id(p): n for (_, p), n in zip(named, below, strict=True)}
    if layer_decay == 1:
        distance = dict.fromkeys(distance, 0)
    cut: list[dict[str, Any]] = []
    for group in groups:
        for n in sorted({distance[id(p)] for p in group["params"]}):
            params = [p for p in group["params"] if distance[id(p)] == n]
            cut.append({**group, "params": params, "peak": group["peak"] * layer_decay**n})
    return cut


def _steps_below(names: list[str]) -> list[int]:
    """How far each parameter is below the heads: the top layer 1, the embeddings one more than the lowest layer."""
    layer = [int(name.partition(".layers.")[2].split(".")[0]) if ".layers." in name else None for name in names]
    top = max((i for i in layer if i is not None), default=-1)

    def steps(name: str, i: int | None) -> int:
        if i is not None:
            return top + 1 - i
        is_input = name.startswith("backbone.") and not name.startswith("backbone.output_norm")
        return top + 2 if is_input else 0

    return [steps(name, i) for name, i in zip(names, layer, strict=True)]


class Lamb(torch.optim.Optimizer):
    """Adam's step with decay, rescaled for each matrix to the matrix's own norm."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 10.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": True,
            "max_norm": max_norm,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = _adam_direction(self.state[p], p, group) + group["weight_decay"] * p
                ratio: Tensor | float = 1.0
                if group["adapt"]:
                    weight_norm, step_norm = p.norm().clamp(max=group["max_norm"]), direction.norm()
                    ratio = torch.where((weight_norm > 0) & (step_norm > 0), weight_norm / step_norm, 1.0)
                p.sub_(direction * (ratio * group["lr"]))


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz for groups marked `matrix`; AdamW for the others. All in float32.

    Ranks hold the same gradients, so they share the work of orthogonalising.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "matrix": False,
            "stacked": 1,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            present = [p for p in group["params"] if p.grad is not None]
            if group["matrix"]:
                self._matrix_step(present, group)
                continue
            for p in present:
                direction = _adam_direction(self.state[p], p, group) + group["weight_decay"] * p
                p.sub_(direction * group["lr"])

    def _matrix_step(self, params: list[Tensor], group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for p in params:
            assert p.grad is not None
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            state["momentum"].lerp_(p.grad, 1 - group["momentum"])
            push = p.grad.lerp(state["momentum"], group["momentum"])  # Nesterov
            for rows in _parts(p.shape[0], group["stacked"]):
                block = push[rows]
                by_shape.setdefault((block.shape[0], block.shape[1]), []).append((p[rows], block))
        for (rows_, columns), parts in by_shape.items():
            turned = shared_work(orthogonalise, torch.stack([block for _, block in parts]))
            scale = group["lr"] * math.sqrt(max(1.0, rows_ / columns))
            for (target, _), step in zip(parts, turned, strict=True):
                target.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step * scale)


def _parts(rows: int, stacked: int) -> list[slice]:
    """The maps that are stacked in one matrix: each is orthogonalised on its own."""
    size = rows // stacked
    return [slice(i * size, (i + 1) * size) for i in range(stacked)]


def orthogonalise(x_BMN: Tensor, steps: int = 5) -> Tensor:
    """Singular values pushed towards 1 by a quintic Newton-Schulz iteration, for a stack of matrices.

    A step multiplies by a polynomial p of the Gram matrix. These all commute, so for a wide matrix the product of the
    polynomials is gathered in the small square space, and the matrix itself is multiplied once.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x_BMN.shape[-2] > x_BMN.shape[-1]
    x = x_BMN.float()
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.shape[-1] < 2 * x.shape[-2]:
        for _ in range(steps):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if tall else x
    gram, product = x @ x.mT, None
    for step in range(steps):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if product is None else product @ polynomial
        if step + 1 < steps:
            gram = polynomial @ gram @ polynomial
    x = x if product is None else product @ x
    return x.mT if tall else x


def _adam_direction(state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> Tensor:
    """Adam's bias-corrected step, without learning rate; the moments in `state` move on."""
    assert p.grad is not None
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
    beta1, beta2 = group["betas"]
    state["step"] += 1
    state["mean"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
    state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
    step = float(state["step"])
    mean, square = state["mean"] / (1 - beta1**step), state["square"] / (1 - beta2**step)
    return mean / (square.sqrt() + group["eps"])
