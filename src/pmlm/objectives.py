"""The paper's objectives, and the mixture of them, over one network.

An objective is only a *preparation*: which tokens are hidden, who sees whom, what is predicted where and with which
weight. It draws nothing from the model, so the counts that a sum is divided by are known before the first forward
pass, and neither micro-batches nor ranks can change the result. One function then turns any preparation into a loss.

- mlm    Eq. 2 with a fixed ratio (BERT), pmlm  Eq. 6 with any prior (u-PMLM: uniform)
- alm    Eq. 1 (GPT)
- aplm   Eq. 8 trained directly: order-causal visibility, a query for each predicted token
- xlnet  the last part of an order, in spans, from all the rest: two-stream visibility; no memory of earlier segments

Shapes: B rows, L slots, T texts per row, M predictions.
"""

import functools
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmlm.batch import Batch, group_counts, spread
from pmlm.errors import ConfigError
from pmlm.masking import Masking, Prior, corrupt, draw_hidden, scheduled, text_ranks
from pmlm.model import Inputs, ModelConfig, Slots, Visibility
from pmlm.runtime import RowRandom
from pmlm.visibility import bidirectional_inputs, causal_inputs, is_ordered, known_only_inputs, ordered_inputs

Weighting = Literal["likelihood", "row", "token-mean"]
_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    kind: Literal["mlm", "pmlm", "alm", "aplm", "xlnet"] = "pmlm"
    masking: Masking = Masking()
    """mlm, pmlm, xlnet, aplm with l2r and given tokens: how hidden tokens are drawn. For mlm and xlnet the prior is
    usually fixed."""
    visibility: Visibility = "bidirectional"
    """mlm and pmlm: bidirectional, or known-only (hidden slots do not see each other)."""
    weighting: Weighting = "likelihood"
    """likelihood: N/K per hidden token, unbiased for the all-orders NLL under the uniform prior. row: one vote per
    text (the paper's equation). token-mean: one vote per predicted token (the authors' release)."""
    order: Literal["random", "l2r"] = "random"
    """aplm: the orders that are drawn; l2r is GPT's task in the form of queries."""
    given_prob: float = 0.0
    """aplm: how often a text has given tokens. Random orders: the first 0 … N-1 of the order, uniformly. l2r: what
    `masking` does not hide, so that blanks amid given text are written from left to right, as templates are."""
    masks: int = 1
    """mlm and pmlm: under how many masks each row is read in a step."""

    def __post_init__(self) -> None:
        if not 0 <= self.given_prob <= 1:
            raise ConfigError(f"given_prob must be in [0, 1], got {self.given_prob}")
        if self.masks < 1:
            raise ConfigError(f"masks must be at least 1, got {self.masks}")
        for name, default in self._without_meaning():
            if getattr(self, name) != default:
                raise ConfigError(f"{name} means nothing for {self.kind}: leave it out")
        if self.kind in ("aplm", "xlnet") and self.masking.corruption != "all-mask":
            raise ConfigError(f"{self.kind} reads queries at hidden places: corruption means nothing there")
        if self.given_prob and self.order == "l2r" and self.weighting == "likelihood":
            raise ConfigError("l2r around given tokens is no bound of a likelihood: use token-mean or row weighting")
        if self.kind in ("mlm", "pmlm") and self.visibility not in ("bidirectional", "known-only"):
            raise ConfigError(f"{self.kind} trains bidirectional or known-only visibility, not {self.visibility}")

    def _without_meaning(self) -> list[tuple[str, object]]:
        """Settings that this kind does not read, with their defaults: any other value is a misunderstanding."""
        reads = {"alm": set(), "aplm": {"order", "given_prob"}, "xlnet": {"masking"}}
        read = reads.get(self.kind, {"masking", "visibility", "masks"})
        if self.kind == "aplm" and self.order == "l2r" and self.given_prob:
            read = read | {"masking"}
        return [(f.name, f.default) for f in fields(self) if f.name not in read | {"kind", "weighting"}]

    @property
    def has_queries(self) -> bool:
        """Whether a row is read with queries behind it."""
        return is_ordered(self.trained_visibility())

    def trained_visibility(self) -> Visibility:
        match self.kind:
            case "alm":
                return "causal"
            case "aplm":
                return "order-causal"
            case "xlnet":
                return "two-stream"
            case _:
                return self.visibility


BERT = Objective(
    kind="mlm", masking=Masking(prior=Prior(kind="fixed", ratio=0.15), draw="count"), weighting="token-mean"
)
U_PMLM = Objective(kind="pmlm")
GPT = Objective(kind="alm")
APLM = Objective(kind="aplm", weighting="token-mean")
XLNET = Objective(
    kind="xlnet",
    masking=Masking(prior=Prior(kind="fixed", ratio=1 / 6), draw="count", unit="words"),
    weighting="token-mean",
)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One objective of a mixture with its share of the rows and of the loss, moving linearly over training."""

    objective: Objective
    start: float = 1.0
    end: float | None = None
    """Absent: the share stays."""

    def share(self, progress: float) -> float:
        """`progress` runs from 0 to 1."""
        return self.start if self.end is None else self.start + (self.end - self.start) * progress


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Several objectives over one set of weights; the shares are normalised at each step."""

    members: tuple[Member, ...] = field(default_factory=lambda: (Member(objective=U_PMLM),))

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigError("a mixture needs at least one member")
        ends = [(m.start, m.start if m.end is None else m.end) for m in self.members]
        if min(min(pair) for pair in ends) < 0 or min(sum(column) for column in zip(*ends, strict=True)) <= 0:
            raise ConfigError("shares must not be negative, and some share must be positive at every moment")

    def shares(self, progress: float) -> list[float]:
        raw = [member.share(progress) for member in self.members]
        return [share / sum(raw) for share in raw]

    def trained_visibilities(self) -> tuple[Visibility, ...]:
        return tuple(dict.fromkeys(m.objective.trained_visibility() for m in self.members))


@dataclass(frozen=True)
class Loss:
    """`total / count` is in nats per token for every objective."""

    total: Tensor
    """Summed and weighted nats, differentiable."""
    count: Tensor
    """What the sum stands for; adding totals and counts over parts of a batch gives those of the whole."""


@dataclass(frozen=True)
class Prepared:
    """What the network reads, where it predicts, what is right there, and how much that counts."""

    inputs: Inputs
    at: Slots
    target_M: Tensor
    weight_M: Tensor
    count: Tensor


def prepare(batch: Batch, objective: Objective, random: RowRandom, config: ModelConfig) -> Prepared:
    """Draw what the objective leaves to chance."""
    match objective.kind:
        case "mlm" | "pmlm":
            return _prepare_masked(batch, objective, random, config)
        case "alm":
            return _prepare_causal(batch, objective, config)
        case "aplm":
            return _prepare_order_causal(batch, objective, random, config)
        case "xlnet":
            return _prepare_two_stream(batch, objective, random, config)


def weighted_nll(model: nn.Module, prepared: Prepared) -> Tensor:
    """The summed and weighted nats of a preparation."""
    logits_MV = model(prepared.inputs, prepared.at)
    nll_M = F.cross_entropy(logits_MV, prepared.target_M, reduction="none")
    return (nll_M * prepared.weight_M).sum()


def loss(model: nn.Module, batch: Batch, objective: Objective, random: RowRandom, config: ModelConfig) -> Loss:
    prepared = prepare(batch, objective, random, config)
    return Loss(weighted_nll(model, prepared), prepared.count)


def split_members(shares: list[float], random: RowRandom) -> list[tuple[Tensor, RowRandom]]:
    """Deal the global batch's rows to the members by share, evenly spread; (indices among our rows, their numbers)."""
    edge = torch.tensor([0.0, *shares], dtype=torch.float64).cumsum(0)
    golden = (torch.arange(random.total, dtype=torch.float64) * _GOLDEN + random.step * 0.754877666) % 1.0
    owner_G = (torch.bucketize(golden, edge[1:-1], right=True)).clamp(max=len(shares) - 1)
    parts = []
    for m in range(len(shares)):
        mine_G = owner_G == m
        number_G = mine_G.cumsum(0) - 1
        index_B = mine_G[random.rows_B].nonzero()[:, 0]
        rows_B = number_G[random.rows_B[index_B]]
        parts.append((index_B, random.part(f"member-{m}", rows_B, int(mine_G.sum()))))
    return parts


def member_weights(shares: list[float], total: int) -> list[float]:
    """What a member's loss counts in a step that has rows of it: its share over how often there are such steps.

    Members with less than about a row a step are absent from some; the rest make up for these.
    """
    gap_G = _gaps(total)
    met = [1.0 if share >= float(gap_G.max()) else float(gap_G.clamp(max=share).sum()) for share in shares]
    return [share / chance if chance else 0.0 for share, chance in zip(shares, met, strict=True)]


@functools.lru_cache(maxsize=8)
def _gaps(total: int) -> Tensor:
    """Between the places on the circle at which `split_members` deals out so many rows."""
    point_G = (torch.arange(total, dtype=torch.float64) * _GOLDEN % 1.0).sort().values
    return torch.cat([point_G[1:], point_G[:1] + 1]) - point_G


def prepare_mixture(
    batch: Batch, mixture: Mixture, progress: float, random: RowRandom, config: ModelConfig
) -> list[Prepared | None]:
    """One preparation per member; None for a member that none of these rows belongs to."""
    now = [replace(m.objective, masking=scheduled(m.objective.masking, progress)) for m in mixture.members]
    if len(now) == 1:
        return [prepare(batch, now[0], random, config)]
    parts = split_members(mixture.shares(progress), random)
    return [
        prepare(batch.rows(index_B), objective, part, config) if len(index_B) else None
        for objective, (index_B, part) in zip(now, parts, strict=True)
    ]


def mixture_loss(
    model: nn.Module, batch: Batch, mixture: Mixture, progress: float, random: RowRandom, config: ModelConfig
) -> Tensor:
    """Each member's loss per token, added by share: the mixture on one whole batch."""
    prepared = prepare_mixture(batch, mixture, progress, random, config)
    weights = member_weights(mixture.shares(progress), random.total)
    present = [(weight, part) for weight, part in zip(weights, prepared, strict=True) if part is not None]
    return torch.stack([weight * weighted_nll(model, part) / part.count.clamp(min=1) for weight, part in present]).sum()


@functools.lru_cache(maxsize=8)
def _plain_ids(config: ModelConfig) -> Tensor:
    """The ids that a random replacement is drawn from."""
    return torch.tensor(sorted(set(range(config.vocab_size)) - set(config.forbidden_ids)))


def _prepare_masked(batch: Batch, objective: Objective, random: RowRandom, config: ModelConfig) -> Prepared:
    if objective.masks > 1:
        batch, random = _copies(batch, objective.masks, random)
    hidden_BL = draw_hidden(batch, objective.masking, random)
    seen_BL = corrupt(
        batch.ids_BL, hidden_BL, objective.masking, random, mask_id=config.mask_id, plain_ids_V=_plain_ids(config)
    )
    if objective.visibility == "known-only":
        inputs = known_only_inputs(batch, seen_BL, hidden_BL)
    else:
        inputs = bidirectional_inputs(batch, seen_BL)
    weight_M, count = prediction_weights(batch, hidden_BL, objective.weighting)
    at = Slots.where(hidden_BL)
    return Prepared(inputs, at, batch.ids_BL[at.rows_M, at.slots_M], weight_M, count)


def _copies(batch: Batch, num: int, random: RowRandom) -> tuple[Batch, RowRandom]:
    """Each row several times, with numbers of its own each time; counts are stratified over all of them."""
    rows_B = (random.rows_B[:, None] * num + torch.arange(num)).flatten()
    index_B = torch.arange(batch.num_rows).repeat_interleave(num)
    return batch.rows(index_B), random.part("copies", rows_B, random.total * num)


def _prepare_causal(batch: Batch, objective: Objective, config: ModelConfig) -> Prepared:
    weight_M, count = prediction_weights(batch, batch.maskable_BL, objective.weighting)
    at = Slots.where(batch.maskable_BL)
    return Prepared(causal_inputs(batch, config.mask_id), at, batch.ids_BL[at.rows_M, at.slots_M], weight_M, count)


def _prepare_order_causal(batch: Batch, objective: Objective, random: RowRandom, config: ModelConfig) -> Prepared:
    has_given_BT = random.uniform("has-given", batch.num_texts) < objective.given_prob
    if objective.order == "l2r":
        return _prepare_left_to_right(batch, objective, has_given_BT, random, config)
    num_BT = group_counts(batch.maskable_BL, batch.group_BL, batch.num_texts)
    given_BT = (random.uniform("given", batch.num_texts) * num_BT).long()
    given_BL = spread(torch.where(has_given_BT, given_BT, 0), batch.group_BL)
    place_BL = text_ranks(batch, random.uniform("order", batch.length)) + 1  # 1 … N within each text
    rank_BL = torch.where(batch.maskable_BL, (place_BL - given_BL).clamp(min=0), 0)
    prepared = _prepare_ordered(batch, objective, rank_BL, config)
    if objective.weighting == "likelihood":
        predicted_BL = rank_BL > 0
        num_M = spread(num_BT, batch.group_BL)[predicted_BL]
        chance_M = 1 - objective.given_prob * (1 - place_BL[predicted_BL] / num_M)  # that this place is predicted
        return replace(prepared, weight_M=1 / chance_M, count=batch.maskable_BL.sum())
    return prepared


def _prepare_left_to_right(
    batch: Batch, objective: Objective, has_given_BT: Tensor, random: RowRandom, config: ModelConfig
) -> Prepared:
    """What is hidden, from left to right; all tokens of a text are, unless it has given ones."""
    hidden_BL = batch.maskable_BL
    if objective.given_prob:
        drawn_BL = draw_hidden(batch, objective.masking, random)
        hidden_BL = torch.where(spread(has_given_BT, batch.group_BL) > 0, drawn_BL, hidden_BL)
    slot_BL = torch.arange(batch.length).expand_as(hidden_BL)
    rank_BL = text_ranks(replace(batch, maskable_BL=hidden_BL), slot_BL / batch.length) + 1
    return _prepare_ordered(batch, objective, torch.where(hidden_BL, rank_BL, 0), config)


def _prepare_two_stream(batch: Batch, objective: Objective, random: RowRandom, config: ModelConfig) -> Prepared:
    """The hidden tokens come last, in random order; all others are given and see each other."""
    hidden_BL = draw_hidden(batch, objective.masking, random)
    rank_BL = text_ranks(replace(batch, maskable_BL=hidden_BL), random.uniform("order", batch.length)) + 1
    return _prepare_ordered(batch, objective, torch.where(hidden_BL, rank_BL, 0), config, few=True)


def _prepare_ordered(
    batch: Batch, objective: Objective, rank_BL: Tensor, config: ModelConfig, *, few: bool = False
) -> Prepared:
    """`few`: with queries for the predicted tokens alone, and not for each token in its place."""
    predicted_BL = rank_BL > 0
    weight_M, count = prediction_weights(batch, predicted_BL, objective.weighting)
    at = Slots.where(predicted_BL)
    asked_BQ, place_M = at.by_row(batch.num_rows) if few else (None, at.slots_M)
    return Prepared(
        ordered_inputs(batch, rank_BL, objective.trained_visibility(), config.mask_id, asked_BQ),
        Slots(at.rows_M, place_M + batch.length),
        batch.ids_BL[at.rows_M, at.slots_M],
        weight_M,
        count,
    )


def prediction_weights(batch: Batch, predicted_BL: Tensor, weighting: Weighting) -> tuple[Tensor, Tensor]:
    """The weight of each predicted token and the count; texts with nothing to predict carry neither."""
    num_BT = group_counts(batch.maskable_BL, batch.group_BL, batch.num_texts)
    hidden_BT = group_counts(predicted_BL, batch.group_BL, batch.num_texts)
    match weighting:
        case "token-mean":
            return torch.ones(int(hidden_BT.sum())), hidden_BT.sum()
        case "row":
            weight_BT, count = 1 / hidden_BT, (hidden_BT > 0).sum()
        case "likelihood":
            weight_BT, count = num_BT / hidden_BT, num_BT[hidden_BT > 0].sum()
    return spread(weight_BT, batch.group_BL)[predicted_BL], count
