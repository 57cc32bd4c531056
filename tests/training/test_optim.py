"""Optimizers step by step against independent references; the schedule as a pure function."""

import math

import pytest
import torch
from torch import Tensor, nn

from fakes import tiny_model
from pmlm.errors import ConfigError
from pmlm.training.optim import Lamb, Muon, OptimSettings, build_optimizer, lr_scale, orthogonalise, set_lr


def lamb_reference(weights: list[float], grads: list[list[float]], lr: float, decay: float) -> list[float]:
    """LAMB (You et al. 2020, algorithm 2) on plain numbers."""
    w, m, v = list(weights), [0.0] * len(weights), [0.0] * len(weights)
    for t, grad in enumerate(grads, start=1):
        m = [0.9 * a + 0.1 * g for a, g in zip(m, grad, strict=True)]
        v = [0.98 * a + 0.02 * g * g for a, g in zip(v, grad, strict=True)]
        r = [
            (a / (1 - 0.9**t)) / (math.sqrt(b / (1 - 0.98**t)) + 1e-6) + decay * x
            for a, b, x in zip(m, v, w, strict=True)
        ]
        size, step = math.sqrt(sum(x * x for x in w)), math.sqrt(sum(x * x for x in r))
        ratio = min(size, 10.0) / step if size > 0 and step > 0 else 1.0
        w = [x - lr * ratio * d for x, d in zip(w, r, strict=True)]
    return w


@pytest.mark.parametrize("start", [[0.5, -1.0, 2.0, 0.1], [30.0, 4.0, -5.0, 6.0], [0.0, 0.0, 0.0, 0.0]])
def test_lamb_equals_its_definition_step_by_step(start: list[float]) -> None:
    p = nn.Parameter(torch.tensor(start).view(2, 2))
    optimizer = Lamb([p], lr=0.1, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05)
    rng = torch.Generator().manual_seed(1)
    grads: list[list[float]] = []
    for _ in range(6):
        p.grad = torch.randn(2, 2, generator=rng)
        grads.append(p.grad.flatten().tolist())
        optimizer.step()
        assert p.detach().flatten().tolist() == pytest.approx(
            lamb_reference(start, grads, 0.1, 0.05), rel=1e-4, abs=1e-5
        )


def test_the_first_lamb_step_is_lr_times_the_weights_norm() -> None:
    p = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = Lamb([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.tensor([[1.0, -2.0]])
    before = p.detach().clone()
    optimizer.step()
    assert (p.detach() - before).norm().item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonalising_brings_singular_values_near_one_and_keeps_the_directions(shape: tuple[int, int]) -> None:
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    y = orthogonalise(x)
    assert y.dtype == torch.float32
    for a, b in zip(x, y, strict=True):
        assert ((torch.linalg.svdvals(b) > 0.5) & (torch.linalg.svdvals(b) < 1.4)).all()
        u, _, vh = torch.linalg.svd(a, full_matrices=False)
        core = u.T @ b @ vh.T
        assert (core - core.diag().diag()).abs().max() < 1e-4
        value = torch.linalg.svdvals(a) / a.norm()
        for _ in range(5):
            value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
        assert torch.allclose(core.diag(), value, atol=1e-4)  # wide ones take another way to the same place


def test_muon_turns_matrices_and_leaves_the_rest_to_adamw() -> None:
    model = tiny_model(positions="relative")
    optimizer = build_optimizer(model, OptimSettings(kind="muon"))
    assert isinstance(optimizer, Muon)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = [sorted(names[id(p)] for p in g["params"]) for g in optimizer.param_groups]
    assert [g["matrix"] for g in optimizer.param_groups] == [True, True, False, False]
    assert all(".layers." in n and "tables" not in n and n.endswith("weight") for n in groups[0] + groups[1])
    assert {"backbone.tokens.weight", "head.transform.weight", "backbone.layers.0.attention.tables.keys"} <= set(
        groups[2]
    )
    assert all("norm" in n or n.endswith("bias") for n in groups[3])
    assert sum(map(len, groups)) == len(names)


def test_muon_treats_queries_keys_and_values_as_three_matrices() -> None:
    p = nn.Parameter(torch.zeros(12, 4))
    optimizer = Muon([{"params": [p], "matrix": True, "stacked": 3}], lr=1.0, weight_decay=0.0)
    p.grad = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    push = p.grad * (0.05 + 0.95 * 0.05) / 1.0  # any positive scale: orthogonalising forgets it
    expected = torch.cat([orthogonalise(part[None])[0] for part in push.chunk(3)])
    assert torch.allclose(-p.detach(), expected, atol=1e-3)


def test_only_queries_keys_and_values_are_stacked() -> None:
    """A feed-forward three times as wide as the model is one matrix."""
    model = tiny_model(width=16, ff_width=48)
    optimizer = build_optimizer(model, OptimSettings(kind="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    stacked = {names[id(p)].split(".", 3)[-1] for g in optimizer.param_groups if g["stacked"] == 3 for p in g["params"]}
    assert stacked == {"attention.qkv.weight"}
    assert {g["stacked"] for g in optimizer.param_groups} == {1, 3}


@pytest.mark.parametrize("kind", ["adamw", "lamb", "muon"])
def test_norms_and_biases_are_not_decayed_and_every_parameter_moves(kind: str) -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, OptimSettings(kind=kind, weight_decay=0.1))  # type: ignore[arg-type]
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert (group["weight_decay"] == 0) == (p.dim() < 2)
    before: dict[str, Tensor] = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    set_lr(optimizer, 0.5)
    optimizer.step()
    assert all(not torch.equal(before[n], p) for n, p in model.named_parameters())


def test_the_schedule_warms_up_and_decays() -> None:
    linear = OptimSettings(warmup_steps=10, decay="linear", final=0.1)
    assert [lr_scale(linear, s, 110) for s in (0, 4, 9, 10, 60, 110, 200)] == pytest.approx(
        [0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1]
    )
    cosine = OptimSettings(warmup_steps=0, decay="cosine")
    assert [lr_scale(cosine, s, 100) for s in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    flat = OptimSettings(warmup_steps=0, decay="trapezoid")
    assert [lr_scale(flat, s, 100) for s in (0, 79, 90, 100)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    late = OptimSettings(warmup_steps=20, decay="trapezoid", decay_share=0.5, final=0.1)
    assert [lr_scale(late, s, 120) for s in (20, 70, 95, 120)] == pytest.approx([1.0, 1.0, 0.55, 0.1])
    assert lr_scale(OptimSettings(warmup_steps=0, decay="constant"), 99, 100) == 1.0


def test_impossible_settings_are_refused() -> None:
    nan = float("nan")
    for bad in ({"lr": 0.0}, {"lr": nan}, {"matrix_lr": float("inf")}, {"final": 2.0}, {"ema": 1.0}, {"warmup_steps": -1},
                {"beta1": 1.5}, {"beta2": 1.0}, {"eps": -1.0}, {"max_norm": -1.0}, {"weight_decay": -1.0},
                {"decay": "trapezoid", "decay_share": 0.0}, {"decay": "linear", "decay_share": 0.5}):  # fmt: skip
        with pytest.raises(ConfigError):
            OptimSettings(**bad)  # type: ignore[arg-type]
