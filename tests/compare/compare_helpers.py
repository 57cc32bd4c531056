"""What the tests of the comparison share: studies that train nothing, records, and a few texts."""

import json
import lzma
import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from pmlm.cli import app
from pmlm.compare.arms import ARMS
from pmlm.compare.protocol import RowTokens, arm_settings, tune_settings
from pmlm.compare.records import read_record
from pmlm.compare.settings import load_compare_settings
from pmlm.compare.stages import Comparison
from pmlm.compare.units import Unit
from pmlm.corpus.shards import Corpus
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.runtime import generator
from pmlm.training.settings import model_config

TINY = load_compare_settings("tiny", [])
ROW_TOKENS = RowTokens(packed=60.0, own=20.0)


def differing(one: dict[str, Any], other: dict[str, Any], where: str = "") -> set[str]:
    found = set()
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differing(a, b, f"{where}{key}.")
        elif a != b:
            found.add(where + key)
    return found


ROOT = Path(__file__).parents[2]


LAPTOP = ROOT / "results/comparison/laptop"


def check_origin(path: Path) -> None:
    """Each record says what it was made of, by what, where and in which time."""
    record = read_record(path)
    assert record["settings"]["run"], path
    assert {"pretrain", "heldout"} <= record["settings"]["data"].keys(), path
    assert record["seed"] == record["settings"]["run"]["seed"], path
    assert record.get("training", record)["tokens"] > 0, path
    assert record["made"]["seconds"] >= 0, path
    assert record["made"]["commit"] is None or len(record["made"]["commit"]) >= 40, path  # None outside a repository
    assert "torch" in record["made"]["machine"], path


def fresh(corpus: Corpus, name: str, packing: str = "packed") -> LM:
    settings = (
        arm_settings(TINY, name, 1)
        if packing == "packed"
        else tune_settings(TINY, name, 1, "lm1b", packing, ROW_TOKENS)
    )
    config = model_config(settings, corpus.tokenizer)
    return LM(build_model(config, generator(1)), corpus.tokenizer, {}, None)


def comparison(tmp_path: Path, said: list[str], kept: tuple[str, ...] = ()) -> Comparison:
    study = Comparison(
        replace(TINY, kept=kept), tmp_path, tmp_path / "work", tmp_path / "out", device=torch.device("cpu"),
        drive=lambda _run: None, say=said.append,
    )  # fmt: skip
    vars(study.corpora)["row_tokens"] = ROW_TOKENS  # for which there are no texts
    study._check_sources = lambda _stages: None  # type: ignore[method-assign]
    return study


def put_record(study: Comparison, unit: Unit) -> Path:
    path = study._path(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"settings": study._unit_settings(unit), "model": unit.model, "seed": unit.seed, "made": {"seconds": 1}}
    path.write_text(json.dumps(record))
    return path


def with_fakes(study: Comparison) -> list[str]:
    """What is made, in order, by a comparison that trains and measures nothing."""
    made: list[str] = []

    def fake(unit: Unit) -> dict[str, Any]:
        made.append(unit.label)
        if unit.stage == "pretrain":
            (study.work / "runs" / unit.name / "model").mkdir(parents=True)
        return {"tokens": 1}

    study._made = fake  # type: ignore[method-assign]
    return made


def figure(perplexity: float) -> dict[str, Any]:
    """Of three windows of two documents, the second a nat harder than it should be for every perplexity but 11."""
    rows = [math.log(perplexity) * tokens for tokens in (10, 10, 20)]
    rows[1] += 0.0 if perplexity == 11.0 else 1.0
    return {"perplexity": perplexity, "perplexity_stderr": 0.5, "bits_per_byte": 2.0,
            "bits_per_byte_stderr": 0.125, "rows": 4, "row_nll": rows}  # fmt: skip


def write_perplexity(out: Path, name: str, sequential: float, shuffled: float | None, seed: int = 1) -> None:
    exact = {"l2r": figure(sequential)} | ({} if shuffled is None else {"random": figure(shuffled)})
    record = {
        "model": name, "title": ARMS[name].title, "seed": seed,
        "wikitext": {
            "context": 8, "windows": 9, "unknown_share": 0.0, "unk_words": 0.01, "exact_rows": [[0, 10], [0, 10], [1, 20]],
            "bidirectional" if shuffled is not None else "causal": {"exact": exact, "bound": figure(9.0)},
        },
    }  # fmt: skip
    (out / "perplexity").mkdir(parents=True, exist_ok=True)
    (out / "perplexity" / f"{name}-{seed}.json").write_text(json.dumps(record))


def write_sentences(out: Path, stage: str, name: str, visibility: str, kind: str) -> None:
    found = {"l2r": {kind: figure(20.0), "x and N": figure(30.0)}, "bound": figure(9.0)}
    record = {
        "model": name, "title": ARMS[name].title, "seed": 1,
        "lm1b": {"context": 8, "fitting": 3, "sentences": 4, "unknown_share": 0.015, visibility: found},
    }  # fmt: skip
    if stage == "perplexity":
        record["wikitext"] = read_record(out / stage / f"{name}-1.json")["wikitext"]
    (out / stage).mkdir(exist_ok=True)
    (out / stage / f"{name}-1.json").write_text(json.dumps(record))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *arguments])
    error = "" if result.exception is None else str(result.exception)
    return result.exit_code, result.output + error


def sentence(rng: random.Random) -> str:
    who, what = rng.choice(["Tom", "Mia", "the fox", "a hen"]), rng.choice(["saw", "found", "liked", "drew"])
    return f"{who} {what} {rng.choice(['a kite', 'the sea', 'two trees', 'an old house'])} ."


def write_data(folder: Path) -> None:
    rng = random.Random(1)

    def article(number: int) -> str:
        paragraphs = [" ".join(sentence(rng) for _ in range(12)) for _ in range(3)]
        return f" = Story {number} = \n \n " + " \n ".join(paragraphs) + " \n"

    for name, num in (("wikitext-2/wiki.valid", 40), ("wikitext-103-valid-test/wiki.valid", 30)):
        put(folder / f"{name}.tokens.xz", "".join(article(i) for i in range(num)))
    put(folder / "wikitext-103-valid-test/wiki.test.tokens.xz", "".join(article(i) for i in range(12)))
    put(folder / "lm1b-heldout/1b_benchmark.dev.tokens.xz", "\n".join(sentence(rng) for _ in range(400)))
    for task, header in (("SST-2", "sentence\tlabel\n"), ("CoLA", "")):
        for part in ("train", "dev"):
            lines = [(sentence(rng), i % 2) for i in range(40)]
            rows = [f"{s}\t{y}" if header else f"x\t{y}\t\t{s}" for s, y in lines]
            put(folder / "glue" / task / f"{part}.tsv.xz", header + "\n".join(rows) + "\n")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()))


REAL = Path(os.environ.get("PMLM_DATA", ROOT.parent / "shared" / "data"))
