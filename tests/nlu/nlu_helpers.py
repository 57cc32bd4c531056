"""Small models, data and settings for the tests of language understanding."""

from pathlib import Path
from typing import Any

import torch

from fakes import tiny_config
from pmlm.config import from_dict
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.nlu.finetuned import Start, load_start
from pmlm.nlu.settings import FinetuneSettings
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer

CPU = torch.device("cpu")
GOOD = ["good", "great", "fine", "warm", "lovely"]
BAD = ["bad", "dull", "poor", "cold", "awful"]
THINGS = ["film", "story", "song", "cat", "house", "book"]
TEXTS = [f"The {thing} was {word} and {other}." for thing in THINGS for word in GOOD + BAD for other in GOOD + BAD]
TOKENIZER = train_tokenizer([*TEXTS, "Who what where which is one two 0 1 2 3"], vocab_size=330)


def make_start(tmp_path: Path, **changes: Any) -> Start:
    """A random tiny model, saved and loaded as any other."""
    save_model(tmp_path / "start", **changes)
    return load_start(tmp_path / "start")


def save_model(folder: Path, **changes: Any) -> Path:
    shape = {"vocab_size": TOKENIZER.vocab_size, "mask_id": TOKENIZER.mask_id, "forbidden_ids": TOKENIZER.forbidden_ids,
             "max_length": 32, "init_std": 0.05, **changes}  # fmt: skip
    LM(build_model(tiny_config(**shape), generator(1, "start")), TOKENIZER, {"name": "tiny"}, None).save(folder)
    return folder


def make_settings(**changes: Any) -> FinetuneSettings:
    optim = {"lr": 3e-3, "beta2": 0.999, **changes.pop("optim", {})}
    return from_dict(FinetuneSettings, {"epochs": 2, "batch_rows": 16, "dropout": 0.1, "optim": optim, **changes})


def sentiment(num: int, seed: int = 0) -> list[tuple[str, int]]:
    """Sentences whose class is seen from one word; no two alike."""
    rng = generator(seed, "sentiment")
    order = torch.randperm(len(THINGS) * 10 * 4, generator=rng).tolist()
    rows = []
    for i in order[:num]:
        thing, word, tail = THINGS[i % 6], (GOOD + BAD)[i // 6 % 10], ["", " one", " two", " is"][i // 60]
        rows.append((f"The {thing} was {word}{tail}.", int(word in GOOD)))
    return rows


def write_sst(folder: Path, num: int = 240, dev: int = 60) -> Path:
    """A data folder that holds SST-2 alone, in the official layout."""
    rows = sentiment(num)
    (folder / "SST-2").mkdir(parents=True, exist_ok=True)
    for name, part in (("train", rows[dev:]), ("dev", rows[:dev])):
        lines = ["sentence\tlabel", *(f"{text} \t{label}" for text, label in part)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    lines = ["index\tsentence", *(f"{i}\tThe {w} {t}." for i, (t, w) in enumerate(zip(THINGS, GOOD, strict=False)))]
    (folder / "SST-2" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder


def write_rte(folder: Path, num: int = 120, dev: int = 40) -> Path:
    """RTE: the second sentence repeats the word of the first, or does not."""
    (folder / "RTE").mkdir(parents=True, exist_ok=True)
    rng = generator(3, "rte")
    pairs = [(a, b, t) for a in GOOD + BAD for b in GOOD + BAD for t in THINGS]
    order = torch.randperm(len(pairs), generator=rng).tolist()[:num]
    lines = [
        f"{i}\tThe {t} was {a}.\tIt was {b}.\t{'entailment' if a == b else 'not_entailment'}"
        for i, (a, b, t) in enumerate(pairs[k] for k in order)
    ]
    head = "index\tsentence1\tsentence2\tlabel"
    (folder / "RTE" / "train.tsv").write_text("\n".join([head, *lines[dev:]]) + "\n")
    (folder / "RTE" / "dev.tsv").write_text("\n".join([head, *lines[:dev]]) + "\n")
    return folder
