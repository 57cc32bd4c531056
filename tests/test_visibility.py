"""Nobody sees what it may not: by gradients, through a whole network, under each visibility."""

import pytest
import torch
from torch import Tensor

from fakes import MASK, bare_batch, framed_batch, random_rows, tiny_model
from pmlm.batch import Batch
from pmlm.model import Inputs, LanguageModel, Slots
from pmlm.visibility import (
    bidirectional_inputs,
    causal_inputs,
    known_only_inputs,
    order_causal_inputs,
    ordered_inputs,
    reading_inputs,
)

SCHEMES = ["absolute", "relative", "relative-sinusoidal", "rotary", "transformer-xl"]


def influence(model: LanguageModel, inputs: Inputs, slot: int) -> list[bool]:
    """For each slot, whether its input embedding moves the logits at `slot` (row 0)."""
    caught: list[Tensor] = []
    hook = model.backbone.tokens.register_forward_hook(lambda _m, _i, out: caught.append(out))
    logits = model(inputs, Slots(torch.tensor([0]), torch.tensor([slot])))
    hook.remove()
    (grad,) = torch.autograd.grad(logits[0, 3:].pow(2).sum(), caught[0])
    return (grad[0].abs().sum(-1) > 0).tolist()


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_bidirectional_sees_its_own_text_and_nothing_else(positions: str, norm: str) -> None:
    model = tiny_model(positions=positions, norm=norm)
    group = torch.tensor([[0, 0, 0, 1, 1, -1]])
    batch = Batch(torch.tensor([[3, 4, 5, 6, 7, 0]]), group >= 0, group)
    inputs = bidirectional_inputs(batch, batch.ids_BL)
    assert influence(model, inputs, 1) == [True, True, True, False, False, False]
    assert influence(model, inputs, 4) == [False, False, False, True, True, False]


@pytest.mark.parametrize("positions", SCHEMES)
def test_known_only_hides_the_hidden_from_each_other(positions: str) -> None:
    model = tiny_model(positions=positions)
    batch = bare_batch([3, 4, 5, 6])
    hidden = torch.tensor([[False, True, False, True]])
    inputs = known_only_inputs(batch, torch.where(hidden, MASK, batch.ids_BL), hidden)
    assert influence(model, inputs, 1) == [True, True, True, False]
    assert influence(model, inputs, 0) == [True, False, True, False]


@pytest.mark.parametrize("positions", SCHEMES)
def test_causal_slot_i_predicts_token_i_from_earlier_tokens_alone(positions: str) -> None:
    model = tiny_model(positions=positions)
    batch = framed_batch([3, 4, 5])
    inputs = causal_inputs(batch, MASK)
    assert inputs.ids_BL.tolist() == [[MASK, 1, 3, 4, 5]]
    assert inputs.positions_BL.tolist() == [[0, 0, 1, 2, 3]]
    assert influence(model, inputs, 1) == [False, True, False, False, False]  # the lead slot is shown to nobody
    assert influence(model, inputs, 3) == [False, True, True, True, False]


def test_causal_text_without_a_marker_starts_from_the_unknown() -> None:
    model = tiny_model()
    inputs = causal_inputs(bare_batch([3, 4, 5]), MASK)
    assert inputs.ids_BL.tolist() == [[MASK, 3, 4]]
    assert inputs.positions_BL.tolist() == [[0, 1, 2]]
    assert influence(model, inputs, 0) == [True, False, False]
    assert influence(model, inputs, 2) == [True, True, True]


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_order_causal_queries_see_given_and_earlier_tokens_and_nobody_sees_a_query(positions: str, norm: str) -> None:
    model = tiny_model(positions=positions, norm=norm)
    batch = framed_batch([3, 4, 5, 6])
    rank = torch.tensor([[0, 2, 0, 3, 1, 0]])  # slots 0, 2, 5 given; then 4, 1, 3
    inputs = order_causal_inputs(batch, rank, MASK)
    tokens = {
        4: [True, False, True, False, False, True],
        1: [True, False, True, False, True, True],
        3: [True, True, True, False, True, True],
    }
    for slot, seen in tokens.items():
        itself = [i == slot for i in range(6)]
        assert influence(model, inputs, 6 + slot) == seen + itself
        assert influence(model, inputs, slot) == [a or b for a, b in zip(seen, itself, strict=True)] + [False] * 6
    assert influence(model, inputs, 2) == [True, False, True, False, False, True] + [False] * 6


@pytest.mark.parametrize("positions", SCHEMES)
def test_two_stream_queries_read_content_alone_and_themselves_only_where_there_is_none(positions: str) -> None:
    model = tiny_model(positions=positions)
    batch = bare_batch([3, 4, 5, 6])
    rank = torch.tensor([[2, 0, 0, 1]])
    inputs = order_causal_inputs(batch, rank, MASK, sees_itself=False)
    visible = inputs.visible_BQK
    assert visible is not None
    assert not visible[0, [4, 7], 4:].any()
    assert visible[0, :4, :4].tolist() == order_causal_inputs(batch, rank, MASK).visible_BQK[0, :4, :4].tolist()  # type: ignore[index]
    # through the network a query also moves its own output by its residual path, and nobody else's
    assert influence(model, inputs, 7) == [False, True, True, False, False, False, False, True]
    assert influence(model, inputs, 4) == [False, True, True, True, True, False, False, False]
    nothing_given = order_causal_inputs(batch, torch.tensor([[1, 2, 3, 4]]), MASK, sees_itself=False)
    assert influence(model, nothing_given, 4) == [False] * 4 + [True, False, False, False]
    assert torch.isfinite(model(nothing_given, Slots(torch.tensor([0]), torch.tensor([4])))[:, 3:]).all()


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "order-causal", "known-only", "two-stream"])
def test_padding_packing_and_neighbours_change_no_logit(positions: str, kind: str) -> None:
    model = tiny_model(positions=positions)
    row = random_rows(1, 6)[0]

    def logits(batch: Batch, b: int, start: int) -> Tensor:
        slots = torch.arange(start, start + len(row))
        rank = torch.where(batch.maskable_BL, (batch.positions_BL() * 5) % 7 + 1, 0)
        hidden = batch.maskable_BL & (batch.positions_BL() % 2 == 0)
        seen = torch.where(hidden, MASK, batch.ids_BL)
        match kind:
            case "bidirectional":
                inputs = bidirectional_inputs(batch, seen)
            case "known-only":
                inputs = known_only_inputs(batch, seen, hidden)
            case "causal":
                inputs = causal_inputs(batch, MASK)
            case _:
                inputs, slots = ordered_inputs(batch, rank, kind, MASK), slots + batch.length  # type: ignore[arg-type]
        return model(inputs, Slots(torch.full_like(slots, b), slots))[:, 3:]

    alone = logits(bare_batch(row), 0, 0)
    padded = logits(bare_batch(random_rows(1, 15, 1)[0], row, [4], length=20), 1, 0)
    group = torch.tensor([[0] * 5 + [1] * 6 + [2] * 3 + [-1] * 2])
    ids = torch.tensor([random_rows(1, 5, 2)[0] + row + random_rows(1, 3, 3)[0] + [0, 0]])
    packed = logits(Batch(ids, group >= 0, group), 0, 5)
    assert (alone - padded).abs().max() < 1e-5
    assert (alone - packed).abs().max() < 1e-5
    assert alone.std() > 0.1


@pytest.mark.parametrize("positions", SCHEMES)
def test_reading_a_whole_text_gives_the_states_that_prediction_gives_where_nothing_is_hidden(positions: str) -> None:
    backbone = tiny_model(positions=positions).backbone
    batch = framed_batch(*random_rows(2, 5), random_rows(1, 3)[0])
    none = torch.zeros_like(batch.maskable_BL)
    is_token = batch.group_BL >= 0
    both_ways = backbone(reading_inputs(batch, "order-causal"))[is_token]
    ordered = backbone(order_causal_inputs(batch, torch.zeros_like(batch.ids_BL), MASK))[:, : batch.length]
    assert torch.allclose(ordered[is_token], both_ways, atol=1e-5)
    assert torch.allclose(backbone(known_only_inputs(batch, batch.ids_BL, none))[is_token], both_ways, atol=1e-5)
    rightward = backbone(reading_inputs(batch, "causal"))
    shifted = backbone(causal_inputs(batch, MASK))
    assert torch.allclose(rightward[:, :4], shifted[:, 1:5], atol=1e-5)
    assert not torch.allclose(rightward[is_token], both_ways, atol=1e-2)
