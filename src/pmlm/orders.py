"""Which position comes next: orders known in advance, and policies by which the model chooses for itself.

Used alike by likelihood (teacher-forced) and by generation. Ties go to the lowest position, so that a policy is a
function of the model's conditionals alone and has an exact likelihood.

Shapes: H candidate positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pmlm.errors import OrderError

OrderKind = Literal["l2r", "r2l", "random", "nearest", "confidence", "margin", "entropy", "list"]
POLICIES = ("confidence", "margin", "entropy")
NAMED_ORDERS: tuple[str, ...] = tuple(kind for kind in get_args(OrderKind) if kind != "list")
DEFAULT_ORDER = "l2r"
"""Of writing; chosen by results/control (docs/results.md, "Which order is best?")."""


@dataclass(frozen=True)
class Order:
    kind: OrderKind
    positions: tuple[int, ...] = ()
    """list: the positions in the order of prediction."""

    @property
    def is_policy(self) -> bool:
        """True where the model chooses from its own conditionals."""
        return self.kind in POLICIES

    def __str__(self) -> str:
        return ",".join(map(str, self.positions)) if self.kind == "list" else self.kind


def parse_order(text: str) -> Order:
    """`l2r`, `r2l`, `random`, `nearest`, `confidence`, `margin`, `entropy`, or a list of positions: `2,0,1`."""
    name = text.strip()
    for kind in get_args(OrderKind):
        if name == kind != "list":
            return Order(kind)
    try:
        positions = tuple(int(part) for part in name.split(","))
    except ValueError:
        raise OrderError(
            f"unknown order {text!r}. Known: {', '.join(NAMED_ORDERS)}, or a list of positions such as 2,0,1."
        ) from None
    if len(set(positions)) < len(positions):
        twice = next(p for p in positions if positions.count(p) > 1)
        raise OrderError(f"the order {text!r} names position {twice} more than once")
    return Order("list", positions)


def arrange(order: Order, positions: list[int], known: list[int], rng: torch.Generator) -> list[int]:
    """The positions to predict, in the order of prediction; `known` are the others. Not for policies."""
    match order.kind:
        case "l2r":
            return sorted(positions)
        case "r2l":
            return sorted(positions, reverse=True)
        case "random":
            shuffle = torch.randperm(len(positions), generator=rng).tolist()
            return [sorted(positions)[i] for i in shuffle]
        case "nearest":
            return _outwards(positions, known)
        case "list":
            _check_permutation(order, positions)
            return list(order.positions)
        case _:
            raise AssertionError(f"{order.kind} is chosen by the model")


def _outwards(positions: list[int], known: list[int]) -> list[int]:
    """Always the position nearest to something known or already predicted.

    Of equals the one that has the other side near as well, so that small gaps close first; then the one beside what
    has been known for longer, so that a gap closes from both ends; then the lowest.
    """
    left, arranged = sorted(positions), list[int]()
    far = max([*positions, *known], default=0) + 1
    since = dict.fromkeys(known, 0)
    below = {p: max((k for k in known if k < p), default=None) for p in left}
    above = {p: min((k for k in known if k > p), default=None) for p in left}

    def urgency(p: int) -> tuple[int, int, int, int]:
        near, other = sorted((far, 0) if k is None else (abs(p - k), since[k]) for k in (below[p], above[p]))
        return near[0], other[0], near[1], p

    while left:
        best = min(left, key=urgency)
        left.remove(best)
        arranged.append(best)
        since[best] = len(arranged)
        for p in left:
            if p > best and below[p] == below[best]:
                below[p] = best
            elif p < best and above[p] == above[best]:
                above[p] = best
    return arranged


def _check_permutation(order: Order, positions: list[int]) -> None:
    allowed, given = set(positions), set(order.positions)
    if given - allowed:
        raise OrderError(
            f"the order names position {min(given - allowed)}, which is not among the {len(allowed)} to predict "
            f"({_span(allowed)})"
        )
    if allowed - given:
        raise OrderError(
            f"the order names {len(given)} of {len(allowed)} positions to predict; position {min(allowed - given)} "
            "is missing"
        )


def _span(positions: set[int]) -> str:
    ordered = sorted(positions)
    if not ordered:
        return "none"
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered[:20])) + (", …" if len(ordered) > 20 else "")


def priority(kind: OrderKind, logp_HV: Tensor) -> Tensor:
    """[H] the higher, the sooner; from normalised log-probabilities at the candidate positions."""
    match kind:
        case "confidence":
            return logp_HV.max(dim=-1).values
        case "margin":
            if logp_HV.shape[-1] < 2:
                return torch.ones(logp_HV.shape[:-1])
            top = logp_HV.topk(2, dim=-1).values.exp()
            return top[..., 0] - top[..., 1]
        case "entropy":
            p = logp_HV.exp()
            return (p * logp_HV.masked_fill(p == 0, 0.0)).sum(dim=-1)
        case _:
            raise AssertionError(f"{kind} needs no model to choose")


def choose(kind: OrderKind, logp_HV: Tensor) -> int:
    """Which candidate comes next; the first of equals."""
    return int((priority(kind, logp_HV)).argmax())
