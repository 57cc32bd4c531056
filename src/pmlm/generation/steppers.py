"""How the conditionals of a decode step are computed: recomputed in full, or from a cache.

`Recompute` runs the whole canvas at each step and is the reference for every visibility. `OrderCached` is exact for
order-causal and two-stream visibility in any order: a step costs the tokens revealed since the last one and the
queries asked for; queries write nothing. `CausalCached` is GPT's. `StaleCached` is approximate.

Shapes: B canvases, L slots, S slots of a pass, Q queries per canvas, K columns, M predictions, V vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.errors import OrderError
from pmlm.likelihood import Conditionals, hidden_logp
from pmlm.model import Cache, Inputs, LanguageModel, Slots, Visibility
from pmlm.visibility import NEVER, is_ordered

MOST_NUMBERS = 1 << 25
"""Log-probabilities of one pass: where many slots of many canvases are asked for, passes are split."""


@dataclass(frozen=True)
class State:
    """A batch of canvases in the middle of being filled."""

    batch: Batch
    """With what is known so far; what stands at a hidden slot does not matter."""
    hidden_BL: Tensor
    rank_BL: Tensor
    """0 for what was given, t for what was revealed at turn t."""
    fresh: Slots | None = None
    """Where every row had one slot revealed since the last pass, and now asks for one: those, in the order of rows."""


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
    """Ordered visibility with the keys and values of every known token kept, in the order in which they became known.

    It has room for the rows and slots of the batch that it is made for; a pass may be about fewer, from row `first` on.
    Column 0 is spare: rows with less to say than others write there, and nobody reads it. Then come a row's tokens, and
    behind its last token the queries of a pass, over which the next pass writes.
    """

    def __init__(
        self, model: LanguageModel, batch: Batch, visibility: Visibility = "order-causal", *, num_queries: int = 1
    ) -> None:
        self.model, self.num_queries = model, num_queries
        self.sees_itself = visibility == "order-causal"
        self.cached_BL = torch.zeros_like(batch.maskable_BL)
        self.count_B = torch.ones(batch.num_rows, dtype=torch.long, device=batch.ids_BL.device)
        """Columns that are taken, the spare one included."""
        self.level: int | None = 1
        """`count_B` as one number, while all rows have the same."""
        self._make_columns()

    def _make_columns(self) -> None:
        rows, length = self.cached_BL.shape
        columns, device = 1 + length + self.num_queries, self.cached_BL.device
        self.cache = Cache(self.model.config, rows, columns, self.model.device)
        self.slot_BK = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self.rank_BK = torch.full((rows, columns), NEVER, device=device)
        self.pair_12K = torch.ones(1, 2, columns, dtype=torch.bool, device=device)
        self.pair_12K[:, 0, -1] = False  # a token does not see the query, which is last

    def _make_room(self, queries: int) -> None:
        if queries <= self.num_queries:
            return
        old, slot_BK, rank_BK = self.cache, self.slot_BK, self.rank_BK
        self.num_queries = queries
        self._make_columns()
        self.cache.copy_columns(old, old.columns)
        self.slot_BK[:, : old.columns], self.rank_BK[:, : old.columns] = slot_BK, rank_BK

    def forget(self, row: int) -> None:
        """The row's place is free for another canvas."""
        self.cached_BL[row], self.rank_BK[row] = False, NEVER
        self.count_B[row], self.level = 1, None

    def move(self, source: int, target: int) -> None:
        """The canvas at one row goes on at another."""
        for tensor in (self.cached_BL, self.count_B, self.slot_BK, self.rank_BK):
            tensor[target] = tensor[source]
        self.cache.move(source, target, int(self.count_B[source]))
        self.level = None

    def take(self, rows: Tensor) -> None:
        """Each canvas goes on as a copy of another one; all have become known in the same order."""
        self.cache.take(rows, slice(0, int(self.count_B.max())))

    def rewind(self, count_B: Tensor) -> None:
        """Only the first columns of each row count, as if what came after had never been read."""
        column_K = torch.arange(self.slot_BK.shape[1], device=self.slot_BK.device)
        self.rank_BK.masked_fill_(column_K >= count_B[:, None], NEVER)
        self.count_B, self.level = count_B, None

    def logp(self, state: State, at: Slots, first: int = 0) -> Tensor:
        if state.fresh is not None and self.level is not None:
            return self._in_step(state, state.fresh, at, self.level)
        known_BL = ~state.hidden_BL & (state.batch.group_BL >= 0)
        cached_BL = self.cached_BL[first : first + state.batch.num_rows, : state.batch.length]
        slot_BN = ragged(known_BL & ~cached_BL)
        cached_BL |= known_BL
        here_BN = slot_BN.clamp(min=0)
        new = Columns(state.batch.ids_BL.gather(1, here_BN), slot_BN, state.rank_BL.gather(1, here_BN))
        query_BQ, place_M = at.by_row(state.batch.num_rows)
        return self.extend(new, query_BQ, torch.full_like(query_BQ, NEVER), Slots(at.rows_M, place_M), first)

    def _in_step(self, state: State, fresh: Slots, at: Slots, level: int) -> Tensor:
        """Every row has one new token and one query, and all rows have come equally far."""
        ids_B = state.batch.ids_BL[fresh.rows_M, fresh.slots_M]
        ids_B2 = torch.stack([ids_B, torch.full_like(ids_B, self.model.config.mask_id)], dim=1)
        slot_B2 = torch.stack([fresh.slots_M, at.slots_M], dim=1)
        self.slot_BK[:, level : level + 2] = slot_B2
        self.rank_BK[:, level] = state.rank_BL[fresh.rows_M, fresh.slots_M]
        self.cached_BL[fresh.rows_M, fresh.slots_M] = True
        self.count_B += 1
        self.level = level + 1
        # two streams: nobody sees the query, so that nothing is to be said of who sees whom
        read = slice(1, level + 2 if self.sees_itself else level + 1)
        visible_12K = self.pair_12K[:, :, -(level + 1) :] if self.sees_itself else None
        layers = self.cache.layers(slice(level, level + 2), read)
        inputs = Inputs(ids_B2, slot_B2, visible_12K)
        here = Slots(at.rows_M, torch.ones_like(at.rows_M))
        return self.model.step(inputs, self.slot_BK[:, read], here, layers).float().log_softmax(-1)

    def extend(self, new: "Columns", query_BQ: Tensor, query_rank_BQ: Tensor, here: Slots, first: int = 0) -> Tensor:
        """[M, V] Read new tokens, and answer queries: each sees the tokens of a lower rank than its own, and itself.

        Slots of -1 are padding, at the end of a row. `here` names queries by row and number.
        """
        rows, queries = slice(first, first + len(query_BQ)), query_BQ.shape[1]
        self._make_room(queries)
        is_new_BN, count_B = new.slot_BN >= 0, self.count_B[rows]
        after_B = count_B + is_new_BN.sum(1)
        width = int(after_B.max()) + queries
        device = count_B.device
        column_BN = torch.where(is_new_BN, count_B[:, None] + torch.arange(is_new_BN.shape[1], device=device), 0)
        column_BQ = torch.where(query_BQ >= 0, after_B[:, None] + torch.arange(queries, device=device), 0)
        column_BS = torch.cat([column_BN, column_BQ], dim=1)
        slot_BS = torch.cat([new.slot_BN, query_BQ], dim=1).clamp(min=0)
        self.slot_BK[rows].scatter_(1, column_BS, slot_BS)
        rank_BN = torch.where(is_new_BN, new.rank_BN, NEVER)
        self.rank_BK[rows].scatter_(1, column_BN, rank_BN)
        visible_BSK = self._visible(self.rank_BK[rows, :width], is_new_BN, rank_BN, query_rank_BQ, column_BQ)
        ids_BS = torch.cat([new.ids_BN, torch.full_like(query_BQ, self.model.config.mask_id)], dim=1)
        self.count_B[rows] = after_B
        self._find_level()
        layers = self.cache.layers(column_BS, slice(0, width), first, len(query_BQ))
        at = Slots(here.rows_M, here.slots_M + is_new_BN.shape[1])
        inputs = Inputs(ids_BS, slot_BS, visible_BSK)
        return self.model.step(inputs, self.slot_BK[rows, :width], at, layers).float().log_softmax(-1)

    def _visible(
        self, rank_BK: Tensor, is_new_BN: Tensor, rank_BN: Tensor, query_rank_BQ: Tensor, column_BQ: Tensor
    ) -> Tensor:
        """[B, S, K]"""
        token_sees = (rank_BK[:, None] <= rank_BN[:, :, None]) & is_new_BN[:, :, None]
        query_sees = rank_BK[:, None] < query_rank_BQ[:, :, None]
        own_BQ1 = torch.ones_like(column_BQ[:, :, None], dtype=torch.bool)
        if not self.sees_itself:
            own_BQ1 = ~query_sees.any(dim=2, keepdim=True)
        query_sees = query_sees.scatter(2, column_BQ[:, :, None], own_BQ1 | (column_BQ == 0)[:, :, None])
        token_sees[:, :, 0] = ~is_new_BN  # who has nothing to say looks at the spare column
        return torch.cat([token_sees, query_sees], dim=1)

    def _find_level(self) -> None:
        least, most = int(self.count_B.min()), int(self.count_B.max())
        self.level = least if least == most else None


class Columns(NamedTuple):
    """Tokens to be read: their ids, their slots (-1: none) and their ranks."""

    ids_BN: Tensor
    slot_BN: Tensor
    rank_BN: Tensor


class CausalCached:
    """Left to right, one token at a time, as GPT decodes; what stands after a blank cannot be seen.

    Slot i, which predicts token i from the tokens before it, has column i. Slot 0 predicts nothing: column 0 is spare.
    """

    def __init__(self, model: LanguageModel, batch: Batch) -> None:
        if (batch.maskable_BL[:, :1]).any():
            raise OrderError("a left-to-right model starts from the start marker")
        self.model = model
        self.cache = Cache(model.config, batch.num_rows, batch.length, model.device)
        self.done_B = torch.ones(batch.num_rows, dtype=torch.long, device=batch.ids_BL.device)
        self.level: int | None = None
        """`done_B` as one number, where all rows have the same."""
        self.place_1L = (torch.arange(batch.length, device=batch.ids_BL.device) - 1).clamp(min=0)[None]

    def logp(self, state: State, at: Slots) -> Tensor:
        """The next hidden slot of each row; the slots before it are read on the way."""
        if state.fresh is not None and self.level is not None and bool((at.slots_M == self.level).all()):
            return self._in_step(state, at, self.level)
        target_B = self.done_B.clone() - 1
        target_B[at.rows_M] = at.slots_M
        slot_L = torch.arange(state.batch.length, device=target_B.device)
        due_BL = (slot_L >= self.done_B[:, None]) & (slot_L <= target_B[:, None])
        slot_BS = ragged(due_BL)
        is_due_BS, slot_BS = slot_BS >= 0, slot_BS.clamp(min=0)
        ids_BS = state.batch.ids_BL.gather(1, (slot_BS - 1).clamp(min=0))
        columns_BS = torch.where(is_due_BS, slot_BS, 0)
        visible_BSK = (slot_L <= slot_BS[:, :, None]) & ((slot_L > 0) | ~is_due_BS[:, :, None])
        inputs = Inputs(ids_BS, (slot_BS - 1).clamp(min=0), visible_BSK)
        here = Slots(at.rows_M, (at.slots_M - self.done_B[at.rows_M]))
        self.done_B = torch.maximum(self.done_B, target_B + 1)
        least, most = int(self.done_B.min()), int(self.done_B.max())
        self.level = least if least == most else None
        layers = self.cache.layers(columns_BS, slice(0, state.batch.length))
        return self.model.step(inputs, self.place_1L, here, layers).float().log_softmax(-1)

    def read(self, ids_BL: Tensor, until: int) -> Tensor:
        """[B, S, V] Log-probabilities at the slots before `until` that have not been read; all rows are equally far.

        Of fewer rows than there is room for it reads the first ones; the others are to `take` after them.
        """
        level, rows = self.num_read, len(ids_BL)
        slot_S = torch.arange(level, until, device=ids_BL.device)
        column_K = torch.arange(1, until, device=ids_BL.device)
        visible_1SK = None if len(slot_S) == 1 else (column_K <= slot_S[:, None])[None]
        inputs = Inputs(ids_BL[:, level - 1 : until - 1], self.place_1L[:, level:until], visible_1SK)
        layers = self.cache.layers(slice(level, until), slice(1, until), 0, rows)
        here = torch.ones(rows, len(slot_S), device=ids_BL.device).nonzero()
        logp_MV = self.model.step(inputs, self.place_1L[:, 1:until], Slots(here[:, 0], here[:, 1]), layers)
        self.done_B += until - level
        self.level = until
        return logp_MV.float().log_softmax(-1).unflatten(0, (rows, len(slot_S)))

    @property
    def num_read(self) -> int:
        """The first slot that has not been asked for, where all rows are equally far."""
        return int(self.done_B[0])

    def take(self, rows: Tensor) -> None:
        """Each row goes on as a copy of another one."""
        self.cache.take(rows, slice(0, self.num_read))

    def _in_step(self, state: State, at: Slots, level: int) -> Tensor:
        """All rows have come equally far."""
        inputs = Inputs(state.batch.ids_BL[:, level - 1 : level], self.place_1L[:, level : level + 1])
        self.done_B += 1
        self.level = level + 1
        read = slice(1, level + 1)
        layers = self.cache.layers(slice(level, level + 1), read)
        here = Slots(at.rows_M, torch.zeros_like(at.rows_M))
        return self.model.step(inputs, self.place_1L[:, read], here, layers).float().log_softmax(-1)


class StaleCached:
    """Bidirectional visibility with keys and values that are not made anew in every pass. Approximate.

    With every token that becomes known all others change; here only the slots revealed since the last pass and those
    asked for are computed, and see the others as they were. Every `refresh` passes all are made anew.
    """

    def __init__(self, model: LanguageModel, batch: Batch, refresh: int) -> None:
        self.model, self.refresh, self.num_passes = model, refresh, 0
        self.cache = Cache(model.config, batch.num_rows, batch.length + 1, model.device)  # the last is spare
        self.read_BL = torch.zeros_like(batch.maskable_BL)
        """What was known when its keys and values were made."""
        spare_B1 = torch.zeros_like(batch.group_BL[:, :1])
        self.place_BK = torch.cat([batch.positions_BL(), spare_B1], dim=1)
        is_text_BL = batch.group_BL >= 0
        self.visible_B1K = None if bool(is_text_BL.all()) else torch.cat([is_text_BL, spare_B1 > 0], dim=1)[:, None]

    def logp(self, state: State, at: Slots) -> Tensor:
        known_BL = ~state.hidden_BL & (state.batch.group_BL >= 0)
        asked_BL = torch.zeros_like(known_BL)
        asked_BL[at.rows_M, at.slots_M] = True
        is_full, self.num_passes = self.num_passes % self.refresh == 0, self.num_passes + 1
        due_BL = torch.ones_like(known_BL) if is_full else (known_BL & ~self.read_BL) | asked_BL
        self.read_BL = known_BL
        seen_BL = torch.where(state.hidden_BL, self.model.config.mask_id, state.batch.ids_BL)
        slot_BS = ragged(due_BL)
        place_BL = due_BL.long().cumsum(1) - 1
        length, here_BS = state.batch.length, slot_BS.clamp(min=0)
        column_BS: Tensor | slice = torch.where(slot_BS >= 0, slot_BS, length)
        if is_full:
            column_BS = slice(0, length)
        visible = None if self.visible_B1K is None else self.visible_B1K[..., :length].expand(-1, here_BS.shape[1], -1)
        inputs = Inputs(seen_BL.gather(1, here_BS), self.place_BK.gather(1, here_BS), visible)
        here = Slots(at.rows_M, place_BL[at.rows_M, at.slots_M])
        layers = self.cache.layers(column_BS, slice(0, length))
        return self.model.step(inputs, self.place_BK[:, :length], here, layers).float().log_softmax(-1)


def make_stepper(model: LanguageModel, batch: Batch, visibility: Visibility, *, cached: bool = True) -> Stepper:
    """The fastest exact way for a visibility."""
    if is_ordered(visibility) and cached:
        model.pack(2 * batch.num_rows, batch.num_rows)
        return OrderCached(model, batch, visibility)
    if visibility == "causal" and cached:
        model.pack(batch.num_rows, batch.num_rows)
        return CausalCached(model, batch)
    return Recompute(model, visibility)


def ragged(flag_BL: Tensor) -> Tensor:
    """[B, S] the flagged slots of each row in order, padded with -1 to the longest row."""
    count_B = flag_BL.sum(1)
    width = int(count_B.max()) if flag_BL.numel() else 0
    first = (~flag_BL).long().argsort(dim=1, stable=True)[:, :width]
    return torch.where(torch.arange(width, device=flag_BL.device) < count_B[:, None], first, -1)
