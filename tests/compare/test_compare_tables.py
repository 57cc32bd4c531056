"""Tables and plots of results."""

import json
from pathlib import Path
from typing import Any

import pytest
from compare_helpers import figure, write_perplexity, write_sentences

from pmlm.compare.arms import ARMS
from pmlm.compare.layout import read_results
from pmlm.compare.plots import COLOURS, draw_comparison
from pmlm.compare.tables import gap_table, padding_table, report
from pmlm.errors import DataError


def test_every_model_has_a_colour_of_its_own() -> None:
    assert len(set(COLOURS)) == len(COLOURS) >= len(ARMS)


def test_several_seeds_have_a_mean_and_a_deviation(tmp_path: Path) -> None:
    for seed, value in ((1, 10.0), (2, 12.0), (3, 14.0)):
        write_perplexity(tmp_path, "gpt-a", value, None, seed)
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    text = report(read_results(tmp_path), "tiny")
    mean = "| GPT | mean of 3 ± deviation | 12.0 ± 2.0 | – | – | – | 2.000 ± 0.000 | – | 21.23 | – |"
    assert mean in text
    assert text.count("| mean of") == 1
    assert "| BERT | 1 | 11.0 ± 0.5 | 11.5 ± 0.5 | – | – | 2.000 ± 0.125 |" in text
    assert "of 4 of 9 windows" in text


def test_p_of_n_is_told_after_fine_tuning_alone_and_x_alone_is_labelled(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    write_perplexity(tmp_path, "gpt-a", 11.0, None)
    for stage in ("perplexity", "tuned"):
        write_sentences(tmp_path, stage, "bert-a", "bidirectional", "x given N")
        write_sentences(tmp_path, stage, "gpt-a", "causal", "x alone")
    text = report(read_results(tmp_path), "tiny")
    for line in (
        "| BERT | 1 | pretrained | 20.0 ± 0.5 | – | – | – |",
        "| BERT | 1 | tuned | 20.0 ± 0.5 | – | 30.0 ± 0.5 | – |",
        "| GPT | 1 | pretrained | 20.0 ± 0.5 (x alone) | – | – | – |",
        "| GPT | 1 | tuned | 20.0 ± 0.5 (x alone) | – | 30.0 ± 0.5 | – |",
    ):
        assert line in text
    assert "| 30.0 ± 0.5 | – | 2.000 ± 0.125 | 24.25 | – |" in text  # the paper's models were fine-tuned
    assert "| GPT | 1 | pretrained | 20.0 ± 0.5 (x alone) | – | – | – | 2.000 ± 0.125 | – | – |" in text
    assert "[UNK]: 1.50% of the tokens." in text


def test_the_gap_to_gpt_on_sentences_is_relative_to_that_on_long_text(tmp_path: Path) -> None:
    def write(folder: str, name: str, label: str, **figures: Any) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        record = {"model": name, "title": ARMS[name].title, "seed": 1, **figures}
        (tmp_path / folder / f"{name}-{label}.json").write_text(json.dumps(record))

    def wikitext(visibility: str, perplexity: float) -> dict[str, Any]:
        return {"wikitext": {visibility: {"exact": {"l2r": figure(perplexity)}}, "exact_rows": []}}

    def sentences(packing: str, visibility: str, kind: str, alone: float, joint: float) -> dict[str, Any]:
        found = {"l2r": {kind: figure(alone), "x and N": figure(joint)}}
        return {"packing": packing, "lm1b": {visibility: found, "context": 8}}

    write("tuned", "gpt-a", "wikitext", **wikitext("causal", 10.0))
    write("tuned", "u-pmlm-a", "wikitext", **wikitext("bidirectional", 15.0))
    write("tuned", "xlnet", "wikitext", **wikitext("two-stream", 12.0))  # of which there are no ways of padding
    write("padding", "gpt-a", "packed", **sentences("packed", "causal", "x alone", 20.0, 25.0))
    write("padding", "gpt-a", "padded", **sentences("padded", "causal", "x alone", 20.0, 20.0))
    for packing in ("packed", "padding-seen"):
        write("padding", "u-pmlm-a", packing, **sentences(packing, "bidirectional", "x given N", 60.0, 75.0))
    text = gap_table(read_results(tmp_path))
    assert "| u-PMLM-A | packed | 1.50 | 3.00 | 3.00 | 2.00 | 2.00 | 0.91 | 2.03 | 2.23 |" in text
    assert "| u-PMLM-A | padding-seen | 1.50 | 3.00 | 3.75 | 2.00 | 2.50 | 0.91 | 2.03 | 2.23 |" in text


def test_ways_of_padding_are_compared_over_the_same_sentences(tmp_path: Path) -> None:
    (tmp_path / "padding").mkdir()
    rows = [[0, 10], [1, 10], [2, 20]]
    for packing, given, joint in (("packed", 20.0, 30.0), ("padding-predicted", 22.0, 30.0)):
        found = {"l2r": {"x given N": figure(given), "x and N": figure(joint)}, "bound": figure(9.0)}
        record = {
            "model": "u-pmlm-r", "seed": 1, "packing": packing, "lm1b": {"exact_rows": rows, "bidirectional": found},
        }  # fmt: skip
        (tmp_path / "padding" / f"u-pmlm-r-{packing}.json").write_text(json.dumps(record))
    text = padding_table(read_results(tmp_path))
    assert "| u-PMLM-R | 1 | packed | 20.0 ± 0.5 | – | 30.0 ± 0.5 | – | 2.000 ± 0.125 | – | – |" in text
    told = "| u-PMLM-R | 1 | padding-predicted | 22.0 ± 0.5 | – | 30.0 ± 0.5 | – | 2.000 ± 0.125 | +0.095 ± 0.000 | +0.000 ± 0.000 |"
    assert told in text


def test_samples_stand_on_a_line_each_whatever_they_hold(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    texts = {"l2r": ["a\n\n| b |", "c ``` d"], "random": ["e", "f"]}
    record = {"model": "bert-a", "seed": 1, "seeds": [0, 1], "template": "x [MASK]", "texts": texts}
    (tmp_path / "samples" / "bert-a.json").write_text(json.dumps(record))
    text = report(read_results(tmp_path), "tiny")
    assert "order l2r, template `x [MASK]`\n\n```text\n0. a ⏎  ⏎ | b |\n1. c ''' d\n```" in text
    assert "order random, template `x [MASK]`\n\n```text\n0. e\n1. f\n```" in text


def test_a_record_of_an_unknown_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "x.json").write_text(json.dumps({"model": "elmo", "seed": 1}))
    with pytest.raises(DataError, match=r"x\.json is of no model that is compared: 'elmo'"):
        read_results(tmp_path)


def test_a_model_that_was_not_timed_is_left_out_of_that_panel_alone(tmp_path: Path) -> None:
    (tmp_path / "pretrain").mkdir()
    for name in ("bert-a", "u-pmlm-r"):
        point = {"tokens": 9, "seconds": 2.0, "bits_per_byte": {"bidirectional": {"8": 2.5}}}
        record = {"model": name, "title": ARMS[name].title, "seed": 1, "parameters": 9, "tokens": 9, "curve": [point]}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(record))
    for timed in (["bert-a"], ["u-pmlm-r"], []):
        models = {name: {"token_seconds": 0.5} for name in timed}
        results = {**read_results(tmp_path), "timing": [{"models": models}]}
        draw_comparison(results, tmp_path / "curves.png")
        assert (tmp_path / "curves.png").stat().st_size > 1000


def test_probes_stand_beside_the_bits_per_byte_of_their_prior(tmp_path: Path) -> None:
    for folder in ("pretrain", "probes"):
        (tmp_path / folder).mkdir()
    for name, score in (("bert-r", 0.7), ("u-pmlm-r", 0.75)):
        about = {"model": name, "title": ARMS[name].title, "seed": 1}
        point = {"tokens": 9, "seconds": 2.0, "bits_per_byte": {"bidirectional": {"8": 2.5, "16": 2.25}}}
        figures = {"parameters": 9, "tokens": 9, "training_seconds": 2.0, "curve": [point]}
        (tmp_path / "pretrain" / f"{name}.json").write_text(json.dumps(about | figures))
        found = {"SST-2": {"score": score, "stderr": 0.016, "constant": 0.509}}
        (tmp_path / "probes" / f"{name}.json").write_text(json.dumps(about | {"probe": found}))
    text = report(read_results(tmp_path), "tiny")
    assert "| fixed 15 % | 1 | 2.250 | 0.700 ± 0.016 |" in text
    assert "| uniform [0, 1] | 1 | 2.250 | 0.750 ± 0.016 |" in text
    assert "A constant answer scores 0.509 (SST-2)." in text
