"""What stands on the backbone: the language-model head of BERT, a pooler with a classifier, and a span head.

`LanguageModel.forward(inputs, at)` returns the logits of the tokens predicted *at* the given slots and nowhere else:
the vocabulary head is the dearest part of a small model.

Shapes: B batch, L slots, D width, M wanted slots, V vocabulary, C classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmlm.model.backbone import Backbone, Inputs, Slots, activation, initialise
from pmlm.model.cache import LayerCache
from pmlm.model.config import ModelConfig


class LmHead(nn.Module):
    """A decoder tied to the token embedding; before it BERT's transform and norm, after it a bias, where wanted."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        is_bert = config.head == "bert"
        self.activation = activation(config.activation)
        self.transform = nn.Linear(config.width, config.width) if is_bert else None
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps) if is_bert else None
        self.bias = None if config.head == "tied" else nn.Parameter(torch.zeros(config.vocab_size))
        allowed_V = torch.ones(config.vocab_size, dtype=torch.bool)
        allowed_V[list(config.forbidden_ids)] = False
        self.register_buffer("allowed_V", allowed_V, persistent=False)

    def forward(self, hidden_MD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Logits; minus infinity at the forbidden ids, so that they have probability zero everywhere."""
        x = hidden_MD
        if self.transform is not None and self.norm is not None:
            x = self.norm(self.activation(self.transform(x)))
        bias = x.new_zeros(len(embedding_VD)) if self.bias is None else self.bias
        bias = bias.masked_fill(~self.get_buffer("allowed_V"), -torch.inf)
        return F.linear(x, embedding_VD, bias)


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

    @property
    def device(self) -> torch.device:
        return self.backbone.tokens.weight.device

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())


def build_model(config: ModelConfig, rng: torch.Generator) -> LanguageModel:
    """A freshly initialised language model."""
    model = LanguageModel(config)
    initialise(model, config.init_std, rng)
    return model


class Pooler(nn.Module):
    """BERT's summary of a text: a dense layer with tanh on its first slot."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, hidden_BD: Tensor) -> Tensor:
        return self.dense(hidden_BD).tanh()


class Classifier(nn.Module):
    """Classes (or one number, for regression) of a text or a pair of texts, read at the first slot."""

    def __init__(self, backbone: Backbone, num_outputs: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooler = Pooler(backbone.config.width)
        self.dropout = nn.Dropout(backbone.config.dropout)
        self.output = nn.Linear(backbone.config.width, num_outputs)

    def forward(self, inputs: Inputs) -> Tensor:
        """[B, C]"""
        rows_B = torch.arange(inputs.ids_BL.shape[0], device=inputs.ids_BL.device)
        hidden_BD = self.backbone(inputs, Slots(rows_B, torch.zeros_like(rows_B)))
        logits: Tensor = self.output(self.dropout(self.pooler(hidden_BD)))
        return logits


class SpanReader(nn.Module):
    """Scores of each slot as the start and as the end of an answer."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.output = nn.Linear(backbone.config.width, 2)

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """start_BL and end_BL"""
        start_BL, end_BL = self.output(self.backbone(inputs)).unbind(-1)
        return start_BL, end_BL
