"""What a run will cost, before it is started: parameters, arithmetic, memory, days.

Arithmetic counts multiplications and additions of the forward and backward pass that the trainer really executes: the
vocabulary head only where a token is predicted, the last layer's feed-forward likewise, order-causal rows with a query
for each token, XLNet's with one for each predicted token, a row once for each of its masks; queries are no keys but to
themselves, and relative positions meet every offset there is. Queries that fill up XLNet's shorter rows are not
counted. The paper's own run (600,000 steps of 8,400 x 128 in 135 hours on 56 V100) is the yardstick.
"""

from dataclasses import dataclass

import torch

from pmlm.config import to_dict
from pmlm.masking import Prior
from pmlm.model import LanguageModel, ModelConfig
from pmlm.objectives import Objective
from pmlm.training.settings import TrainSettings

PAPER_GPUS, PAPER_HOURS, PAPER_TOKENS = 56, 135, 600_000 * 8_400 * 128
SUSTAINED = 0.6
"""The share of a CPU's best fp32 product that a training step keeps up (`pmlm bench train`: 60 to 76 %)."""


@dataclass(frozen=True)
class Plan:
    parameters: int
    flops_per_token: float
    """Forward and backward, per content slot of a row."""
    tokens: int
    gigabytes_per_rank: float
    days: float
    tflops_per_rank: float
    """The sustained rate that the days are computed with."""
    paper_tflops: float
    """What the paper's hours mean per GPU, counted in the same way for a u-PMLM of its size."""


def predicted_share(objective: Objective) -> float:
    """The mean share of a row's tokens that are predicted."""
    match objective.kind:
        case "alm":
            return 1.0
        case "aplm":
            hidden = _hidden_share(objective.masking.prior) if objective.order == "l2r" else 0.5
            return 1.0 - objective.given_prob * (1.0 - hidden)
        case _:
            return _hidden_share(objective.masking.prior)


def _hidden_share(prior: Prior) -> float:
    match prior.kind:
        case "fixed":
            return prior.ratio
        case "uniform":
            return (prior.low + prior.high) / 2
        case "beta":
            return prior.a / (prior.a + prior.b)
        case "table":
            total = sum(prior.weights)
            return min(1.0, sum(k * w for k, w in enumerate(prior.weights)) / total / max(1, len(prior.weights) - 1))


def slots_per_token(objective: Objective) -> float:
    """How many slots a row is read at: its tokens, and a query for each, or in XLNet for each that is predicted."""
    if not objective.has_queries:
        return 1.0
    return 1.0 + predicted_share(objective) if objective.kind == "xlnet" else 2.0


def flops_per_token(config: ModelConfig, objective: Objective, length: int) -> float:
    """Executed floating-point operations per slot of a row, forward and backward (three times the forward pass)."""
    d, ff = config.width, config.ff_width
    predicted = predicted_share(objective)
    slots = slots_per_token(objective)
    offsets = 2 * config.relative_clip + 1 if objective.kind == "xlnet" else 2 * length - 1  # XLNet's stand anywhere
    attention = _attention_flops(config, length, 2 * length - 1)
    attention += (slots - 1) * _attention_flops(config, length + 1, offsets)
    mixing, feeding = 2 * 3 * d * d, 2 * (d * d + 2 * d * ff)
    layers = slots * (config.num_layers * mixing + (config.num_layers - 1) * feeding) + predicted * feeding
    head = predicted * 2 * ((d * d if config.head == "bert" else 0) + d * config.vocab_size)
    return 3 * objective.masks * (config.num_layers * attention + layers + head)


def _attention_flops(config: ModelConfig, keys: int, offsets: int) -> float:
    """Of one slot: scores and values of the slots it may look at, and of the offsets where positions are relative."""
    tables = {"relative": 2, "relative-sinusoidal": 2, "transformer-xl": 1}.get(config.positions, 0)
    return 2.0 * config.width * (2 * keys + tables * offsets)


def mixture_flops(config: ModelConfig, settings: TrainSettings) -> float:
    """The mean over the mixture's members and over training."""
    middle = settings.objective.shares(0.5)
    return sum(
        share * flops_per_token(config, member.objective, settings.rows.length)
        for share, member in zip(middle, settings.objective.members, strict=True)
    )


def work_per_token(settings: TrainSettings) -> float:
    """`mixture_flops` of a run, for the vocabulary that its settings name."""
    return mixture_flops(ModelConfig(**to_dict(settings.model), vocab_size=settings.vocab_size), settings)


def reading_flops(config: ModelConfig, length: int) -> float:
    """Of fine-tuning, where whole texts are read and hardly anything is predicted; as `flops_per_token`."""
    d, ff = config.width, config.ff_width
    attention = _attention_flops(config, length, 2 * length - 1)
    return 3.0 * config.num_layers * (2 * 3 * d * d + attention + 2 * (d * d + 2 * d * ff))


def count_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return LanguageModel(config).num_parameters()


def make_plan(settings: TrainSettings, config: ModelConfig, *, ranks: int, tflops: float | None = None) -> Plan:
    per_token = mixture_flops(config, settings)
    parameters = count_parameters(config)
    tokens = settings.num_steps * settings.batch_rows * settings.rows.length
    paper = _paper_rate()
    rate = paper if tflops is None else tflops
    return Plan(
        parameters=parameters,
        flops_per_token=per_token,
        tokens=tokens,
        gigabytes_per_rank=_memory(settings, config, parameters, ranks) / 2**30,
        days=per_token * tokens / (rate * 1e12 * ranks) / 86_400,
        tflops_per_rank=rate,
        paper_tflops=paper,
    )


def _paper_rate() -> float:
    config = ModelConfig(vocab_size=28_996, num_token_types=2)
    return flops_per_token(config, Objective(), 128) * PAPER_TOKENS / (PAPER_GPUS * PAPER_HOURS * 3600) / 1e12


def _memory(settings: TrainSettings, config: ModelConfig, parameters: int, ranks: int) -> float:
    """Weights, gradients, two moments and an average in fp32, and what one micro-batch keeps for its backward pass."""
    copies = 4 + (1 if settings.optim.ema else 0)
    state = 4.0 * copies * parameters / (ranks if settings.parallel == "fsdp" else 1)
    rows = settings.micro_rows or -(-settings.batch_rows // ranks)
    objectives = [member.objective for member in settings.objective.members]
    slots = rows * settings.rows.length * max(o.masks * slots_per_token(o) for o in objectives)
    per_layer = 10 * config.width + 2 * config.ff_width
    is_fused = config.positions in ("absolute", "rotary")
    scores = config.num_heads * settings.rows.length * (0 if is_fused else 3)
    predicted = max(predicted_share(objective) for objective in objectives)
    return state + 4.0 * slots * (config.num_layers * (per_layer + scores) + 2 * predicted * config.vocab_size)
