"""What stands on the backbone: the language-model head of BERT, classifiers behind a pooler, and a span head.

`LanguageModel.forward(inputs, at)` returns the logits of the tokens predicted *at* the given slots and nowhere else:
the vocabulary head is the dearest part of a small model. A `TaskModel` has no such head, but one for each task that it
was fine-tuned for, by name.

Shapes: B batch, L slots, D width, M wanted slots, V vocabulary, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pmlm.errors import ConfigError
from pmlm.model.backbone import Backbone, Inputs, Slots, activation
from pmlm.model.cache import LayerCache
from pmlm.model.config import ModelConfig
from pmlm.model.linear import Linear, Packed, pack_for, product, stamp
from pmlm.model.start import initialise, look_near

Pooling = Literal["first", "last", "mean"]
"""Where a text's summary is read: at its first slot (BERT), its last (left-to-right models), or as the mean."""


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A head by the task it was trained for."""

    name: str
    kind: Literal["classes", "number", "span"]
    labels: tuple[str, ...] = ()
    """classes: what the outputs mean, in order."""
    is_pair: bool = False
    """Whether it reads two texts."""
    pooling: Pooling = "first"
    linear: bool = False
    """classes and number: a linear map of the pooled text, without BERT's dense layer and tanh before it."""
    low: float = 0.0
    high: float = 0.0
    """number: the range of the scale."""
    threshold: float = 0.0
    """span: no answer is given where "none" scores more than this above the best span."""
    length: int | None = None
    """The most slots of a row that it was trained and measured with; of a span head, the slots of a window."""
    stride: int | None = None
    question: int | None = None
    answer: int | None = None
    """span: the step from one window to the next and the most pieces of a question and of an answer, as they were when
    the threshold was found."""

    def __post_init__(self) -> None:
        if not self.name or "." in self.name:
            raise ConfigError(f"a head's name is a word without dots, got {self.name!r}")
        if self.kind == "classes" and len(self.labels) < 2:
            raise ConfigError(f"the head {self.name!r} needs at least two labels, got {len(self.labels)}")
        if self.kind == "number" and not self.low < self.high:
            raise ConfigError(f"the scale of the head {self.name!r} must rise, got {self.low} to {self.high}")


class LmHead(nn.Module):
    """A decoder tied to the token embedding; before it BERT's transform and norm, after it a bias, where wanted."""

    packed: Packed | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        is_bert = config.head == "bert"
        self.activation = activation(config.activation)
        self.transform = Linear(config.width, config.width) if is_bert else None
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if is_bert else None
        self.bias = None if config.head == "tied" else nn.Parameter(torch.zeros(config.vocab_size))
        allowed_V = torch.ones(config.vocab_size, dtype=torch.bool)
        allowed_V[list(config.forbidden_ids)] = False
        self.register_buffer("allowed_V", allowed_V, persistent=False)
        self._kept: tuple[tuple[object, ...], Tensor] | None = None

    def forward(self, hidden_MD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Logits; minus infinity at the forbidden ids, so that they have probability zero everywhere."""
        x = hidden_MD
        if self.transform is not None and self.norm is not None:
            x = self.norm(self.activation(self.transform(x)))
        return product(x, embedding_VD, self._bias(embedding_VD), self.packed)

    def pack(self, embedding_VD: Tensor, rows: int) -> None:
        """Prepare for predictions of so many slots; see pmlm.model.linear."""
        self.packed = pack_for(embedding_VD, rows, self.packed)
        self._kept = self._stamp(embedding_VD), self._masked_bias(embedding_VD).detach()

    def _stamp(self, embedding_VD: Tensor) -> tuple[object, ...]:
        return stamp(embedding_VD if self.bias is None else self.bias)

    def _bias(self, embedding_VD: Tensor) -> Tensor:
        """[V] with minus infinity at the forbidden ids."""
        if self._kept is None or torch.is_grad_enabled() or self._kept[0] != self._stamp(embedding_VD):
            return self._masked_bias(embedding_VD)
        return self._kept[1]

    def _masked_bias(self, embedding_VD: Tensor) -> Tensor:
        bias = embedding_VD.new_zeros(len(embedding_VD)) if self.bias is None else self.bias
        return bias.masked_fill(~self.get_buffer("allowed_V"), -torch.inf)


class LanguageModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.head = LmHead(config)

    def forward(self, inputs: Inputs, at: Slots) -> Tensor:
        """[M, V] unnormalised log-probabilities at the given slots."""
        logits: Tensor = self.head(self.backbone(inputs, at), self.backbone.tokens.weight)
        return logits

    def step(self, inputs: Inputs, key_positions_BK: Tensor, at: Slots, layers: list[LayerCache]) -> Tensor:
        """[M, V] as `forward`, for a few slots that see the columns of a cache."""
        hidden_MD = self.backbone.step(inputs, key_positions_BK, at, layers)
        logits: Tensor = self.head(hidden_MD, self.backbone.tokens.weight)
        return logits

    def pack(self, rows: int, predictions: int) -> None:
        """Lay out copies of the weights for passes of so many rows (slots of all texts) and predictions."""
        for part in self.modules():
            if isinstance(part, Linear):
                part.pack(rows)
        self.head.pack(self.backbone.tokens.weight, predictions)

    @property
    def device(self) -> torch.device:
        return self.backbone.tokens.weight.device

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())


def build_model(config: ModelConfig, rng: torch.Generator) -> LanguageModel:
    """A freshly initialised language model."""
    model = LanguageModel(config)
    initialise(model, config.init_std, rng)
    if config.near_start:
        look_near(model, config)
    return model


class Pooler(nn.Module):
    """BERT's summary of a text: a dense layer with tanh on one vector per row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, hidden_BD: Tensor) -> Tensor:
        return self.dense(hidden_BD).tanh()


class ClassifierHead(nn.Module):
    """Classes (or one number, for regression) of a text or a pair of texts."""

    def __init__(self, width: int, num_outputs: int, pooling: Pooling, dropout: float, *, linear: bool) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.pooler = nn.Identity() if linear else Pooler(width)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, num_outputs)

    def forward(self, backbone: Backbone, inputs: Inputs, is_token_BL: Tensor) -> Tensor:
        """[B, C]"""
        logits: Tensor = self.output(self.dropout(self.pooler(self._pooled(backbone, inputs, is_token_BL))))
        return logits

    def _pooled(self, backbone: Backbone, inputs: Inputs, is_token_BL: Tensor) -> Tensor:
        """[B, D]"""
        if self.pooling == "mean":
            return row_means(backbone(inputs), is_token_BL)
        rows_B = torch.arange(len(is_token_BL), device=is_token_BL.device)
        last_B = is_token_BL.sum(dim=1) - 1
        return backbone(inputs, Slots(rows_B, last_B if self.pooling == "last" else torch.zeros_like(rows_B)))


def row_means(hidden_BLD: Tensor, is_token_BL: Tensor) -> Tensor:
    """[B, D] over the tokens of each row."""
    sum_BD: Tensor = torch.einsum("bld,bl->bd", hidden_BLD, is_token_BL.to(hidden_BLD.dtype))
    return sum_BD / is_token_BL.sum(dim=1, keepdim=True)


class SpanHead(nn.Module):
    """Scores of each slot as the start and as the end of an answer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)

    def forward(self, backbone: Backbone, inputs: Inputs, is_token_BL: Tensor) -> Tensor:
        """[B, L, 2], minus infinity in padding."""
        scores_BL2: Tensor = self.output(backbone(inputs))
        return scores_BL2.masked_fill(~is_token_BL[:, :, None], -torch.inf)


class TaskModel(nn.Module):
    """One backbone read by one head per task."""

    def __init__(self, config: ModelConfig, specs: Sequence[HeadSpec], *, frozen: bool = False) -> None:
        super().__init__()
        self.config, self.specs = config, {spec.name: spec for spec in specs}
        self.backbone = Backbone(config)
        self.heads = nn.ModuleDict({spec.name: _build_head(config, spec) for spec in specs})
        self.frozen = frozen
        self.backbone.requires_grad_(not frozen)

    def forward(self, inputs: Inputs, is_token_BL: Tensor, name: str) -> Tensor:
        """What the named head says: [B, C] of classes, [B, 1] of a number, [B, L, 2] of a span."""
        said: Tensor = self.heads[name](self.backbone, inputs, is_token_BL)
        return said

    def train(self, mode: bool = True) -> "TaskModel":
        super().train(mode)
        if self.frozen:
            self.backbone.eval()  # what is not trained is read as in use, without dropout
        return self

    @property
    def device(self) -> torch.device:
        return self.backbone.tokens.weight.device

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())


def _build_head(config: ModelConfig, spec: HeadSpec) -> nn.Module:
    match spec.kind:
        case "classes":
            return ClassifierHead(config.width, len(spec.labels), spec.pooling, config.dropout, linear=spec.linear)
        case "number":
            return ClassifierHead(config.width, 1, spec.pooling, config.dropout, linear=spec.linear)
        case "span":
            return SpanHead(config.width)


def build_task_model(
    backbone: Backbone,
    specs: Sequence[HeadSpec],
    rng: torch.Generator,
    *,
    config: ModelConfig | None = None,
    frozen: bool = False,
) -> TaskModel:
    """Fresh heads on a copy of a trained backbone; `config` may change what is no weight, such as dropout."""
    model = TaskModel(config or backbone.config, specs, frozen=frozen)
    initialise(model.heads, backbone.config.init_std, rng)
    model.backbone.load_state_dict(backbone.state_dict())
    return model
