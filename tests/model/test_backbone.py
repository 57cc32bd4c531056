"""The network: sizes, heads, flags, and running only where a prediction is wanted."""

import math

import pytest
import torch

from fakes import bare_batch, framed_batch, random_rows, tiny_config, tiny_model
from pmlm.errors import ConfigError
from pmlm.model import HeadSpec, LanguageModel, ModelConfig, Slots, build_model, build_task_model
from pmlm.runtime import generator
from pmlm.visibility import bidirectional_inputs


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["absolute", "relative", "rotary"])
def test_wanted_slots_get_what_a_full_pass_gives_them(norm: str, positions: str) -> None:
    backbone = tiny_model(norm=norm, positions=positions).backbone
    batch = framed_batch(*random_rows(3, 6))
    inputs = bidirectional_inputs(batch, batch.ids_BL)
    at = Slots(torch.tensor([0, 2, 2]), torch.tensor([1, 0, 5]))
    assert torch.allclose(backbone(inputs, at), backbone(inputs)[at.rows_M, at.slots_M], atol=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_network_is_the_textbook_transformer(norm: str) -> None:
    """Layer by layer from the parameters, one head at a time."""
    model = tiny_model(norm=norm, forbidden_ids=())
    p = dict(model.state_dict())
    batch = bare_batch(*random_rows(1, 6))

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    x = p["backbone.tokens.weight"][batch.ids_BL[0]] + p["backbone.places.weight"][:6]
    x = normed(x, "backbone.input_norm") if norm == "post" else x
    for n in range(2):
        at = f"backbone.layers.{n}"
        q, k, v = linear(normed(x, f"{at}.attention_norm") if norm == "pre" else x, f"{at}.attention.qkv").chunk(3, -1)
        heads = [
            torch.softmax(q[:, h] @ k[:, h].T / math.sqrt(8), -1) @ v[:, h]
            for h in (slice(8 * i, 8 * i + 8) for i in range(4))
        ]
        x = x + linear(torch.cat(heads, -1), f"{at}.project")
        x = normed(x, f"{at}.attention_norm") if norm == "post" else x
        y = normed(x, f"{at}.ff_norm") if norm == "pre" else x
        x = x + linear(gelu(linear(y, f"{at}.up")), f"{at}.down")
        x = normed(x, f"{at}.ff_norm") if norm == "post" else x
    x = normed(x, "backbone.output_norm") if norm == "pre" else x
    logits = normed(gelu(linear(x, "head.transform")), "head.norm") @ p["backbone.tokens.weight"].T + p["head.bias"]
    got = model(bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL))
    assert torch.allclose(got, logits, atol=1e-4)


def test_forbidden_ids_have_probability_zero_and_get_no_output_gradient() -> None:
    model = tiny_model(forbidden_ids=(0, 1, 2))
    batch = bare_batch([3, 4, 5])
    logits = model(bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL))
    p = logits.softmax(-1)
    assert (p[:, :3] == 0).all()
    assert torch.allclose(p.sum(-1), torch.ones(3))
    torch.nn.functional.cross_entropy(logits, torch.tensor([3, 4, 5])).backward()
    assert all(torch.isfinite(q.grad).all() for q in model.parameters() if q.grad is not None)
    assert (model.head.bias.grad[:3] == 0).all()
    assert (model.backbone.tokens.weight.grad[:3] == 0).all()


def test_bert_base_has_berts_size() -> None:
    config = ModelConfig(vocab_size=28_996, num_token_types=2, max_length=512)
    with torch.device("meta"):
        model = LanguageModel(config)
    encoder = sum(p.numel() for p in model.backbone.parameters())
    assert encoder == 28_996 * 768 + 512 * 768 + 2 * 768 + 2 * 768 + 12 * 7_087_872
    assert model.num_parameters() - encoder == 768 * 768 + 768 + 2 * 768 + 28_996


def test_unscaled_attention_is_the_scaled_one_with_larger_queries() -> None:
    scaled, unscaled = tiny_model(), tiny_model(scale_attention=False)
    width = 32
    with torch.no_grad():
        for layer in unscaled.backbone.layers:
            layer.attention.qkv.weight[:width] /= math.sqrt(8)
            layer.attention.qkv.bias[:width] /= math.sqrt(8)
    batch = bare_batch(*random_rows(2, 5))
    inputs, at = bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL)
    assert torch.allclose(scaled(inputs, at)[:, 3:], unscaled(inputs, at)[:, 3:], atol=1e-5)
    assert not torch.allclose(
        scaled(inputs, at)[:, 3:], tiny_model(scale_attention=False)(inputs, at)[:, 3:], atol=1e-2
    )


def test_token_types_are_told_apart_and_default_to_the_first() -> None:
    model = tiny_model(num_token_types=2)
    batch = bare_batch(*random_rows(1, 5))
    inputs, at = bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL)

    def with_types(value: int) -> torch.Tensor:
        from dataclasses import replace

        return model(replace(inputs, token_types_BL=torch.full_like(batch.ids_BL, value)), at)[:, 3:]

    assert torch.allclose(model(inputs, at)[:, 3:], with_types(0), atol=1e-6)
    assert not torch.allclose(with_types(0), with_types(1), atol=1e-3)


SPECS = [
    HeadSpec(name="first", kind="classes", labels=("a", "b", "c")),
    HeadSpec(name="last", kind="classes", labels=("a", "b", "c"), pooling="last"),
    HeadSpec(name="mean", kind="classes", labels=("a", "b", "c"), pooling="mean"),
    HeadSpec(name="linear", kind="classes", labels=("a", "b", "c"), pooling="mean", linear=True),
    HeadSpec(name="number", kind="number", high=5.0),
    HeadSpec(name="span", kind="span"),
]


def test_the_heads_of_tasks_read_one_backbone_and_ignore_padding() -> None:
    backbone = tiny_model(num_token_types=2).backbone
    model = build_task_model(backbone, SPECS, generator(1)).eval()
    short, padded = framed_batch([3, 4, 5]), framed_batch([3, 4, 5], random_rows(1, 9)[0])
    inputs = [bidirectional_inputs(b, b.ids_BL) for b in (short, padded)]
    tokens = [b.group_BL >= 0 for b in (short, padded)]
    said = {spec.name: [model(i, t, spec.name) for i, t in zip(inputs, tokens, strict=True)] for spec in SPECS}
    for name, (one, two) in said.items():
        assert two.shape == {"number": (2, 1), "span": (2, 11, 2)}.get(name, (2, 3))
        assert torch.allclose(one[0], two[0, :5] if name == "span" else two[0], atol=1e-5), name
    assert (said["span"][1][0, 5:] == -torch.inf).all()
    hidden = backbone(inputs[0])[0]
    for name, pooled in {"first": hidden[0], "last": hidden[-1], "mean": hidden.mean(0)}.items():
        head = model.heads[name]
        assert torch.allclose(head.output(head.pooler(pooled)), said[name][0][0], atol=1e-5), name
    assert torch.allclose(model.heads["linear"].output(hidden.mean(0)), said["linear"][0][0], atol=1e-5)


def test_a_frozen_backbone_learns_nothing_and_is_read_without_dropout() -> None:
    model = build_task_model(tiny_model(dropout=0.5).backbone, SPECS[:1], generator(1), frozen=True).train()
    batch = framed_batch([3, 4, 5])
    inputs, tokens = bidirectional_inputs(batch, batch.ids_BL), batch.group_BL >= 0
    assert torch.equal(model.backbone(inputs), model.backbone(inputs))
    model(inputs, tokens, "first").sum().backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is not None for p in model.heads.parameters())


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "a.b", "kind": "span"},
        {"name": "x", "kind": "classes", "labels": ("a",)},
        {"name": "x", "kind": "number"},
    ],
)
def test_heads_that_cannot_be_are_refused(spec: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        HeadSpec(**spec)  # type: ignore[arg-type]


def test_initialisation_is_a_function_of_the_seed() -> None:
    one, same, other = (build_model(tiny_config(init_std=0.02), generator(seed)) for seed in (1, 1, 2))
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.backbone.tokens.weight, other.backbone.tokens.weight)
    assert one.backbone.tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (one.backbone.layers[0].ff_norm.weight == 1).all()


def test_dropout_acts_in_training_alone() -> None:
    model = tiny_model(dropout=0.5)
    batch = bare_batch(*random_rows(1, 5))
    inputs, at = bidirectional_inputs(batch, batch.ids_BL), Slots.where(batch.maskable_BL)
    assert torch.equal(model(inputs, at), model(inputs, at))
    model.train()
    assert not torch.equal(model(inputs, at), model(inputs, at))


@pytest.mark.parametrize("bad", [{"width": 30}, {"num_layers": 0}, {"dropout": 1.0}, {"mask_id": 99}, {"visibilities": ()},
                                 {"width": 12, "positions": "rotary"}])  # fmt: skip
def test_impossible_shapes_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        tiny_config(**bad)
