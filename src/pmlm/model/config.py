"""The shape of a network. The paper's is BERT-base: 12 layers of 768, post-norm, absolute or relative positions."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from pmlm.errors import ConfigError

Positions = Literal["absolute", "relative", "relative-sinusoidal", "rotary", "transformer-xl"]
"""absolute: learned, added to the tokens (A). relative: learned tables on keys and values, after Shaw et al. (R).
relative-sinusoidal: the same with the fixed sinusoids of the authors' release. rotary: rotated queries and keys.
transformer-xl: projected sinusoids on keys, with a bias for content and one for distance (XLNet)."""

Activation = Literal["gelu", "gelu-tanh", "relu"]

Visibility = Literal["bidirectional", "causal", "order-causal", "known-only", "two-stream"]
"""Who may look at whom: see pmlm.visibility."""

VISIBILITIES: tuple[Visibility, ...] = get_args(Visibility)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What a person chooses of a network; the vocabulary and the objective decide the rest."""

    num_layers: int = 12
    width: int = 768
    num_heads: int = 12
    ff_width: int = 3072
    max_length: int = 128
    """The most slots that one text may have, markers included."""
    positions: Positions = "absolute"
    relative_clip: int = 127
    """Relative offsets beyond this are treated alike."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after each sub-layer (BERT) or before it."""
    norm_input: bool = True
    """post: the sum of the embeddings is normalised too (BERT); it is not in XLNet."""
    norm_eps: float = 1e-12
    dropout: float = 0.1
    num_token_types: int = 0
    """Token-type (segment) embeddings; 2 in BERT, 0 for none."""
    scale_attention: bool = True
    """False reproduces the authors' released A checkpoint, which runs without the 1/sqrt(head width)."""
    activation: Activation = "gelu"
    """Of the feed-forward layers and of BERT's head: gelu with erf (BERT), its tanh approximation (GPT-2), or relu."""
    head: Literal["bert", "bias", "tied"] = "bert"
    """Beside the tied token embedding: BERT's transform and a bias; a bias alone (XLNet); nothing (GPT-2)."""
    init_std: float = 0.02
    near_start: float = 0.0
    """Half of a layer's heads begin by looking at one neighbour each, by so many nats over the slots beside it; 0: no
    head prefers anything. Masked models then learn from the first steps on (docs/log.md)."""

    def __post_init__(self) -> None:
        names = ("num_layers", "width", "num_heads", "ff_width", "max_length", "relative_clip")
        problems = [
            f"{name} must be at least 1, got {getattr(self, name)}" for name in names if getattr(self, name) < 1
        ]
        if not problems and self.width % self.num_heads:
            problems.append(f"width {self.width} is not a multiple of num_heads {self.num_heads}")
        if not problems and self.positions in ("rotary", "relative-sinusoidal") and self.head_width % 2:
            problems.append(f"{self.positions} positions need an even head width, got {self.head_width}")
        if not problems and self.positions == "transformer-xl" and self.width % 2:
            problems.append(f"transformer-xl positions need an even width, got {self.width}")
        if self.num_token_types < 0:
            problems.append(f"num_token_types must not be negative, got {self.num_token_types}")
        if not (math.isfinite(self.norm_eps) and self.norm_eps > 0):
            problems.append(f"norm_eps must be a positive number, got {self.norm_eps}")
        if not (math.isfinite(self.init_std) and self.init_std >= 0):
            problems.append(f"init_std must not be negative, got {self.init_std}")
        if not (math.isfinite(self.near_start) and self.near_start >= 0):
            problems.append(f"near_start must not be negative, got {self.near_start}")
        if self.near_start and self.positions == "absolute" and self.width < 4:
            problems.append(f"near_start needs a width of at least 4 with absolute positions, got {self.width}")
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout must be in [0, 1), got {self.dropout}")
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape):
    """Everything that the weights fit to."""

    vocab_size: int
    mask_id: int = 0
    """The id that stands in for a hidden token."""
    forbidden_ids: tuple[int, ...] = ()
    """Ids that the model gives probability zero, in training as in use: the special tokens."""
    visibilities: tuple[Visibility, ...] = ("bidirectional",)
    """What the weights were trained for; the first is the default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, got {self.vocab_size}")
        if any(not 0 <= i < self.vocab_size for i in (self.mask_id, *self.forbidden_ids)):
            raise ConfigError(f"mask_id and forbidden_ids must be ids below vocab_size {self.vocab_size}")
        if not self.visibilities:
            raise ConfigError("visibilities must name at least one")
