"""The paper's probabilistic masking (sections 3.1 and 3.2): the prior p(r), the mask probability p(M), and the draw.

p(M) = ∫ r^K (1-r)^(N-K) p(r) dr depends on the pattern M only through its count K, so everything here is a law over
counts: P(K=k) = C(N,k) p(M). Both are computed exactly: by Beta functions, and for a uniform prior on a part of
[0, 1] by Gauss-Legendre quadrature, which is exact for polynomials and has no cancellation.

p(M) and the equivalence with the permuted model hold for the unit `token`. Whole words and spans change which sets
are hidden together: useful for understanding tasks, but no likelihood bound.

Shapes: B rows, L slots, T texts per row.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pmlm.batch import Batch, group_counts, spread
from pmlm.errors import ConfigError
from pmlm.runtime import RowRandom

Unit = Literal["token", "word", "span", "words"]
MOST_WORDS = 5
"""words: the longest run."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The prior p(r) of the masking ratio."""

    kind: Literal["fixed", "uniform", "beta", "table"] = "uniform"
    ratio: float = 0.15
    """fixed: the ratio itself."""
    low: float = 0.0
    high: float = 1.0
    """uniform: the ends of the interval."""
    a: float = 1.0
    b: float = 1.0
    """beta: the two shape parameters."""
    weights: tuple[float, ...] = ()
    """table: the weight of hiding 0, 1, 2, … tokens; a text of N tokens uses the first N + 1, normalised."""

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"the masking ratio must be in (0, 1], got {self.ratio}")
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(f"a uniform prior needs 0 <= low < high <= 1, got [{self.low}, {self.high}]")
        if min(self.a, self.b) <= 0:
            raise ConfigError(f"a beta prior needs a > 0 and b > 0, got {self.a} and {self.b}")
        if self.kind == "table" and not any(w > 0 for w in self.weights[1:]):
            raise ConfigError("a table prior needs a positive weight for some count above 0")
        if any(w < 0 or not math.isfinite(w) for w in self.weights):
            raise ConfigError("the weights of a table prior must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class Masking:
    """How hidden positions are drawn."""

    prior: Prior = Prior()
    draw: Literal["ratio", "count", "stratified"] = "stratified"
    """ratio: r first, then each token on its own. count: K >= 1 from its exact law. stratified: the same with one K
    from each of B equal strata of that law, B being the rows of the global batch: several times less variance."""
    unit: Unit = "token"
    """What is hidden together: nothing, whole words, runs of tokens, or runs of 1 to 5 whole words (XLNet)."""
    mean_span: float = 3.0
    """span: the mean length of a hidden run, in tokens."""
    corruption: Literal["all-mask", "80-10-10"] = "all-mask"
    """What the network reads at a hidden position: [MASK], or BERT's 80 % [MASK], 10 % a random token, 10 % itself.
    The second breaks the likelihood argument: the known tokens can no longer be trusted."""

    start_prior: Prior | None = None
    """Where training starts with another prior of the same kind: its numbers move linearly to those of `prior`."""
    ramp: float = 0.5
    """The share of training after which `prior` is reached."""

    def __post_init__(self) -> None:
        if self.start_prior is not None and (self.start_prior.kind != self.prior.kind or self.prior.kind == "table"):
            raise ConfigError("start_prior must be of the same kind as prior, and no table")
        if not 0 < self.ramp <= 1:
            raise ConfigError(f"ramp must be in (0, 1], got {self.ramp}")
        if self.mean_span < 1:
            raise ConfigError(f"mean_span must be at least 1, got {self.mean_span}")
        if self.prior.kind == "table" and self.draw == "ratio":
            raise ConfigError("a table prior is a law over counts: draw by count or stratified, not by ratio")


def scheduled(masking: Masking, progress: float) -> Masking:
    """The masking at a moment of training, `progress` running from 0 to 1."""
    start, end = masking.start_prior, masking.prior
    if start is None:
        return masking
    done = round(200 * min(1.0, progress / masking.ramp)) / 200  # in steps: each prior's law is computed once
    names = ("ratio", "low", "high", "a", "b")
    now = {name: getattr(start, name) * (1 - done) + getattr(end, name) * done for name in names}
    return replace(masking, prior=replace(end, **now), start_prior=None)


@functools.lru_cache(maxsize=4096)
def count_logp(prior: Prior, num: int) -> np.ndarray:
    """log P(K = k) for k = 0 … num hidden among `num` tokens; float64, read-only."""
    law = _count_law(prior, num)
    law.flags.writeable = False
    return law


def _count_law(prior: Prior, num: int) -> np.ndarray:
    k = np.arange(num + 1)
    match prior.kind:
        case "fixed":
            return _log_binomial(num) + _log_power(prior.ratio, k) + _log_power(1 - prior.ratio, num - k)
        case "beta":
            return _log_binomial(num) + _log_beta(prior.a + k, prior.b + num - k) - _log_beta(prior.a, prior.b)
        case "table":
            weights = np.zeros(num + 1)
            known = min(num + 1, len(prior.weights))
            weights[:known] = prior.weights[:known]
            if weights.sum() <= 0:
                weights[min(num, 1)] = 1.0  # a text too short for the table: hide one token
            with np.errstate(divide="ignore"):
                return np.log(weights / weights.sum())
        case "uniform":
            if (prior.low, prior.high) == (0.0, 1.0):
                return np.full(num + 1, -math.log(num + 1))
            return _log_binomial(num) + _log_uniform_integral(num, prior.low, prior.high)


def pattern_logp(prior: Prior, num_hidden: int, num: int) -> float:
    """log p(M) of one pattern that hides `num_hidden` of `num` tokens (the paper's alpha_M)."""
    return float(count_logp(prior, num)[num_hidden] - _log_binomial(num)[num_hidden])


def _log_gamma(x: np.ndarray) -> np.ndarray:
    return torch.lgamma(torch.as_tensor(x, dtype=torch.float64)).numpy()


def _log_beta(a: float | np.ndarray, b: float | np.ndarray) -> np.ndarray:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)


def _log_binomial(num: int) -> np.ndarray:
    """log C(num, k) for k = 0 … num."""
    k = np.arange(num + 1)
    return -math.log(num + 1) - _log_beta(k + 1.0, num - k + 1.0)


def _log_power(base: float, exponent: np.ndarray) -> np.ndarray:
    """log(base ** exponent) with 0 ** 0 = 1."""
    if base > 0:
        return exponent * math.log(base)
    return np.where(exponent == 0, 0.0, -np.inf)


def _log_uniform_integral(num: int, low: float, high: float) -> np.ndarray:
    """log of the mean of r^k (1-r)^(num-k) over [low, high], k = 0 … num: a polynomial, so quadrature is exact."""
    node, weight = np.polynomial.legendre.leggauss(num // 2 + 1)
    r = low + (node + 1) / 2 * (high - low)
    k = np.arange(num + 1)[:, None]
    terms = k * np.log(r) + (num - k) * np.log1p(-r) + np.log(weight / 2)
    peak = terms.max(axis=1, keepdims=True)
    return (peak + np.log(np.exp(terms - peak).sum(axis=1, keepdims=True)))[:, 0]


@functools.lru_cache(maxsize=4096)
def _positive_count_cdf(prior: Prior, num: int) -> np.ndarray:
    """P(K <= k | K >= 1) for k = 1 … num."""
    p = np.exp(count_logp(prior, num))[1:]
    if p.sum() == 0:
        p[0] = 1.0  # the prior would hide nothing here: hide one token
    cdf = p.cumsum() / p.sum()
    cdf[-1] = 1.0
    return cdf


def quantile_counts(prior: Prior, num_BT: Tensor, u_BT: Tensor) -> Tensor:
    """[B, T] the count K >= 1 at quantile u of its law; 0 for a text with no tokens."""
    if prior.kind == "uniform" and (prior.low, prior.high) == (0.0, 1.0):
        return torch.where(num_BT > 0, 1 + (u_BT * num_BT).floor().long().clamp(max=num_BT - 1), 0)
    num, u = num_BT.flatten().numpy(), u_BT.flatten().numpy()
    counts = np.zeros_like(num)
    for n in np.unique(num[num > 0]):
        here = num == n
        counts[here] = 1 + np.searchsorted(_positive_count_cdf(prior, int(n)), u[here], side="right").clip(max=n - 1)
    return torch.from_numpy(counts).view(num_BT.shape)


def draw_hidden(batch: Batch, masking: Masking, random: RowRandom) -> Tensor:
    """[B, L] which tokens are hidden: counts per text, positions uniform given the count."""
    num_texts, length = batch.num_texts, batch.length
    num_BT = group_counts(batch.maskable_BL, batch.group_BL, num_texts)
    if masking.draw == "ratio":
        target_BT = _draw_binomial_counts(batch, masking.prior, random)
    else:
        draw = random.stratified if masking.draw == "stratified" else random.uniform
        target_BT = quantile_counts(masking.prior, num_BT, draw("count", num_texts))
    key_BL = random.uniform("where", length)
    if masking.unit == "token":
        return text_ranks(batch, key_BL) < spread(target_BT, batch.group_BL)
    return _hide_units(batch, masking, target_BT, key_BL, random)


def _draw_binomial_counts(batch: Batch, prior: Prior, random: RowRandom) -> Tensor:
    """[B, T] counts by the paper's own process: a ratio per text, then each token hidden with that probability."""
    num_texts = batch.num_texts
    match prior.kind:
        case "fixed":
            ratio_BT = torch.full((batch.num_rows, num_texts), prior.ratio, dtype=torch.float64)
        case "uniform":
            ratio_BT = prior.low + random.uniform("ratio", num_texts) * (prior.high - prior.low)
        case "beta":
            left = random.gamma("ratio-a", num_texts, prior.a)
            ratio_BT = left / (left + random.gamma("ratio-b", num_texts, prior.b))
        case "table":
            raise AssertionError("refused by Masking")
    chosen_BL = random.uniform("coin", batch.length) < spread(ratio_BT, batch.group_BL)
    return group_counts(chosen_BL & batch.maskable_BL, batch.group_BL, num_texts)


def text_ranks(batch: Batch, key_BL: Tensor) -> Tensor:
    """[B, L] each maskable slot's rank by key within its own text (0 first); a huge rank elsewhere."""
    group_BL = torch.where(batch.maskable_BL, batch.group_BL, batch.num_texts)
    order_BL = (key_BL + 2.0 * group_BL).argsort(dim=1)
    overall_BL = torch.empty_like(order_BL).scatter_(
        1, order_BL, torch.arange(batch.length, device=key_BL.device).expand_as(order_BL)
    )
    counts_BT = group_counts(batch.maskable_BL, batch.group_BL, batch.num_texts)
    before_BT = counts_BT.cumsum(1) - counts_BT
    rank_BL = overall_BL - spread(before_BT, batch.group_BL)
    return torch.where(batch.maskable_BL, rank_BL, batch.length + 1)


def _hide_units(batch: Batch, masking: Masking, target_BT: Tensor, key_BL: Tensor, random: RowRandom) -> Tensor:
    """Hide whole units (words, or random runs) in random order until the target is reached; the last one is whole."""
    begins_BL = _unit_starts(batch, masking, random)
    slot_L = torch.arange(batch.length)
    first_BL = torch.where(begins_BL, slot_L, 0).cummax(dim=1).values
    unit_key_BL = key_BL.gather(1, first_BL)
    rank_BL = text_ranks(batch, unit_key_BL + slot_L * 1e-9)  # ties inside a unit go left to right
    limit_BL = spread(target_BT, batch.group_BL)
    reached_BL = (rank_BL < limit_BL) & batch.maskable_BL
    by_unit_BL = torch.zeros_like(reached_BL, dtype=torch.long).scatter_add_(1, first_BL, reached_BL.long())
    return (by_unit_BL.gather(1, first_BL) > 0) & batch.maskable_BL


def _unit_starts(batch: Batch, masking: Masking, random: RowRandom) -> Tensor:
    edge_BL = torch.ones_like(batch.maskable_BL)
    edge_BL[:, 1:] = (batch.group_BL[:, 1:] != batch.group_BL[:, :-1]) | ~batch.maskable_BL[:, :-1]
    if masking.unit == "span":
        return edge_BL | (random.uniform("span", batch.length) < 1 / masking.mean_span) | ~batch.maskable_BL
    if batch.starts_word_BL is None:
        raise ConfigError(f"masking.unit = {masking.unit!r} needs a tokenizer that knows where words start")
    begins_BL = edge_BL | batch.starts_word_BL | ~batch.maskable_BL
    if masking.unit == "word":
        return begins_BL
    words_BL = 1 + (random.uniform("span", batch.length) * MOST_WORDS).long()  # of the first run, the second, …
    is_first_BL = torch.zeros(batch.num_rows, batch.length + 1, dtype=torch.bool)  # for each word, whether a run begins
    is_first_BL.scatter_(1, (words_BL.cumsum(1) - words_BL).clamp(max=batch.length), True)
    word_BL = begins_BL.long().cumsum(1) - 1
    return begins_BL & (edge_BL | is_first_BL.gather(1, word_BL) | ~batch.maskable_BL)


def corrupt(
    ids_BL: Tensor, hidden_BL: Tensor, masking: Masking, random: RowRandom, *, mask_id: int, plain_ids_V: Tensor
) -> Tensor:
    """The ids as the network reads them. `plain_ids_V`: the ids that a random replacement is drawn from."""
    seen_BL = torch.where(hidden_BL, mask_id, ids_BL)
    if masking.corruption == "all-mask":
        return seen_BL
    dice_BL = random.uniform("corruption", ids_BL.shape[1])
    pick_BL = (random.uniform("replacement", ids_BL.shape[1]) * len(plain_ids_V)).long()
    seen_BL = torch.where(hidden_BL & (dice_BL >= 0.8), plain_ids_V[pick_BL], seen_BL)
    return torch.where(hidden_BL & (dice_BL >= 0.9), ids_BL, seen_BL)
