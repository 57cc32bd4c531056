"""Linear probes of frozen models."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nlu_helpers import CPU, make_start, write_sst

from pmlm.errors import ConfigError, DataError
from pmlm.nlu.glue import GlueData, load_glue
from pmlm.nlu.probe import ProbeSettings, fit, probe
from pmlm.nlu.tasks import find_tasks

SETTINGS = ProbeSettings(length=32, resamples=50)


def sst(folder: Path) -> GlueData:
    (task,) = find_tasks(["SST-2"])
    return load_glue(task, write_sst(folder))


def dealt_out(data: GlueData) -> GlueData:
    """The same texts, each with another's class."""
    assert data.train is not None
    examples = data.train.examples
    labels = [examples[i].label for i in torch.randperm(len(examples), generator=torch.manual_seed(1)).tolist()]
    mixed = [replace(e, label=label) for e, label in zip(examples, labels, strict=True)]
    return replace(data, train=replace(data.train, examples=mixed))


def test_a_probe_reads_what_a_frozen_model_knows_and_chance_where_labels_are_random(tmp_path: Path) -> None:
    data, start = sst(tmp_path / "glue"), make_start(tmp_path)
    before = start.backbone.tokens.weight.clone()
    found = probe(start, data, SETTINGS, CPU)
    assert (found["metric"], found["train"], found["dev"]) == ("accuracy", 180, 60)
    assert found["score"] > 0.9
    assert found["constant"] < 0.6
    assert found["stderr"] == pytest.approx((found["score"] * (1 - found["score"]) / 60) ** 0.5, abs=0.02)
    assert torch.equal(start.backbone.tokens.weight, before)
    assert found == probe(start, data, SETTINGS, CPU)  # nothing is drawn anew
    assert probe(start, dealt_out(data), SETTINGS, CPU)["score"] < 0.75
    few = probe(start, data, replace(SETTINGS, train_rows=40), CPU)
    assert few["train"] == 40


def test_the_fit_is_at_its_minimum() -> None:
    rng = torch.Generator().manual_seed(0)
    features_ND = torch.randn(60, 5, generator=rng, dtype=torch.float64)
    label_N = (features_ND[:, 0] + torch.randn(60, generator=rng, dtype=torch.float64) > 0).long()
    model = fit(features_ND, label_N, 2, penalty=0.01)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        nll_N = torch.nn.functional.cross_entropy(features_ND @ weight.T + model.bias, label_N, reduction="none")
        by_class = (nll_N[label_N == 0].mean() + nll_N[label_N == 1].mean()) / 2
        return by_class + 0.005 * weight.square().sum()

    slope = torch.func.grad(loss)(model.weight)
    assert slope.abs().max() < 1e-5
    assert fit(features_ND, label_N, 2, penalty=10.0).weight.norm() < model.weight.norm() / 10


def test_a_rare_class_is_followed_as_a_frequent_one_is() -> None:
    """A tenth of the labels, told apart by little: by frequency alone one would never say it."""
    rng = torch.Generator().manual_seed(0)
    label_N = (torch.arange(2000) % 10 == 0).long()
    features_ND = torch.randn(2000, 1, generator=rng, dtype=torch.float64) + 0.8 * label_N[:, None]
    said_N = fit(features_ND, label_N, 2, penalty=1e-4)(features_ND).argmax(1)
    right = [float((said_N[label_N == c] == c).double().mean()) for c in (0, 1)]
    assert right[0] == pytest.approx(right[1], abs=0.05)
    assert min(right) > 0.6


def test_what_cannot_be_probed_is_named(tmp_path: Path) -> None:
    data, start = sst(tmp_path / "glue"), make_start(tmp_path)
    with pytest.raises(DataError, match="SST-2 cannot be probed: SST-2: train is missing"):
        probe(start, replace(data, train=None, notes=("SST-2: train is missing",)), SETTINGS, CPU)
    (number,) = find_tasks(["STS-B"])
    with pytest.raises(DataError, match="STS-B cannot be probed"):
        probe(start, replace(data, task=number), SETTINGS, CPU)
    for wrong in ({"length": 2}, {"penalties": ()}, {"aside": 1.0}, {"train_rows": 3}, {"resamples": 1}):
        with pytest.raises(ConfigError):
            ProbeSettings(**wrong)  # type: ignore[arg-type]
