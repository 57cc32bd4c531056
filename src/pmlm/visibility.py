"""Who may look at whom: the table that turns one backbone into BERT, GPT, u-PMLM, APLM and XLNet.

| visibility    | a slot holds                       | and sees                                                |
|---------------|------------------------------------|---------------------------------------------------------|
| bidirectional | a token, or [MASK] where hidden    | every slot of its text                                  |
| known-only    | the same                           | the known tokens of its text, and itself                |
| causal        | the *previous* token of its text   | itself and the slots before it                          |
| order-causal  | first, the tokens of the text      | tokens of its own or a lower rank                       |
|               | then, a [MASK] query for each      | tokens of a lower rank, and itself                      |
| two-stream    | the same                           | the same, but a query sees itself only where it sees    |
|               |                                    | no token (XLNet: queries read content alone)            |

`rank` is the order as data: 0 for what is given (it sees itself both ways), t for the token predicted t-th. Nobody
sees a query. Everywhere the logits at a text's slot i are the distribution *of token i*: GPT's shift lives here, in
`causal_inputs`, and nowhere else.

Shapes: B batch, L slots, Q queries and K keys.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from pmlm.batch import Batch
from pmlm.model import Inputs, Visibility

NEVER = 1_000_000
"""The rank of a slot that is never revealed."""


def bidirectional_inputs(batch: Batch, seen_ids_BL: Tensor) -> Inputs:
    """`seen_ids_BL`: the ids as the network reads them, [MASK] (or another corruption) where hidden."""
    if batch.is_uniform():
        return Inputs(seen_ids_BL, _run(batch))
    return Inputs(seen_ids_BL, batch.positions_BL(), _same_group(batch.group_BL))


def reading_inputs(batch: Batch, visibility: Visibility, token_types_BL: Tensor | None = None) -> Inputs:
    """A whole text with nothing hidden, as a model trained for `visibility` may look at it.

    Where nothing is hidden, known-only and order-causal slots see each other both ways. A causal slot holds its own
    token here: nothing is predicted, so nothing is shifted.
    """
    if visibility != "causal":
        return replace(bidirectional_inputs(batch, batch.ids_BL), token_types_BL=token_types_BL)
    earlier_LL = torch.ones(batch.length, batch.length, dtype=torch.bool, device=batch.ids_BL.device).tril()
    visible_BQK = _same_group(batch.group_BL) & earlier_LL
    return Inputs(batch.ids_BL, batch.positions_BL(), visible_BQK, token_types_BL=token_types_BL)


def known_only_inputs(batch: Batch, seen_ids_BL: Tensor, hidden_BL: Tensor) -> Inputs:
    """As bidirectional, but a hidden slot is seen by itself alone."""
    visible_BQK = _same_group(batch.group_BL) & (~hidden_BL[:, None, :] | _itself(batch))
    return Inputs(seen_ids_BL, batch.positions_BL(), visible_BQK)


def causal_inputs(batch: Batch, mask_id: int) -> Inputs:
    """Each slot reads the token before it, so that its output is the distribution of its own token.

    A text that begins with a marker is read from that marker on, as GPT does. One that begins with content has no
    such token: there the first slot reads [MASK], "unknown". The position of an input counts from the first token
    really read.
    """
    first_BL = batch.positions_BL() == 0
    ids_BL = torch.where(first_BL, mask_id, batch.ids_BL.roll(1, dims=1))
    lead_BL = first_BL & ~batch.maskable_BL  # predicts nothing, so it is shown to nobody
    has_lead_BL = _spread_first(lead_BL, batch)
    positions_BL = (batch.positions_BL() - has_lead_BL.long()).clamp(min=0)
    earlier_LL = torch.ones(batch.length, batch.length, dtype=torch.bool, device=ids_BL.device).tril()
    visible_BQK = _same_group(batch.group_BL) & earlier_LL & (~lead_BL[:, None, :] | _itself(batch))
    return Inputs(ids_BL, positions_BL, visible_BQK)


def is_ordered(visibility: Visibility) -> bool:
    """Whether the order is part of what is read, with a query for each prediction."""
    return visibility in ("order-causal", "two-stream")


def hidden_inputs(
    batch: Batch, hidden_BL: Tensor, rank_BL: Tensor, visibility: Visibility, mask_id: int
) -> tuple[Inputs, int]:
    """What is read to predict hidden tokens from all that is known, and the slot that predicts token 0.

    `rank_BL` orders the known tokens; the ordered visibilities alone depend on it.
    """
    seen_BL = torch.where(hidden_BL, mask_id, batch.ids_BL)
    match visibility:
        case "bidirectional":
            return bidirectional_inputs(batch, seen_BL), 0
        case "known-only":
            return known_only_inputs(batch, seen_BL, hidden_BL), 0
        case "order-causal":
            return partly_ordered_inputs(batch, seen_BL, hidden_BL, rank_BL), 0
        case "two-stream":
            last_BL = torch.where(hidden_BL, NEVER, rank_BL)
            return ordered_inputs(batch, last_BL, visibility, mask_id), batch.length
        case "causal":
            return causal_inputs(batch, mask_id), 0


def partly_ordered_inputs(batch: Batch, seen_ids_BL: Tensor, hidden_BL: Tensor, rank_BL: Tensor) -> Inputs:
    """Order-causal rows of L slots instead of 2L: a token where it is known, its query where it is hidden.

    Nobody would see the tokens of hidden slots, and nobody asks for the known ones.
    """
    rank_BL = torch.where(hidden_BL, NEVER, rank_BL)
    earlier_BQK = (rank_BL[:, None, :] <= rank_BL[:, :, None]) & ~hidden_BL[:, None, :]
    visible_BQK = _same_group(batch.group_BL) & (earlier_BQK | _itself(batch))
    return Inputs(seen_ids_BL, batch.positions_BL(), visible_BQK)


def ordered_inputs(
    batch: Batch, rank_BL: Tensor, visibility: Visibility, mask_id: int, asked_BQ: Tensor | None = None
) -> Inputs:
    """Order-causal or two-stream."""
    sees_itself = visibility == "order-causal"
    return order_causal_inputs(batch, rank_BL, mask_id, sees_itself=sees_itself, asked_BQ=asked_BQ)


def order_causal_inputs(
    batch: Batch, rank_BL: Tensor, mask_id: int, *, sees_itself: bool = True, asked_BQ: Tensor | None = None
) -> Inputs:
    """Rows of 2L slots: the tokens, then a query for each of them; slot L + i predicts token i.

    Without `sees_itself`, a query does so only where there is no token to see. With `asked_BQ`, slots of each row
    padded with -1, there are queries for these alone: slot L + q predicts the q-th of them.
    """
    same_BQK = _same_group(batch.group_BL)
    rank_of_key, rank_of_query = rank_BL[:, None, :], rank_BL[:, :, None]
    token_sees_token = same_BQK & (rank_of_key <= rank_of_query)
    query_sees_token = same_BQK & (rank_of_key < rank_of_query)
    positions_BL = batch.positions_BL()
    places_BQ = positions_BL
    if asked_BQ is not None:
        index_BQ = asked_BQ.clamp(min=0)  # what fills up a row is a query of its first token that nobody reads
        places_BQ = positions_BL.gather(1, index_BQ)
        query_sees_token = query_sees_token.gather(1, index_BQ[:, :, None].expand(-1, -1, batch.length))
    size = places_BQ.shape[1]
    itself = torch.eye(size, dtype=torch.bool, device=rank_BL.device).expand(batch.num_rows, -1, -1)
    if not sees_itself:
        itself = itself & ~query_sees_token.any(dim=2, keepdim=True)
    visible_BQK = torch.cat(
        [
            F.pad(token_sees_token, (0, size)),
            torch.cat([query_sees_token, itself], dim=2),
        ],
        dim=1,
    )
    return Inputs(
        torch.cat([batch.ids_BL, torch.full_like(places_BQ, mask_id)], dim=1),
        torch.cat([positions_BL, places_BQ], dim=1),
        visible_BQK,
        streams=2,
        num_tokens=None if asked_BQ is None else batch.length,
    )


def _run(batch: Batch) -> Tensor:
    return torch.arange(batch.length, device=batch.ids_BL.device)[None]


def _same_group(group_BL: Tensor) -> Tensor:
    """Padding forms a group of its own, so that nobody is left without anything to see."""
    return group_BL[:, :, None] == group_BL[:, None, :]


def _itself(batch: Batch) -> Tensor:
    return torch.eye(batch.length, dtype=torch.bool, device=batch.ids_BL.device)[None]


def _spread_first(flag_BL: Tensor, batch: Batch) -> Tensor:
    """For each slot, the flag of the first slot of its text."""
    slot_L = torch.arange(batch.length, device=flag_BL.device)
    return flag_BL.gather(1, slot_L - batch.positions_BL())
