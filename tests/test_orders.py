"""Orders: names, lists, policies and their ties."""

import pytest
import torch

from pmlm.errors import OrderError
from pmlm.orders import NAMED_ORDERS, Order, arrange, choose, parse_order
from pmlm.runtime import generator


def test_names_and_lists_are_read() -> None:
    for name in NAMED_ORDERS:
        assert str(parse_order(name)) == name
    assert parse_order(" 2,0, 1 ") == Order("list", (2, 0, 1))
    assert str(parse_order("2,0,1")) == "2,0,1"


@pytest.mark.parametrize("bad", ["", "sideways", "1,x", "1,,2", "list", "0,1,0"])
def test_malformed_orders_are_refused(bad: str) -> None:
    with pytest.raises(OrderError):
        parse_order(bad)


@pytest.mark.parametrize("name", ["l2r", "r2l", "random", "nearest"])
def test_every_order_names_each_position_once(name: str) -> None:
    positions = [4, 1, 9, 7]
    got = arrange(parse_order(name), positions, [0, 12], generator(1))
    assert sorted(got) == sorted(positions)
    if name in ("l2r", "r2l"):
        assert got == sorted(positions, reverse=name == "r2l")


def test_random_orders_are_uniform_and_seeded() -> None:
    seen = [tuple(arrange(Order("random"), [1, 2, 3], [], generator(i))) for i in range(600)]
    assert len(set(seen)) == 6
    assert max(seen.count(o) for o in set(seen)) < 150
    assert seen[0] == tuple(arrange(Order("random"), [3, 2, 1], [], generator(0)))


@pytest.mark.parametrize("order", [(0, 1), (0, 1, 2, 3), (0, 1, 5)])
def test_a_list_that_is_no_permutation_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(OrderError, match="position"):
        arrange(Order("list", order), [0, 1, 2], [], generator(0))


def test_policies_choose_what_they_are_named_for_and_ties_go_left() -> None:
    logp = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.39, 0.01], [0.55, 0.225, 0.225]]).log()
    assert choose("confidence", logp) == 1
    assert choose("margin", logp) == 2
    assert choose("entropy", logp) == 1
    assert choose("entropy", torch.tensor([[0.4, 0.3, 0.3], [1.0, 0.0, 0.0]]).log()) == 1
    even = torch.full((4, 3), 1 / 3).log()
    assert [choose(kind, even) for kind in ("confidence", "margin", "entropy")] == [0, 0, 0]  # type: ignore[arg-type]


def test_nearest_grows_outwards_from_what_is_known() -> None:
    assert arrange(Order("nearest"), [1, 2, 3, 4, 5], [0, 6], generator(0)) == [1, 5, 2, 4, 3]
    assert arrange(Order("nearest"), [1, 2, 4, 6, 7, 8], [0, 3, 5, 9], generator(0)) == [4, 1, 2, 6, 8, 7]
    assert arrange(Order("nearest"), [1, 2, 3, 4, 5], [3 + 3], generator(0)) == [5, 4, 3, 2, 1]
    assert arrange(Order("nearest"), [0, 1, 2, 5, 6, 9], [4], generator(0)) == [5, 6, 2, 1, 0, 9]
    assert arrange(Order("nearest"), [2, 5], [], generator(0)) == [2, 5]
