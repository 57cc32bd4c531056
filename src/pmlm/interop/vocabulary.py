"""A tokenizer as transformers expects it beside a model: the markers put around a text, the special tokens by role.

A reversible vocabulary spells a word with the space before it, so [MASK] swallows that space, and a text given to
transformers should begin with one; BERT's pieces know no spaces.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from pmlm.tokenizer import FILE, Tokenizer

ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def backend_for_others(tokenizer: Tokenizer, *, has_end: bool) -> Backend:
    """The pipeline with markers; `has_end`: texts end in one too."""
    backend = Backend.from_str(tokenizer.to_json())
    _, _, start, end, mask = tokenizer.special_names
    if start != end:
        tail = f" {end}" if has_end else ""
        markers = [(start, tokenizer.start_id), (end, tokenizer.end_id)][: 1 + has_end]
        backend.post_processor = processors.TemplateProcessing(single=f"{start} $A{tail}", special_tokens=markers)
        if tokenizer.kind == "reversible":
            backend.add_special_tokens([AddedToken(mask, lstrip=True, normalized=False, special=True)])
    return backend


def special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Their names for the roles."""
    by_role = dict(zip(ROLES, tokenizer.special_names, strict=True))
    return by_role | {"bos_token": by_role["cls_token"], "eos_token": by_role["sep_token"]}


def save_for_others(tokenizer: Tokenizer, folder: Path, *, max_length: int, has_end: bool) -> None:
    """tokenizer.json and tokenizer_config.json, and vocab.txt for BERT's pieces."""
    backend = backend_for_others(tokenizer, has_end=has_end)
    (folder / FILE).write_text(backend.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        **special_tokens(tokenizer),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if tokenizer.kind == "wordpiece":
        (folder / "vocab.txt").write_text("\n".join(tokenizer.names()) + "\n", encoding="utf-8")
