"""First weights: heads that begin by looking at a neighbour."""

from typing import Any

import pytest
import torch

from fakes import tiny_config
from pmlm.errors import ConfigError
from pmlm.model import Inputs, build_model, start
from pmlm.model.attention import Scene
from pmlm.model.positions import Geometry
from pmlm.model.start import neighbours
from pmlm.runtime import generator

L = 16
"""Slots, and the width of a head, so that values can say which slot was looked at."""


def looked_at(positions: str, near_start: float, num_heads: int = 4) -> torch.Tensor:
    """[layers, H, L, L] the probabilities of attention where there is no content."""
    config = tiny_config(
        positions=positions, near_start=near_start, num_heads=num_heads, width=num_heads * L, max_length=L,
        relative_clip=L, init_std=1e-6,
    )  # fmt: skip
    backbone = build_model(config, generator(1)).backbone
    places = torch.arange(L)[None]
    rotation = None if backbone.rotary is None else backbone.rotary.angles(places)
    found = []
    for layer in backbone.layers:
        q, k, _ = layer.attention.qkv(torch.zeros(1, L, config.width)).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # fmt: skip
        if backbone.rotary is not None:
            q, k = (backbone.rotary.rotate(x, *rotation) for x in (q, k))
        v = torch.eye(L).expand(1, num_heads, L, L)
        mixed = layer.attention.attend(q, k, v, Scene(Geometry(places, places, 1), None, rotation))
        if positions == "relative-sinusoidal":  # its value vectors are not small: what they add is taken away again
            p = layer.attention.attend(q, k, 0 * v, Scene(Geometry(places, places, 1), None, rotation))
            mixed = mixed - p
        found.append(mixed[0])
    return torch.stack(found).detach()


@pytest.mark.parametrize("positions", ["relative", "relative-sinusoidal", "rotary", "transformer-xl"])
def test_half_of_the_heads_begin_at_a_neighbour_and_the_others_anywhere(positions: str) -> None:
    probabilities = looked_at(positions, near_start=1.5)
    for head, neighbour in enumerate([-1, 1]):
        for i in range(3, L - 3):
            row = probabilities[:, head, i]
            assert (row.argmax(-1) == i + neighbour).all()
            for beside in (neighbour - 1, neighbour + 1):
                nats = row[:, i + neighbour].log() - row[:, i + beside].log()
                assert torch.allclose(nats, torch.tensor(1.5), atol=1e-3)
    assert torch.allclose(probabilities[:, 2:], torch.tensor(1 / L), atol=1e-3)


@pytest.mark.parametrize("positions", ["relative", "rotary", "transformer-xl"])
def test_without_it_every_head_begins_anywhere(positions: str) -> None:
    assert torch.allclose(looked_at(positions, near_start=0.0), torch.tensor(1 / L), atol=1e-3)


@pytest.mark.parametrize("positions", ["relative", "relative-sinusoidal", "transformer-xl"])
def test_tables_shorter_than_the_furthest_neighbour_are_no_obstacle(positions: str) -> None:
    config = tiny_config(positions=positions, near_start=2.0, num_heads=8, width=32, relative_clip=1)
    assert all(p.isfinite().all() for p in build_model(config, generator(1)).parameters())


def test_more_heads_look_further() -> None:
    assert [neighbours(n) for n in (1, 2, 4, 12)] == [[-1], [-1], [-1, 1], [-1, 1, -2, 2, -3, 3]]


@pytest.mark.parametrize(("norm", "norm_input"), [("pre", True), ("post", True), ("post", False)])
def test_with_absolute_positions_too_whatever_the_norms(norm: str, norm_input: bool) -> None:
    config = tiny_config(
        positions="absolute", near_start=1.5, num_heads=4, width=4 * L, max_length=L, init_std=1e-6, norm=norm,
        norm_input=norm_input,
    )  # fmt: skip
    backbone, places = build_model(config, generator(1)).backbone, torch.arange(L)[None]
    for number, layer in enumerate(backbone.layers):
        x = backbone.embed(Inputs(torch.zeros(1, L, dtype=torch.long), places))
        x = layer.attention_norm(x) if norm == "pre" or number else x  # a layer above reads what was normed before it
        q, k, _ = layer.attention.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        score = (layer.attention.scale * q @ k.mT)[0]
        for head, neighbour in enumerate([-1, 1]):
            for i in range(3, L - 3):
                assert score[head, i].argmax() == i + neighbour
                for beside in (neighbour - 1, neighbour + 1):
                    assert (score[head, i, i + neighbour] - score[head, i, i + beside]).item() == pytest.approx(
                        1.5, abs=0.02
                    )
        assert score[2:].abs().max() < 1e-3


def test_tokens_that_have_grown_do_not_drown_absolute_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def advantage(height: float) -> float:
        """Nats by which the neighbour is ahead of the average slot, with tokens of five times their first size."""
        monkeypatch.setattr(start, "HEIGHT", height)
        config = tiny_config(
            positions="absolute", near_start=2.0, num_heads=4, width=128, max_length=32, norm="pre", init_std=0.02
        )
        backbone = build_model(config, generator(1)).backbone
        grown = 0.1 * torch.randn(8, 32, 128, generator=generator(2))
        layer = backbone.layers[0]
        x = layer.attention_norm(backbone.places(torch.arange(32)[None]) + grown)
        q, k, _ = layer.attention.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        score = layer.attention.scale * (q @ k.mT)[:, 0]
        return (score.diagonal(-1, 1, 2).mean() - score.mean()).item()

    usual = advantage(start.HEIGHT)
    assert usual > 2.0
    assert advantage(0.02) < usual / 2


@pytest.mark.parametrize(
    "changes",
    [{"positions": "rotary", "near_start": -1.0}, {"positions": "rotary", "near_start": float("nan")},
     {"positions": "absolute", "near_start": 1.0, "width": 2, "num_heads": 1}],
)  # fmt: skip
def test_a_start_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="near_start"):
        tiny_config(**changes)
