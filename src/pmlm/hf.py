"""Our checkpoints in transformers: after `import pmlm.hf` the Auto classes open them, with no remote code.

`AutoModelForMaskedLM` asks a model for its [MASK]s given everything else, whatever its visibility;
`AutoModelForCausalLM` opens those trained from left to right, whose logits are then shifted as transformers shifts
them. Files are read and written by `pmlm.load` and `LM.save`, with their checks; computing is in float32. A u-PMLM-A of
BERT's shape needs none of this: see `pmlm convert --to bert`.

Shapes: B batch, L slots, V vocabulary.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from pmlm.batch import Batch
from pmlm.errors import CheckpointError
from pmlm.interop.vocabulary import backend_for_others, special_tokens
from pmlm.lm import LM, load
from pmlm.model import Slots, Visibility
from pmlm.model.checkpoint import MODEL_TYPE, read_config
from pmlm.tokenizer import load_tokenizer
from pmlm.visibility import hidden_inputs, reading_inputs


class PmlmConfig(PreTrainedConfig):
    """What transformers asks a configuration; the real one is in the checkpoint."""

    model_type = MODEL_TYPE
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    max_position_embeddings: int = 0
    visibilities: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """From config.json as we write it."""
        shape = config_dict.get("model", config_dict)
        ours = {
            "vocab_size": "vocab_size",
            "hidden_size": "width",
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "max_position_embeddings": "max_length",
            "visibilities": "visibilities",
        }
        known = {theirs: shape[name] for theirs, name in ours.items() if name in shape}
        return super().from_dict(known | {"model_type": MODEL_TYPE}, **kwargs)


class PmlmModel(PreTrainedModel):
    """A loaded checkpoint, as a model of transformers."""

    config_class = PmlmConfig
    main_input_name = "input_ids"
    wanted: ClassVar[tuple[Visibility, ...]]
    """The visibilities that this kind of model can use; the first that the checkpoint knows is used."""

    def __init__(self, config: PmlmConfig, lm: LM) -> None:
        super().__init__(config)
        known = [v for v in lm.model.config.visibilities if v in self.wanted]
        if not known:
            trained = ", ".join(lm.model.config.visibilities)
            raise CheckpointError(
                f"this model was trained for {trained}: {type(self).__name__} needs one of {', '.join(self.wanted)}"
            )
        self.visibility = known[0]
        self.core = lm.model
        self.lm = lm

    @classmethod
    def from_pretrained(cls, folder: str | Path, *_: Any, config: Any = None, **options: Any) -> Any:
        """From a folder of ours; 16-bit types and placement over devices are refused, as they would be ignored."""
        if options.get("dtype") not in (None, "auto", torch.float32) or options.get("device_map") is not None:
            raise CheckpointError("pmlm.hf loads in float32 on one device: leave out dtype and device_map")
        lm = load(folder, device="cpu")
        return cls(config or PmlmConfig.from_pretrained(folder), lm).eval()

    def save_pretrained(self, folder: str | Path, **_: Any) -> None:
        """Our own format, tokenizer included."""
        self.lm.save(folder)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.core.backbone.tokens

    def _loss(self, logits_BLV: Tensor, labels_BL: Tensor | None) -> Tensor | None:
        if labels_BL is None:
            return None
        return F.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten())


class PmlmForMaskedLM(PmlmModel):
    wanted = ("bidirectional", "known-only", "order-causal", "two-stream")

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> MaskedLMOutput:
        """Logits of each slot; of an ordered model they mean something at the [MASK]s alone."""
        batch = _batch(input_ids, attention_mask)
        hidden_BL = (input_ids == self.core.config.mask_id) & (batch.group_BL == 0)
        zero_BL = torch.zeros_like(input_ids)
        inputs, first = hidden_inputs(batch, hidden_BL, zero_BL, self.visibility, self.core.config.mask_id)
        at = Slots.where(torch.ones_like(hidden_BL))
        logits_MV = self.core(inputs, Slots(at.rows_M, at.slots_M + first))
        logits_BLV = logits_MV.unflatten(0, input_ids.shape)
        return MaskedLMOutput(loss=self._loss(logits_BLV, labels), logits=logits_BLV)


class PmlmForCausalLM(PmlmModel, GenerationMixin):
    wanted = ("causal",)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        """Logits of the token after each slot, as transformers has it."""
        inputs = reading_inputs(_batch(input_ids, attention_mask), "causal")
        logits_MV = self.core(inputs, Slots.where(torch.ones_like(input_ids, dtype=torch.bool)))
        logits_BLV = logits_MV.unflatten(0, input_ids.shape)
        next_BL = None if labels is None else F.pad(labels[:, 1:], (0, 1), value=-100)
        return CausalLMOutput(loss=self._loss(logits_BLV, next_BL), logits=logits_BLV)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *_: Any, attention_mask: Tensor | None = None, **__: Any
    ) -> dict[str, Any]:
        """The whole text at each step: there is no cache here (`pmlm.load` has one)."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class PmlmTokenizer(PreTrainedTokenizerFast):
    """Our vocabulary with the markers that its model reads."""

    @classmethod
    def from_pretrained(cls, folder: str | Path, *_: Any, **__: Any) -> Any:
        document = read_config(Path(folder))
        tokenizer = load_tokenizer(Path(folder))
        has_end = document["model"].get("visibilities", ["bidirectional"])[0] != "causal"
        return cls(
            tokenizer_object=backend_for_others(tokenizer, has_end=has_end),
            model_max_length=document["model"].get("max_length"),
            clean_up_tokenization_spaces=False,
            **special_tokens(tokenizer),
        )


def _batch(ids_BL: Tensor, attention_mask_BL: Tensor | None) -> Batch:
    group_BL = torch.zeros_like(ids_BL)
    if attention_mask_BL is not None:
        group_BL = torch.where(attention_mask_BL.bool(), 0, -1)
    return Batch(ids_BL, group_BL == 0, group_BL)


AutoConfig.register(MODEL_TYPE, PmlmConfig)
AutoModelForMaskedLM.register(PmlmConfig, PmlmForMaskedLM)
AutoModelForCausalLM.register(PmlmConfig, PmlmForCausalLM)
AutoTokenizer.register(PmlmConfig, PmlmTokenizer)
