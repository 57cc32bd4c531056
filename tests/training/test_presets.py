"""Every preset decodes, is complete, and trains two steps (at its own objective, positions and optimizer)."""

import tomllib
from dataclasses import fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fakes import bare_batch, random_rows
from pmlm.corpus.shards import Corpus
from pmlm.errors import ConfigError
from pmlm.masking import Masking, Prior
from pmlm.model import ModelConfig, build_model
from pmlm.model.config import Positions
from pmlm.objectives import APLM, GPT, XLNET, Objective, prepare, weighted_nll
from pmlm.runtime import RowRandom, generator
from pmlm.training.plan import count_parameters, flops_per_token, make_plan
from pmlm.training.run import Run
from pmlm.training.settings import TrainSettings, load_settings, preset_names
from pmlm.training.trainer import StepReport

PRESETS = preset_names()
OPTIONAL = {
    "micro_rows",
    "end",
    "start_prior",
    "ramp",
    "mean_span",
    "given_prob",
    "order",
    "masking",
    "masks",
    "visibility",
    "ratio",
    "low",
    "high",
    "a",
    "b",
    "weights",
}


def test_the_papers_five_models_exist_at_three_scales_and_one_for_both_visibilities_at_two() -> None:
    models = ("u-pmlm-a", "u-pmlm-r", "bert", "gpt", "xlnet")
    assert set(PRESETS) >= {f"{scale}-{model}" for scale in ("paper", "laptop", "tiny") for model in models}
    for name in ("laptop-both", "tiny-both"):
        assert load_settings(name, []).objective.trained_visibilities() == ("order-causal", "bidirectional")


def test_laptop_presets_differ_in_model_and_objective_alone() -> None:
    """What is compared is the objective and the positions; all else is the recipe search's."""
    laptops = [replace(load_settings(name, []), name="", about="") for name in PRESETS if name.startswith("laptop-")]
    plain = {replace(s, model=laptops[0].model, objective=laptops[0].objective) for s in laptops}
    assert len(plain) == 1
    assert len({replace(s.model, positions="rotary", head="bert") for s in laptops}) == 1


def missing(cls: Any, data: dict[str, Any], where: str = "") -> list[str]:
    absent = [f"{where}{f.name}" for f in fields(cls) if f.name not in data and f.name not in OPTIONAL]
    for f in fields(cls):
        if is_dataclass(f.type) and isinstance(data.get(f.name), dict):
            absent += missing(f.type, data[f.name], f"{where}{f.name}.")
    return absent


def unsaid(member: dict[str, Any]) -> set[str]:
    """What a member of a mixture leaves to defaults that decide what is learnt."""
    objective = member["objective"]
    wanted = {"kind", "weighting"} if objective["kind"] in ("alm", "aplm") else {"kind", "weighting", "masking"}
    wanted |= {"order", "given_prob"} if objective["kind"] == "aplm" else set()
    wanted |= {"visibility"} if objective["kind"] in ("mlm", "pmlm") else set()
    return (wanted - objective.keys()) | ({"start"} - member.keys())


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_complete(name: str) -> None:
    path = Path(str(resources.files("pmlm.training"))) / "presets" / f"{name}.toml"
    document = tomllib.loads(path.read_text())
    assert missing(TrainSettings, document) == []
    assert [unsaid(member) for member in document["objective"]["members"]] == [set()] * len(
        document["objective"]["members"]
    )
    assert load_settings(name, []).name == name


def shrunk(settings: TrainSettings) -> TrainSettings:
    """The same objective, positions, norm and optimizer, small enough for a test."""
    model = replace(settings.model, num_layers=2, width=24, num_heads=2, ff_width=32, max_length=32, relative_clip=31)
    rows = replace(settings.rows, length=32)
    evaluation = replace(settings.evaluation, every=0, rows=4, lengths=(16,))
    return replace(settings, num_steps=2, batch_rows=4, model=model, rows=rows, evaluation=evaluation)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_train_two_steps(name: str, corpus: Corpus, tmp_path: Path) -> None:
    run = Run(shrunk(load_settings(name, [])), corpus, tmp_path / name, device=torch.device("cpu"))
    steps = [event for event in run.events() if isinstance(event, StepReport)]
    assert len(steps) == 2
    assert all(4 < report.loss < 8 for report in steps)


@pytest.mark.parametrize("name", [n for n in PRESETS if n.startswith("tiny-")])
def test_tiny_presets_train_as_they_are(name: str, corpus: Corpus, tmp_path: Path) -> None:
    run = Run(load_settings(name, []), corpus, tmp_path / name, device=torch.device("cpu"))
    losses = [event.loss for event in run.events() if isinstance(event, StepReport)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["paper-u-pmlm-a", "paper-u-pmlm-r", "paper-bert", "paper-gpt"])
def test_the_paper_presets_are_the_papers(name: str) -> None:
    settings = load_settings(name, [])
    model = settings.model
    assert (model.num_layers, model.width, model.ff_width, model.num_heads, model.dropout) == (12, 768, 3072, 12, 0.1)
    assert (settings.batch_rows, settings.num_steps, settings.rows.length, settings.vocab_size) == (
        8400,
        600_000,
        128,
        28_996,
    )
    assert settings.optim.kind == "lamb"
    assert model.positions == {"paper-u-pmlm-r": "relative"}.get(name, "absolute")
    (member,) = settings.objective.members
    kind, prior = member.objective.kind, member.objective.masking.prior
    assert kind == {"paper-bert": "mlm", "paper-gpt": "alm"}.get(name, "pmlm")
    if kind == "pmlm":
        assert (prior.kind, prior.low, prior.high) == ("uniform", 0.0, 1.0)
    if kind == "mlm":
        assert (prior.kind, prior.ratio) == ("fixed", 0.15)


def test_xlnet_trains_with_our_relative_positions_as_a_control(corpus: Corpus, tmp_path: Path) -> None:
    settings = load_settings("tiny-xlnet", ["model.positions=relative"])
    run = Run(replace(settings, num_steps=2), corpus, tmp_path, device=torch.device("cpu"))
    losses = [event.loss for event in run.events() if isinstance(event, StepReport)]
    assert len(losses) == 2
    assert run.model.config.visibilities == ("two-stream",)


def test_overrides_and_unknown_presets() -> None:
    assert load_settings("tiny-bert", ["optim.lr=0.5"]).optim.lr == 0.5
    with pytest.raises(ConfigError, match=r"unknown setting 'optim.rl'"):
        load_settings("tiny-bert", ["optim.rl=0.5"])
    with pytest.raises(ConfigError, match="no preset"):
        load_settings("huge", [])


def test_the_plan_counts_what_is_executed() -> None:
    settings = load_settings("paper-u-pmlm-a", [])
    config = ModelConfig(vocab_size=28_996, num_token_types=2)
    plan = make_plan(settings, config, ranks=56)
    assert plan.parameters == count_parameters(config)
    assert plan.days * 24 == pytest.approx(135, rel=1e-6)  # the yardstick itself
    objective = settings.objective.members[0].objective
    small = ModelConfig(vocab_size=100, num_layers=1, width=4, num_heads=1, ff_width=8)
    # one layer, all of it at the predicted half but for queries, keys, values and mixing
    forward = 2 * 3 * 16 + 2 * 2 * 10 * 4 + 0.5 * (2 * (16 + 2 * 4 * 8)) + 0.5 * 2 * (16 + 400)
    assert flops_per_token(small, objective, 10) == pytest.approx(3 * forward)


ROW = 48
HALF = Masking(prior=Prior(kind="table", weights=(0.0,) * (ROW // 2) + (1.0,) + (0.0,) * (ROW // 2)))
"""Just half of each row: no query is there to fill up a row."""


@pytest.mark.parametrize("positions", ["absolute", "rotary", "relative", "transformer-xl"])
@pytest.mark.parametrize(
    "objective",
    [Objective(masking=HALF), GPT, APLM, replace(XLNET, masking=HALF)],
    ids=["bidirectional", "causal", "order-causal", "two-stream"],
)
def test_the_plan_agrees_with_the_products_of_a_real_pass(objective: Objective, positions: Positions) -> None:
    """Rows so long, and a network so narrow, that attention is a good part of the whole."""
    rows, length = 12, ROW
    config = ModelConfig(
        vocab_size=20, num_layers=3, width=16, num_heads=2, ff_width=24, max_length=length, positions=positions,
        relative_clip=length - 1, dropout=0.0, visibilities=(objective.trained_visibility(),),
    )  # fmt: skip
    batch = bare_batch(*random_rows(rows, length))
    prepared = prepare(batch, objective, RowRandom.whole(1, 0, rows), config)
    model = build_model(config, generator(1))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        weighted_nll(model, prepared)
    planned = flops_per_token(config, objective, length) / 3 * rows * length
    assert planned == pytest.approx(counter.get_total_flops(), rel=0.03)
