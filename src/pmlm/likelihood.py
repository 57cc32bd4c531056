"""Exact log-probabilities along an order, and bounds averaged over orders.

A fixed order is `rank_BL`: 0 for what is given, t for the token predicted t-th. Order-causal and causal models score
an order in one pass. A bidirectional model needs a pass per predicted token, since each reveal changes every hidden
state; those passes are batched over positions and texts, `max_slots` at a time. For an order that the model chooses
itself the passes follow each other, batched over texts. A row holds one text here; packing is for training.

Not here: how text becomes a batch, and how figures over a corpus are reported (pmlm.evaluation).

Shapes: B texts, L slots, M predictions, V vocabulary, S orders.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.errors import OrderError
from pmlm.masking import Masking, draw_hidden, text_ranks
from pmlm.model import Inputs, ModelConfig, Slots, Visibility
from pmlm.orders import Order, OrderKind, arrange, choose
from pmlm.runtime import RowRandom
from pmlm.visibility import NEVER, causal_inputs, hidden_inputs, is_ordered, ordered_inputs

MAX_SLOTS = 16_384
"""How many slots one forward pass may hold, by default; memory grows with it."""


class Conditionals(Protocol):
    """What likelihood asks of a model: the logits at given slots."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, inputs: Inputs, at: Slots) -> Tensor: ...


def check_order(order: Order, visibility: Visibility) -> None:
    """A left-to-right model goes left to right and nowhere else."""
    if visibility == "causal" and order.kind != "l2r":
        raise OrderError(f"this model predicts from left to right only: order {str(order)!r} cannot be scored, use l2r")


def check_visibility(visibility: str | None, config: ModelConfig) -> Visibility:
    """The wanted visibility, or the model's default."""
    for known in config.visibilities:
        if visibility in (None, known):
            return known
    raise OrderError(
        f"this model was not trained for visibility {visibility!r}. It knows: {', '.join(config.visibilities)}."
    )


def order_ranks(batch: Batch, orders: list[list[int]]) -> Tensor:
    """rank_BL of one order per row, given as slot numbers in the order of prediction."""
    rank_BL = torch.zeros_like(batch.ids_BL)
    for b, order in enumerate(orders):
        rank_BL[b, order] = torch.arange(1, len(order) + 1)
    return rank_BL


def arranged_ranks(batch: Batch, order: Order, rngs: list[torch.Generator]) -> Tensor:
    """rank_BL of a named order (not a policy) of each row's maskable slots, one generator per row."""
    return order_ranks(batch, arranged_slots(batch, order, rngs))


def arranged_slots(batch: Batch, order: Order, rngs: Sequence[torch.Generator]) -> list[list[int]]:
    """Each row's maskable slots in a named order (not a policy), one generator per row."""
    known_BL = ~batch.maskable_BL & (batch.group_BL >= 0)
    return [
        arrange(order, batch.maskable_BL[b].nonzero()[:, 0].tolist(), known_BL[b].nonzero()[:, 0].tolist(), rng)
        for b, rng in enumerate(rngs)
    ]


@torch.no_grad()
def order_logp(
    model: Conditionals, batch: Batch, rank_BL: Tensor, visibility: Visibility, *, max_slots: int = MAX_SLOTS
) -> Tensor:
    """[B, L] the exact log-probability of each predicted token given those of lower rank; 0 elsewhere.

    Slots of rank NEVER stay hidden to the end: what stands there is neither predicted nor seen.
    """
    match visibility:
        case "bidirectional" | "known-only":
            return _stepwise_logp(model, batch, rank_BL, visibility, max_slots)
        case "causal":
            assert _is_left_to_right(rank_BL), "check_order comes first"
            logp = [_causal_part(model, part) for part, _ in _row_parts(batch, rank_BL, batch.length, max_slots)]
        case "order-causal" | "two-stream":
            parts = _row_parts(batch, rank_BL, 2 * batch.length, max_slots)
            logp = [_ordered_part(model, part, rank, visibility) for part, rank in parts]
    return torch.where(_is_predicted(rank_BL), torch.cat(logp), 0.0)


@torch.no_grad()
def policy_logp(
    model: Conditionals, batch: Batch, kind: OrderKind, visibility: Visibility, *, max_slots: int = MAX_SLOTS
) -> tuple[Tensor, Tensor]:
    """(logp_BL, rank_BL) along the order that the model itself chooses, from its state before each token is known."""
    rank_BL = torch.zeros_like(batch.ids_BL)
    logp_BL = torch.zeros(batch.ids_BL.shape, dtype=torch.float64)
    slots_per_row = batch.length * (2 if visibility == "two-stream" else 1)
    step = max(1, max_slots // slots_per_row)
    for start in range(0, batch.num_rows, step):
        rows = torch.arange(start, min(start + step, batch.num_rows))
        part_logp, part_rank = _policy_part(model, batch.rows(rows), kind, visibility)
        logp_BL[rows], rank_BL[rows] = part_logp, part_rank
    return logp_BL, rank_BL


def _policy_part(model: Conditionals, batch: Batch, kind: OrderKind, visibility: Visibility) -> tuple[Tensor, Tensor]:
    rank_BL = torch.zeros_like(batch.ids_BL)
    logp_BL = torch.zeros(batch.ids_BL.shape, dtype=torch.float64)
    hidden_BL = batch.maskable_BL.clone()
    turn = 0
    while hidden_BL.any():
        turn += 1
        at = Slots.where(hidden_BL)
        logp_MV = hidden_logp(model, batch, hidden_BL, rank_BL, visibility, at)
        for b in hidden_BL.any(dim=1).nonzero()[:, 0].tolist():
            mine = (at.rows_M == b).nonzero()[:, 0]
            pick = mine[choose(kind, logp_MV[mine])]
            slot = at.slots_M[pick]
            rank_BL[b, slot] = turn
            logp_BL[b, slot] = logp_MV[pick, batch.ids_BL[b, slot]]
            hidden_BL[b, slot] = False
    return logp_BL, rank_BL


def hidden_logp(
    model: Conditionals, batch: Batch, hidden_BL: Tensor, rank_BL: Tensor, visibility: Visibility, at: Slots
) -> Tensor:
    """[M, V] log-probabilities at hidden slots, given all that is known.

    `rank_BL` orders the known tokens; the ordered visibilities alone depend on it.
    """
    inputs, first = hidden_inputs(batch, hidden_BL, rank_BL, visibility, model.config.mask_id)
    return _logp(model, inputs, Slots(at.rows_M, at.slots_M + first))


@torch.no_grad()
def bound_nll(
    model: Conditionals,
    batch: Batch,
    visibility: Visibility,
    random: RowRandom,
    *,
    max_slots: int = MAX_SLOTS,
) -> Tensor:
    """[B] an unbiased estimate of each text's NLL averaged over all orders, which bounds -log of their mixture.

    Bidirectional: one pass with K ~ U{1 … N} hidden tokens, stratified over `random.total` texts, weighted N/K.
    Ordered: the exact NLL along one random order. Causal: the exact NLL, there being one order alone.
    """
    if visibility in ("bidirectional", "known-only"):
        hidden_BL = draw_hidden(batch, Masking(), random)
        num_B = batch.maskable_BL.sum(1).double()
        nll_B = torch.zeros(batch.num_rows, dtype=torch.float64)
        step = max(1, max_slots // batch.length)
        for start in range(0, batch.num_rows, step):
            rows = torch.arange(start, min(start + step, batch.num_rows))
            part, hidden = batch.rows(rows), hidden_BL[rows]
            at = Slots.where(hidden)
            if not len(at):
                continue
            logp_MV = hidden_logp(model, part, hidden, torch.zeros_like(part.ids_BL), visibility, at)
            logp_M = _pick(logp_MV, part.ids_BL[at.rows_M, at.slots_M])
            nll_B.scatter_add_(0, at.rows_M + start, -logp_M)
        return nll_B * num_B / hidden_BL.sum(1).clamp(min=1)
    rank_BL = random_ranks(batch, random) if is_ordered(visibility) else l2r_ranks(batch)
    return -order_logp(model, batch, rank_BL, visibility, max_slots=max_slots).sum(1)


def random_ranks(batch: Batch, random: RowRandom) -> Tensor:
    """rank_BL of a uniformly random order of each text."""
    rank_BL = text_ranks(batch, random.uniform("order", batch.length)) + 1
    return torch.where(batch.maskable_BL, rank_BL, 0)


def l2r_ranks(batch: Batch) -> Tensor:
    return torch.where(batch.maskable_BL, batch.maskable_BL.long().cumsum(1), 0)


def importance_weighted_nll(logp_SB: Tensor) -> Tensor:
    """[B] -log of the mean over S orders of p(x | order): tighter than the average as S grows, still a bound.

    `logp_SB` holds the log-probability of each text along each of S random orders.
    """
    return -(logp_SB.double().logsumexp(0) - torch.tensor(float(logp_SB.shape[0])).log())


def _stepwise_logp(
    model: Conditionals, batch: Batch, rank_BL: Tensor, visibility: Visibility, max_slots: int
) -> Tensor:
    """A pass per predicted token: what has its rank or a higher one is hidden."""
    logp_BL = torch.zeros(batch.ids_BL.shape, dtype=torch.float64)
    at = Slots.where(_is_predicted(rank_BL))
    step = max(1, max_slots // batch.length)
    for start in range(0, len(at), step):
        rows_C, slots_C = at.rows_M[start : start + step], at.slots_M[start : start + step]
        part = batch.rows(rows_C)
        rank_C = rank_BL[rows_C]
        hidden_CL = rank_C >= rank_BL[rows_C, slots_C][:, None]
        here = Slots(torch.arange(len(rows_C)), slots_C)
        logp_CV = hidden_logp(model, part, hidden_CL & (rank_C > 0), rank_C, visibility, here)
        logp_BL[rows_C, slots_C] = _pick(logp_CV, batch.ids_BL[rows_C, slots_C])
    return logp_BL


def _ordered_part(model: Conditionals, batch: Batch, rank_BL: Tensor, visibility: Visibility) -> Tensor:
    at = Slots.where(_is_predicted(rank_BL))
    inputs = ordered_inputs(batch, rank_BL, visibility, model.config.mask_id)
    logp_MV = _logp(model, inputs, Slots(at.rows_M, at.slots_M + batch.length))
    return _scatter(logp_MV, batch, at)


def _causal_part(model: Conditionals, batch: Batch) -> Tensor:
    at = Slots.where(batch.maskable_BL)
    logp_MV = _logp(model, causal_inputs(batch, model.config.mask_id), at)
    return _scatter(logp_MV, batch, at)


def _scatter(logp_MV: Tensor, batch: Batch, at: Slots) -> Tensor:
    logp_BL = torch.zeros(batch.ids_BL.shape, dtype=torch.float64)
    logp_BL[at.rows_M, at.slots_M] = _pick(logp_MV, batch.ids_BL[at.rows_M, at.slots_M])
    return logp_BL


def _row_parts(batch: Batch, rank_BL: Tensor, slots_per_row: int, max_slots: int) -> list[tuple[Batch, Tensor]]:
    step = max(1, max_slots // slots_per_row)
    index = [torch.arange(i, min(i + step, batch.num_rows)) for i in range(0, batch.num_rows, step)]
    return [(batch.rows(rows), rank_BL[rows]) for rows in index]


def _is_predicted(rank_BL: Tensor) -> Tensor:
    return (rank_BL > 0) & (rank_BL < NEVER)


def _is_left_to_right(rank_BL: Tensor) -> bool:
    place_BL = (rank_BL > 0).long().cumsum(1)
    return bool((rank_BL == torch.where(rank_BL > 0, place_BL, 0)).all())


def _logp(model: Conditionals, inputs: Inputs, at: Slots) -> Tensor:
    """[M, V] log-probabilities, where the texts are: the model may be on another device."""
    logits_MV = model(inputs.to(model.device), at.to(model.device))
    return logits_MV.float().log_softmax(-1).to(inputs.ids_BL.device)


def _pick(logp_MV: Tensor, ids_M: Tensor) -> Tensor:
    return logp_MV.gather(1, ids_M[:, None])[:, 0].double()
