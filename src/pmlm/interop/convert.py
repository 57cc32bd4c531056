"""From any format that we know to a loaded model, and back to a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save as dump_safetensors

from pmlm.errors import CheckpointError, ConfigError
from pmlm.interop.bert import read_bert, write_bert
from pmlm.interop.gpt2 import read_gpt2, write_gpt2
from pmlm.interop.vocabulary import save_for_others
from pmlm.lm import LM, load
from pmlm.model.checkpoint import CARD, CONFIG, WEIGHTS, check_target, read_document, replace_folder
from pmlm.tokenizer import load_tokenizer

Format = Literal["pmlm", "bert", "gpt2"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Imported:
    lm: LM
    format: Format
    notes: list[str]
    """What was drawn anew, what was left out: lines for a person."""


def find_format(folder: Path) -> Format:
    """Ours by its section 'model', others by the kind that they name."""
    document = read_document(folder)
    if isinstance(document.get("model"), dict):
        return "pmlm"
    for known in FORMATS[1:]:
        if document.get("model_type") == known:
            return known
    raise CheckpointError(
        f"{folder / CONFIG} has model_type {document.get('model_type')!r}. Known: {', '.join(FORMATS[1:])}."
    )


def read_model(folder: Path, *, tokenizer: Path | None = None, seed: int = 0) -> Imported:
    """A checkpoint of any format; `tokenizer`: the folder of its vocabulary where that is another."""
    kind = find_format(folder)
    if kind == "pmlm":
        return Imported(load(folder, device="cpu"), kind, [])
    document = read_document(folder)
    vocabulary = load_tokenizer(folder if tokenizer is None else tokenizer)
    if kind == "bert":
        model, notes = read_bert(folder, document, vocabulary, seed)
    else:
        model, notes = read_gpt2(folder, document, vocabulary)
    about = {"name": folder.resolve().name, "converted_from": kind, **document.get("pmlm", {}).get("about", {})}
    if notes:
        about["conversion"] = notes
    return Imported(LM(model, vocabulary, about, folder), kind, notes)


def write_model(lm: LM, folder: Path, kind: Format, *, storage: str = "float32") -> None:
    """A folder in the wanted format; CheckpointError where that has no place for such a model."""
    if kind == "pmlm":
        lm.save(folder, card=_imported_card(lm), storage=storage)
        return
    if storage != "float32":
        raise ConfigError("only our own format stores weights in 16 bits")
    write = write_bert if kind == "bert" else write_gpt2
    document, tensors = write(lm.model, lm.tokenizer)
    document["pmlm"]["about"] = lm.about
    check_target(folder.resolve())

    def fill(part: Path) -> None:
        (part / WEIGHTS).write_bytes(dump_safetensors(tensors, metadata={"format": "pt"}))
        (part / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        (part / CARD).write_text(_card(lm.about, kind), encoding="utf-8")
        save_for_others(lm.tokenizer, part, max_length=lm.model.config.max_length, has_end=kind == "bert")

    replace_folder(folder.resolve(), fill)


def _imported_card(lm: LM) -> str:
    """Of a model that came in another format: what it is now, and the card that it came with; else none."""
    if lm.folder is None or find_format(lm.folder) == "pmlm":
        return ""
    path = lm.folder / CARD
    before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    _, front, text = (
        before.split("---\n", 2) if before.startswith("---\n") and before.count("---\n") > 1 else ("", "", before)
    )
    parts = [_card(lm.about, "pmlm")]
    if before:
        parts.append("## The card that it came with\n")
        parts += [f"```yaml\n{front}```\n"] * bool(front) + [text.strip() + "\n"]
    return "\n".join(parts)


def _card(about: dict[str, Any], kind: Format) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in about.items() if name != "name")
    return f"# {about.get('name', 'A pmlm model')}\n\nWritten by `pmlm convert --to {kind}`.\n\n{facts}\n"
