"""Linear probes: what a frozen backbone's summary of a text says of its class, by logistic regression.

The summary is the mean over the text's slots of what each layer gives, side by side: where no visible token is ever
predicted, nothing trains what the last layer makes of one. Features are standardised by the training texts, the classes
count alike however frequent they are (else a weak signal of a rare class is never followed, and Matthews' correlation
is that of a constant), the fit goes to its minimum, and the penalty is chosen on a part of the training texts; nothing
depends on first weights or on a learning rate. Dev texts are looked at once.

Shapes: N texts, D features, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pmlm.errors import ConfigError, DataError
from pmlm.evaluation import draw_part
from pmlm.model.heads import row_means
from pmlm.nlu.finetuned import Start
from pmlm.nlu.framing import PairRow, Reading, frame_texts
from pmlm.nlu.glue import Example, GlueData
from pmlm.nlu.metrics import constant_figures, score
from pmlm.nlu.predict import in_batches
from pmlm.nlu.tasks import GlueTask
from pmlm.runtime import generator


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    length: int = 64
    """The most slots of a text."""
    train_rows: int | None = None
    """Train on so many examples, drawn at random; without it, on all."""
    penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    """Half the sum of the squared weights costs so many nats per example; the best is taken."""
    aside: float = 0.1
    """The share of the training examples on which the penalty is chosen."""
    resamples: int = 1000
    """Draws of the dev examples, with replacement, for the standard error."""

    def __post_init__(self) -> None:
        if self.length < 5 or self.resamples < 2 or (self.train_rows is not None and self.train_rows < 20):
            raise ConfigError("a probe reads at least 5 slots and 20 training examples, and draws at least 2 samples")
        if not self.penalties or min(self.penalties) <= 0 or not 0 < self.aside < 1:
            raise ConfigError("a probe's penalties are positive, and the share that is set aside is between 0 and 1")


def probe(start: Start, data: GlueData, settings: ProbeSettings, device: torch.device) -> dict[str, Any]:
    """The main metric of a task on dev, with its standard error over the dev examples."""
    if data.train is None or not data.dev or data.task.is_number:
        reason = "; ".join(data.notes) or "its answers are no classes"
        raise DataError(f"{data.task.name} cannot be probed: {reason}")
    examples = draw_part(data.train.examples, settings.train_rows, seed=0)
    train_ND, label_N = _read(start, examples, settings, device)
    mean_D, std_D = train_ND.mean(0), train_ND.std(0).clamp_min(1e-6)
    train_ND = (train_ND - mean_D) / std_D
    num_classes = len(data.task.labels)
    penalty = _choose(train_ND, label_N, num_classes, settings)
    fitted = fit(train_ND, label_N, num_classes, penalty)
    (dev,) = list(data.dev.values())[:1]
    dev_ND, gold_N = _read(start, dev.examples, settings, device)
    said_N = fitted((dev_ND - mean_D) / std_D).argmax(1)
    return {
        "metric": data.task.metrics[0],
        "score": _score(data.task, said_N, gold_N),
        "stderr": _stderr(data.task, said_N, gold_N, settings.resamples),
        "constant": constant_figures(data.task, gold_N.tolist())[data.task.metrics[0]],
        "penalty": penalty,
        "said": [int(n) for n in torch.bincount(said_N, minlength=num_classes)],
        "train": len(label_N),
        "dev": len(gold_N),
    }


def fit(features_ND: Tensor, label_N: Tensor, num_classes: int, penalty: float) -> nn.Linear:
    """The minimum of the loss, the mean over the classes, and the penalty, from zero."""
    model = nn.Linear(features_ND.shape[1], num_classes, dtype=features_ND.dtype)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=500, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _mean_loss(model(features_ND), label_N) + penalty / 2 * model.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model.requires_grad_(False)


def _mean_loss(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Each class that occurs has the same weight."""
    count_C = torch.bincount(label_N, minlength=logits_NC.shape[1]).to(logits_NC.dtype)
    return nn.functional.cross_entropy(logits_NC, label_N, weight=1 / count_C.clamp(min=1))


def _choose(features_ND: Tensor, label_N: Tensor, num_classes: int, settings: ProbeSettings) -> float:
    """The penalty with the least loss on what is set aside."""
    order_N = torch.randperm(len(label_N), generator=generator(0, "probe"))
    aside, rest = order_N[: (cut := max(1, round(len(label_N) * settings.aside)))], order_N[cut:]

    def loss(penalty: float) -> float:
        model = fit(features_ND[rest], label_N[rest], num_classes, penalty)
        return float(_mean_loss(model(features_ND[aside]), label_N[aside]))

    return min(settings.penalties, key=loss)


def _read(
    start: Start, examples: Sequence[Example], settings: ProbeSettings, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Summaries of the texts [N, D] in double precision, and their classes."""
    rows = frame_texts([e.texts for e in examples], start.tokenizer, settings.length)
    features_ND = summaries(start, rows, device)
    return features_ND.double(), torch.tensor([int(e.label or 0) for e in examples])


def summaries(start: Start, rows: Sequence[PairRow], device: torch.device) -> Tensor:
    """[N, D], the layers side by side."""
    backbone = start.backbone.to(device).eval()
    states: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _layer, _given, out: states.append(out)) for layer in backbone.layers]

    def say(reading: Reading) -> Tensor:
        states.clear()
        backbone(reading.inputs)
        return torch.cat([row_means(state_BLD, reading.is_token_BL) for state_BLD in states], dim=1)

    said = in_batches(rows, start.tokenizer.pad_id, backbone.config, device, say)
    for hook in hooks:
        hook.remove()
    return torch.stack(said)


def _score(task: GlueTask, said_N: Tensor, gold_N: Tensor) -> float:
    return score(task.metrics[0], said_N.tolist(), gold_N.tolist())


def _stderr(task: GlueTask, said_N: Tensor, gold_N: Tensor, resamples: int) -> float:
    rng = generator(0, "resamples")
    drawn = (torch.randint(len(gold_N), (len(gold_N),), generator=rng) for _ in range(resamples))
    return float(torch.tensor([_score(task, said_N[index], gold_N[index]) for index in drawn]).std())
