"""A tokenizer as transformers expects it beside a model: the markers put around a text, the special tokens by role.

A reversible vocabulary spells a word with the space before it, so [MASK] swallows that space, and a text given to
transformers should begin with one; BERT's pieces know no spaces.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from pmlm.tokenizer import FILE, Tokenizer

ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def save_for_others(tokenizer: Tokenizer, folder: Path, *, max_length: int, has_end: bool) -> None:
    """tokenizer.json and tokenizer_config.json, and vocab.txt for BERT's pieces; `has_end`: texts end in a marker."""
    backend = Backend.from_str(tokenizer.to_json())
    _, _, start, end, mask = tokenizer.special_names
    if start != end:
        tail = f" {end}" if has_end else ""
        markers = [(start, tokenizer.start_id), (end, tokenizer.end_id)][: 1 + has_end]
        backend.post_processor = processors.TemplateProcessing(single=f"{start} $A{tail}", special_tokens=markers)
    if tokenizer.kind == "reversible":
        backend.add_special_tokens([AddedToken(mask, lstrip=mask != start, normalized=False, special=True)])
    (folder / FILE).write_text(backend.to_str(pretty=True), encoding="utf-8")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "bos_token": start,
        "eos_token": end,
        **dict(zip(ROLES, tokenizer.special_names, strict=True)),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if tokenizer.kind == "wordpiece":
        (folder / "vocab.txt").write_text("\n".join(tokenizer.names()) + "\n", encoding="utf-8")
