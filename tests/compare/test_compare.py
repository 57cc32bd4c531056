"""The comparison: settings, what is scored, tables that follow from their JSON, and the whole thing at tiny scale."""

import json
import lzma
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pmlm.cli import app
from pmlm.compare.arms import ARMS
from pmlm.compare.protocol import arm_settings, tune_settings
from pmlm.compare.records import once
from pmlm.compare.settings import load_compare_settings, scale_names
from pmlm.compare.tables import CLAIMS, read_results, report
from pmlm.compare.texts import length_model, sentence_figures, sentence_rows
from pmlm.config import to_dict
from pmlm.corpus.framing import end_predicted, padding_as_text
from pmlm.corpus.rows import RowSettings, RowStream
from pmlm.corpus.shards import Corpus
from pmlm.errors import ConfigError, DataError
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.runtime import generator
from pmlm.training.settings import model_config

TINY = load_compare_settings("tiny", [])


def differing(one: dict[str, Any], other: dict[str, Any], where: str = "") -> set[str]:
    found = set()
    for key in one.keys() | other.keys():
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found |= differing(a, b, f"{where}{key}.")
        elif a != b:
            found.add(where + key)
    return found


@pytest.mark.parametrize("scale", scale_names())
def test_models_of_a_scale_differ_in_objective_and_positions_alone(scale: str) -> None:
    settings = load_compare_settings(scale, [])
    base = to_dict(arm_settings(settings, "u-pmlm-a", 1))
    allowed = {"name", "about", "objective.members", "model.positions", "rows.predict_end"}
    for name in settings.models:
        assert differing(base, to_dict(arm_settings(settings, name, 1))) <= allowed, name
    assert {name for name, _ in settings.pretrained()} == set(settings.models) | set(settings.priors)


def test_only_the_left_to_right_model_predicts_where_a_text_ends(corpus: Corpus) -> None:
    for name in ARMS:
        config = model_config(arm_settings(TINY, name, 1), corpus.tokenizer)
        assert (corpus.tokenizer.end_id in config.forbidden_ids) == (name != "gpt-a")
        assert corpus.tokenizer.pad_id in config.forbidden_ids
    predicted = model_config(tune_settings(TINY, "u-pmlm-a", 1, "lm1b", "padding-predicted", 20.0), corpus.tokenizer)
    assert not {corpus.tokenizer.pad_id, corpus.tokenizer.end_id} & set(predicted.forbidden_ids)
    assert corpus.tokenizer.mask_id in predicted.forbidden_ids


@pytest.mark.parametrize("packing", ["padded", "padding-seen", "padding-predicted"])
def test_padding_is_unseen_or_seen_or_predicted(corpus: Corpus, packing: Any) -> None:
    stream = RowStream(corpus, RowSettings(length=32, packing=packing), 0)
    batch = stream.build(stream.take(20))
    is_pad = batch.ids_BL == corpus.tokenizer.pad_id
    assert is_pad.any()
    assert ((batch.group_BL < 0) == (is_pad if packing == "padded" else torch.zeros_like(is_pad))).all()
    assert (batch.maskable_BL[is_pad] == (packing == "padding-predicted")).all()


def test_the_end_marker_is_predicted_where_asked(corpus: Corpus) -> None:
    for wanted in (False, True):
        stream = RowStream(corpus, RowSettings(length=32, predict_end=wanted), 0)
        batch = stream.build(stream.take(20))
        ends = batch.ids_BL == corpus.tokenizer.end_id
        assert ends.any()
        assert (batch.maskable_BL[ends] == wanted).all()
        assert not batch.maskable_BL[batch.ids_BL == corpus.tokenizer.start_id].any()


def test_lengths_are_a_distribution(corpus: Corpus) -> None:
    rows = sentence_rows(["Tom is a cat.", "Jerry is a mouse.", "It rained."], corpus.tokenizer, 20)
    lengths = length_model(rows, 20)
    assert math.fsum(math.exp(-lengths.nll(n)) for n in range(1, 19)) == pytest.approx(1)
    assert lengths.nll(rows[0].num_tokens) < lengths.nll(18)


def fresh(corpus: Corpus, name: str, packing: str = "packed") -> LM:
    settings = (
        arm_settings(TINY, name, 1) if packing == "packed" else tune_settings(TINY, name, 1, "lm1b", packing, 9.0)
    )
    config = model_config(settings, corpus.tokenizer)
    return LM(build_model(config, generator(1)), corpus.tokenizer, {}, None)


def test_joint_probability_of_a_sentence_counts_everything_that_is_predicted(corpus: Corpus) -> None:
    """By hand from the model's own score: GPT adds the end marker, padding-predicted adds the padding too."""
    rows = sentence_rows(["Tom is a cat.", "It rained at home."], corpus.tokenizer, 24)
    lengths = length_model(rows, 24)
    tokens = sum(row.num_tokens for row in rows)

    def figures(name: str, packing: str = "packed") -> dict[str, Any]:
        lm = fresh(corpus, name, packing)
        return sentence_figures(lm, rows, lengths, exact=9, packing=packing, context=24)

    size = corpus.tokenizer.vocab_size  # untrained heads are nearly uniform over what is allowed
    gpt = figures("gpt-a")["causal"]["l2r"]
    assert set(gpt) == {"x and N"}
    assert gpt["x and N"]["nats_per_token"] == pytest.approx((tokens + 2) / tokens * math.log(size - 4), rel=0.03)
    told = figures("u-pmlm-a")["bidirectional"]["random"]
    extra = told["x and N"]["nats_per_token"] - told["x given N"]["nats_per_token"]
    assert extra == pytest.approx(sum(lengths.nll(row.num_tokens) for row in rows) / tokens, rel=1e-4)
    assert told["x given N"]["nats_per_token"] == pytest.approx(math.log(size - 5), rel=0.03)
    padded = figures("u-pmlm-a", "padding-predicted")["bidirectional"]["l2r"]
    predicted = 2 * 24 - 2  # all slots but the start markers
    assert padded["x and N"]["nats_per_token"] == pytest.approx(predicted / tokens * math.log(size - 3), rel=0.03)


def test_rows_with_padding_as_text(corpus: Corpus) -> None:
    (row,) = sentence_rows(["Tom is a cat."], corpus.tokenizer, 24)
    longer = padding_as_text(end_predicted(row), corpus.tokenizer, 24, predicted=True)
    assert len(longer.ids) == 24
    assert sum(longer.maskable) == 23
    assert sum(padding_as_text(row, corpus.tokenizer, 24, predicted=False).maskable) == row.num_tokens


def test_a_result_is_made_once_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    assert once(path, lambda: {"x": 1})["x"] == 1
    record = once(path, lambda: pytest.fail("made twice"))
    assert record["x"] == 1
    assert {"pmlm", "commit", "seconds", "machine"} <= record["made"].keys()
    path.write_text("{")
    with pytest.raises(DataError, match=r"b\.json is damaged"):
        once(path, dict)


def figure(perplexity: float) -> dict[str, Any]:
    return {"perplexity": perplexity, "perplexity_stderr": 0.5, "bits_per_byte": 2.0, "rows": 4}


def write_perplexity(out: Path, name: str, sequential: float, shuffled: float) -> None:
    exact = {"l2r": figure(sequential), "random": figure(shuffled)}
    record = {
        "model": name, "title": ARMS[name].title, "seed": 1,
        "wikitext": {"context": 8, "unknown_share": 0.0, "bidirectional": {"exact": exact, "bound": figure(9.0)}},
    }  # fmt: skip
    (out / "perplexity").mkdir(parents=True, exist_ok=True)
    (out / "perplexity" / f"{name}.json").write_text(json.dumps(record))


def test_a_claim_that_fails_is_reported_as_failed(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-a", 10.0, 12.0)
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    text = report(read_results(tmp_path), "tiny")
    assert "| u-PMLM-A is below BERT, sequential | holds | 10.0 and 11.0 |" in text
    assert "| u-PMLM-A is below BERT, random | **fails** | 12.0 and 11.5 |" in text
    assert "| random is within 10 % of sequential, u-PMLM-A | **fails** | 12.0 and 10.0 |" in text
    assert CLAIMS[-1][0] not in text  # R was not measured
    assert "| BERT | 1 | 11.0 ± 0.5 | 11.5 ± 0.5 | – | – | 2.000 | 23.12 | 25.54 |" in text


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *arguments])
    error = "" if result.exception is None else str(result.exception)
    return result.exit_code, result.output + error


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scale 'huge'"):
        load_compare_settings("huge", [])
    with pytest.raises(ConfigError, match="no model 'elmo'"):
        load_compare_settings("tiny", ['models=["elmo"]'])
    assert "no stage 'bake'" in run("--stage", "bake")[1]
    assert "--data" in run("--stage", "prepare")[1]
    assert "holds no results yet" in run("--stage", "tables", "--out", str(tmp_path))[1]
    missing = run("--stage", "prepare", "--data", str(tmp_path), "--work", str(tmp_path / "w"))[1]
    assert "wiki.valid.tokens.xz is missing" in missing


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


@pytest.mark.slow
def test_the_tiny_scale_goes_from_text_to_tables_and_back_byte_for_byte(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_data(data)
    folders = ("--out", str(out), "--work", str(tmp_path / "work"), "--set", "sources.lm1b_train=300")
    began = time.monotonic()
    code, text = run("--data", str(data), *folders, "--quiet")
    assert code == 0, text
    assert time.monotonic() - began < 600
    for title in ("WikiText-103", "One Billion", "Padding", "Prior", "Bounds", "Equal time", "paper claims", "Samples"):
        assert title in text
    first = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {"tables.md", "curves.svg", "curves.png"} <= first.keys()
    assert run("--stage", "tables", *folders)[0] == 0
    assert first == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    pretrained = [json.loads(path.read_text()) for path in (out / "pretrain").glob("*.json")]
    assert {r["model"] for r in pretrained} == {*TINY.models, *TINY.priors}
    assert all("torch" in r["made"]["machine"] and r["tokens"] and r["settings"] for r in pretrained)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert run("--data", str(data), *folders, "--quiet")[0] == 0  # nothing is done again
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
