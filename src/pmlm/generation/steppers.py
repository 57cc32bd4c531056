"""How the conditionals of a decode step are computed: recomputed in full, or from a cache.

`Recompute` runs the whole canvas at each step and is the reference for every visibility. `OrderCached` is exact for
order-causal and two-stream visibility in any order: a step costs the tokens revealed since the last one and the
queries asked for; queries write nothing. `CausalCached` is GPT's.

Shapes: B canvases, L slots, S slots of a pass, Q queries per canvas, K columns, M predictions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.errors import OrderError
from pmlm.likelihood import Conditionals, hidden_logp
from pmlm.model import Cache, Inputs, LanguageModel, Slots, Visibility
from pmlm.visibility import is_ordered


@dataclass(frozen=True)
class State:
    """A batch of canvases in the middle of being filled."""

    batch: Batch
    """With what is known so far; what stands at a hidden slot does not matter."""
    hidden_BL: Tensor
    rank_BL: Tensor
    """0 for what was given, t for what was revealed at turn t."""


class Stepper(Protocol):
    def logp(self, state: State, at: Slots) -> Tensor:
        """[M, V] log-probabilities at hidden slots given all that is known."""
        ...


class Recompute:
    """Everything anew at each step."""

    def __init__(self, model: Conditionals, visibility: Visibility) -> None:
        self.model, self.visibility = model, visibility

    def logp(self, state: State, at: Slots) -> Tensor:
        return hidden_logp(self.model, state.batch, state.hidden_BL, state.rank_BL, self.visibility, at)


class OrderCached:
    """Ordered visibility with the keys and values of every known token kept at its place on the canvas.

    It has room for the rows and slots of the batch that it is made for; a pass may be about fewer, from row `first` on.
    """

    def __init__(self, model: LanguageModel, batch: Batch, visibility: Visibility = "order-causal") -> None:
        self.model = model
        self.sees_itself = visibility == "order-causal"
        self.cached_BL = torch.zeros_like(batch.maskable_BL)
        self.num_queries = 1
        self.cache = self._make_cache()

    def _make_cache(self) -> Cache:
        # a column per slot, one per query, and one that nobody reads, for rows with less to say than others
        rows, length = self.cached_BL.shape
        return Cache(self.model.config, rows, length + self.num_queries + 1, self.model.device)

    def forget(self, row: int) -> None:
        """The row's place is free for another canvas."""
        self.cached_BL[row] = False

    def move(self, source: int, target: int) -> None:
        """The canvas at one row goes on at another."""
        self.cached_BL[target] = self.cached_BL[source]
        self.cache.buffers[:, :, target] = self.cache.buffers[:, :, source]

    def logp(self, state: State, at: Slots, first: int = 0) -> Tensor:
        known_BL = ~state.hidden_BL & (state.batch.group_BL >= 0)
        cached_BL = self.cached_BL[first : first + state.batch.num_rows, : state.batch.length]
        new_BS = ragged(known_BL & ~cached_BL)
        query_BQ, wanted = at.by_row(state.batch.num_rows)
        self._make_room(query_BQ.shape[1])
        inputs, key_positions_BK, columns_BS = self._pass(state, new_BS, query_BQ)
        cached_BL |= known_BL
        here = Slots(at.rows_M, wanted + new_BS.shape[1])
        layers = self.cache.layers(columns_BS, key_positions_BK.shape[1], first)
        return self.model.step(inputs, key_positions_BK, here, layers).float().log_softmax(-1)

    def _make_room(self, queries: int) -> None:
        if queries <= self.num_queries:
            return
        length, old = self.cached_BL.shape[1], self.cache
        self.num_queries = queries
        self.cache = self._make_cache()
        self.cache.buffers[..., :length, :] = old.buffers[..., :length, :]

    def _pass(self, state: State, new_BS: Tensor, query_BQ: Tensor) -> tuple[Inputs, Tensor, Tensor]:
        """What this pass reads: new tokens and queries, where they write, and what they see.

        Queries and what nobody reads are put behind the last slot: no row has anything there.
        """
        length, queries = state.batch.length, query_BQ.shape[1]
        spare = length + queries
        slot_BS = torch.cat([new_BS, query_BQ], dim=1).clamp(min=0)
        ids_BN = state.batch.ids_BL.gather(1, new_BS.clamp(min=0))
        ids_BS = torch.cat([ids_BN, torch.full_like(query_BQ, self.model.config.mask_id)], dim=1)
        own_Q = length + torch.arange(queries, device=slot_BS.device)
        columns_BS = torch.cat(
            [torch.where(new_BS >= 0, new_BS, spare), torch.where(query_BQ >= 0, own_Q, spare)], dim=1
        )
        visible_BSK = self._visible(state, new_BS, query_BQ)
        place_BL = torch.arange(length, device=slot_BS.device).expand(len(slot_BS), -1)
        nowhere_B1 = torch.zeros(len(slot_BS), 1, dtype=torch.long, device=slot_BS.device)
        key_positions_BK = torch.cat([place_BL, query_BQ.clamp(min=0), nowhere_B1], dim=1)
        return Inputs(ids_BS, slot_BS, visible_BSK), key_positions_BK, columns_BS

    def _visible(self, state: State, new_BS: Tensor, query_BQ: Tensor) -> Tensor:
        """[B, S, K] a token sees known tokens of its own or a lower rank; a query all of them, and itself as it may."""
        known_BL = ~state.hidden_BL & (state.batch.group_BL >= 0)
        rank_BS = state.rank_BL.gather(1, new_BS.clamp(min=0))
        token_sees = known_BL[:, None] & (state.rank_BL[:, None] <= rank_BS[:, :, None])
        query_sees = known_BL[:, None].expand(-1, query_BQ.shape[1], -1)
        columns = query_BQ.shape[1] + 1
        own = torch.eye(columns, dtype=torch.bool, device=known_BL.device)[:-1]
        own_BQK = own.expand(len(known_BL), -1, -1)
        if not self.sees_itself:
            own_BQK = own_BQK & ~known_BL.any(dim=1)[:, None, None]
        nobody = torch.zeros(*token_sees.shape[:2], columns, dtype=torch.bool, device=known_BL.device)
        nobody[:, :, -1] = True  # rows with nothing new look at the spare column, and nobody looks at them
        nobody &= (new_BS < 0)[:, :, None]
        return torch.cat([torch.cat([token_sees, nobody], dim=2), torch.cat([query_sees, own_BQK], dim=2)], dim=1)


class CausalCached:
    """Left to right, one token at a time, as GPT decodes; what stands after a blank cannot be seen."""

    def __init__(self, model: LanguageModel, batch: Batch) -> None:
        if (batch.maskable_BL[:, :1]).any():
            raise OrderError("a left-to-right model starts from the start marker")
        self.model = model
        self.cache = Cache(model.config, batch.num_rows, batch.length, model.device)
        self.done_B = torch.ones(
            batch.num_rows, dtype=torch.long, device=batch.ids_BL.device
        )  # slot 0 predicts nothing

    def logp(self, state: State, at: Slots) -> Tensor:
        """The next hidden slot of each row; the slots before it are read on the way."""
        target_B = self.done_B.clone() - 1
        target_B[at.rows_M] = at.slots_M
        slot_L = torch.arange(state.batch.length, device=target_B.device)
        due_BL = (slot_L >= self.done_B[:, None]) & (slot_L <= target_B[:, None])
        slot_BS = ragged(due_BL)
        is_due_BS, slot_BS = slot_BS >= 0, slot_BS.clamp(min=0)
        ids_BS = state.batch.ids_BL.gather(1, (slot_BS - 1).clamp(min=0))
        columns_BS = torch.where(is_due_BS, slot_BS, 0)  # column 0 belongs to nobody
        visible_BSK = (slot_L <= slot_BS[:, :, None]) & ((slot_L > 0) | ~is_due_BS[:, :, None])
        key_positions = (slot_L - 1).clamp(min=0)[None]
        inputs = Inputs(ids_BS, (slot_BS - 1).clamp(min=0), visible_BSK)
        here = Slots(at.rows_M, (at.slots_M - self.done_B[at.rows_M]))
        self.done_B = torch.maximum(self.done_B, target_B + 1)
        layers = self.cache.layers(columns_BS, state.batch.length)
        return self.model.step(inputs, key_positions, here, layers).float().log_softmax(-1)


def make_stepper(model: LanguageModel, batch: Batch, visibility: Visibility, *, cached: bool = True) -> Stepper:
    """The fastest exact way for a visibility."""
    if is_ordered(visibility) and cached:
        return OrderCached(model, batch, visibility)
    if visibility == "causal" and cached:
        return CausalCached(model, batch)
    return Recompute(model, visibility)


def ragged(flag_BL: Tensor) -> Tensor:
    """[B, S] the flagged slots of each row in order, padded with -1 to the longest row."""
    count_B = flag_BL.sum(1)
    width = int(count_B.max()) if flag_BL.numel() else 0
    first = (~flag_BL).long().argsort(dim=1, stable=True)[:, :width]
    return torch.where(torch.arange(width, device=flag_BL.device) < count_B[:, None], first, -1)
