"""Position schemes: against the definition, shift-invariance, and the layouts that avoid L x L x E tensors."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fakes import MASK, framed_batch, random_rows, tiny_model
from pmlm.model import Inputs, Slots
from pmlm.model.attention import Attention, Scene
from pmlm.model.positions import Distances, Geometry, RelativeTables, sinusoids
from pmlm.visibility import bidirectional_inputs, order_causal_inputs


def shaw_reference(attention: Attention, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    """Shaw et al. (2018) as written: a vector per pair of slots, added to keys and to values."""
    tables = attention.tables
    assert tables is not None
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    offset = (positions[:, None, :] - positions[:, :, None]).clamp(-tables.clip, tables.clip) + tables.clip
    a_key, a_value = tables.keys[offset], tables.values[offset]  # B L L E
    scores = torch.einsum("bhqe,bhqke->bhqk", q, k[:, :, None] + a_key[:, None]) / math.sqrt(q.shape[-1])
    p = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bhqke->bhqe", p, v[:, :, None] + a_value[:, None]).transpose(1, 2).flatten(2)


def random_visible(streams: int, run: int) -> Tensor:
    size = streams * run
    itself = torch.eye(size, dtype=torch.bool)
    visible = (torch.rand(2, size, size, generator=torch.Generator().manual_seed(2)) < 0.6) | itself
    if streams == 2:  # nobody sees a query but itself
        visible[:, :, run:] = itself[:, run:]
    return visible


@pytest.mark.parametrize("scheme", ["relative", "relative-sinusoidal"])
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("run", [1, 3, 9])
def test_relative_attention_is_shaws(scheme: str, streams: int, run: int) -> None:
    attention = tiny_model(positions=scheme, relative_clip=4).backbone.layers[0].attention
    x = torch.randn(2, streams * run, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(run).repeat(streams)[None].expand(2, -1)
    visible = random_visible(streams, run)
    expected = shaw_reference(attention, x, positions, visible)
    for layout in (streams, 0):
        got = attention(x, Scene(Geometry(positions, positions, layout), visible, None))
        assert torch.allclose(got, expected, atol=1e-5)


def transformer_xl_reference(attention: Attention, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
    """Dai et al. (2019) as written: (q + u) k + (q + v) W_r R_{i-j}, one pair of slots at a time."""
    tables = attention.tables
    assert isinstance(tables, Distances)
    heads, width = attention.num_heads, x.shape[-1]
    q, k, v = attention.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    distance = (positions[:, :, None] - positions[:, None, :]).clamp(-tables.clip, tables.clip)
    rate = 10000 ** (-torch.arange(0, width, 2) / width)
    waves = torch.stack([(distance[..., None] * rate).sin(), (distance[..., None] * rate).cos()], -1).flatten(-2)
    keys = tables.project(waves).unflatten(-1, (heads, -1))  # B L L H E
    content = torch.einsum("bhqe,bhke->bhqk", q + tables.content_bias[:, None], k)
    place = torch.einsum("bhqe,bqkhe->bhqk", q + tables.distance_bias[:, None], keys)
    scores = (content + place) / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("run", [1, 3, 9])
def test_transformer_xl_attention_is_dais(streams: int, run: int) -> None:
    attention = tiny_model(positions="transformer-xl", relative_clip=4).backbone.layers[0].attention
    for bias in (attention.tables.content_bias, attention.tables.distance_bias):
        torch.nn.init.normal_(bias)
    x = torch.randn(2, streams * run, 32, generator=torch.Generator().manual_seed(1))
    positions = torch.arange(run).repeat(streams)[None].expand(2, -1)
    visible = random_visible(streams, run)
    expected = transformer_xl_reference(attention, x, positions, visible)
    for layout in (streams, 0):
        got = attention(x, Scene(Geometry(positions, positions, layout), visible, None))
        assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("scheme", ["absolute", "rotary", "relative", "transformer-xl"])
def test_tokens_and_queries_apart_are_the_row_as_one(scheme: str) -> None:
    """The two-stream layout leaves out work, not terms: outputs and gradients are those of full attention."""
    attention = tiny_model(positions=scheme).backbone.layers[0].attention
    positions = torch.arange(7).repeat(2)[None].expand(2, -1)
    visible = random_visible(2, 7)
    visible[0, 8, 8] = False  # a query that does not see itself, as XLNet's
    visible[0, 8, 0] = True
    results = []
    for streams in (2, 0):
        x = torch.randn(2, 14, 32, generator=torch.Generator().manual_seed(1), requires_grad=True)
        out = attention(x, Scene(Geometry(positions, positions, streams), visible, None))
        weights = torch.arange(out.numel()).view_as(out).cos()
        results.append((out, *torch.autograd.grad((out * weights).sum(), [x, attention.qkv.weight])))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_layouts_have_equal_gradients() -> None:
    tables = RelativeTables(3, 8, learned=True)
    torch.nn.init.normal_(tables.keys)
    torch.nn.init.normal_(tables.values)
    positions = torch.arange(6)[None]
    grads = []
    for streams in (1, 0):
        q = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
        geometry = Geometry(positions, positions, streams)
        out = tables.mix(tables.scores(q, geometry).softmax(-1), geometry).pow(2).sum()
        grads.append(torch.autograd.grad(out, [q, tables.keys, tables.values]))
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("scheme", "invariant"),
    [
        ("relative", True),
        ("relative-sinusoidal", True),
        ("rotary", True),
        ("transformer-xl", True),
        ("absolute", False),
    ],
)
@pytest.mark.parametrize("kind", ["bidirectional", "order-causal"])
def test_only_differences_of_position_matter_except_in_absolute(scheme: str, invariant: bool, kind: str) -> None:
    model = tiny_model(positions=scheme)
    batch = framed_batch(*random_rows(2, 7))
    if kind == "bidirectional":
        inputs = bidirectional_inputs(batch, batch.ids_BL)
    else:
        inputs = order_causal_inputs(batch, torch.where(batch.maskable_BL, batch.positions_BL(), 0), MASK)
    at = Slots(torch.tensor([0, 1, 1]), torch.tensor([2, 3, inputs.ids_BL.shape[1] - 2]))
    moved = replace(inputs, positions_BL=inputs.positions_BL + 9)
    change = (model(inputs, at) - model(moved, at))[:, 3:].abs().max()
    assert (change < 1e-4) == invariant


def test_distance_beyond_the_clip_is_one_distance() -> None:
    model = tiny_model(positions="relative", relative_clip=3)
    ids = torch.tensor([[4, 5, 6]])
    at = Slots(torch.tensor([0]), torch.tensor([0]))
    far = [model(Inputs(ids, torch.tensor([[0, p, p + 1]]), streams=0), at)[0, 3:] for p in (4, 9)]
    near = model(Inputs(ids, torch.tensor([[0, 1, 2]]), streams=0), at)[0, 3:]
    assert torch.allclose(far[0], far[1], atol=1e-6)
    assert (far[0] - near).abs().max() > 1e-3


def test_sinusoids_are_those_of_the_authors_release() -> None:
    table = sinusoids(torch.arange(255), 64)
    for row, pair in ((0, 0), (17, 3), (254, 31)):
        angle = row / 10000 ** (2 * pair / 64)
        assert table[row, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[row, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)
    model = tiny_model(positions="relative-sinusoidal")
    assert not any("tables" in name for name, _ in model.named_parameters())
