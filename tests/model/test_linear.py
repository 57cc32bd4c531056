"""Packed weights: the same products, left as soon as the weights change, and no part of what is saved or copied."""

import copy
import pickle

import pytest
import torch

from fakes import framed_batch, random_rows, tiny_model
from pmlm.model import Slots
from pmlm.model.linear import MOST_ROWS, Linear
from pmlm.visibility import bidirectional_inputs


@pytest.mark.parametrize("rows", [1, 2, 3, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("packed_for", [1, 2, MOST_ROWS])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_product_is_the_product(rows: int, packed_for: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = Linear(24, 40, bias=bias), torch.randn(rows, 1, 24)
    expected = linear(x).detach()
    linear.pack(packed_for)
    with torch.no_grad():
        assert torch.allclose(linear(x), expected, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_it_is_left_once_the_weights_have_changed_and_where_gradients_are_wanted(rows: int) -> None:
    torch.manual_seed(0)
    linear, x = Linear(8, 8), torch.randn(rows, 8)
    linear.pack(rows)
    linear(x).sum().backward()
    assert linear.weight.grad is not None
    with torch.no_grad():
        linear.weight.mul_(2.0)
        assert torch.allclose(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias))
        linear.pack(rows)
        assert torch.allclose(linear(x), torch.nn.functional.linear(x, linear.weight, linear.bias), atol=1e-6)


def test_a_packed_model_copies_pickles_and_saves_as_any_other() -> None:
    model = tiny_model()
    names = set(model.state_dict())
    model.pack(2, 1)
    assert set(model.state_dict()) == names
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        assert other.head.packed is None


def test_a_packed_model_predicts_the_same_and_follows_its_weights() -> None:
    model, batch = tiny_model(), framed_batch(*random_rows(1, 3))
    inputs, at = bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL)
    one = Slots(at.rows_M[:1], at.slots_M[:1])
    with torch.no_grad():
        before = model(inputs, one)
        model.pack(batch.length, 1)
        assert torch.allclose(model(inputs, one), before, atol=1e-5)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        fresh = tiny_model()
        fresh.load_state_dict(model.state_dict())
        assert torch.allclose(model(inputs, one), fresh(inputs, one), atol=1e-5)
