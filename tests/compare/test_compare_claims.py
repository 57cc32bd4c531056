"""Differences over the same windows: the paper's claims, and pairs beyond it."""

import json
from pathlib import Path

from compare_helpers import figure, write_perplexity

from pmlm.compare.claims import CLAIMS, Claim, Difference, Place, beyond_table
from pmlm.compare.layout import read_results
from pmlm.compare.records import read_record
from pmlm.compare.tables import report


def test_a_claim_that_fails_is_reported_as_failed(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-a", 10.0, 12.0)
    write_perplexity(tmp_path, "bert-a", 11.0, 11.5)
    text = report(read_results(tmp_path), "tiny")
    # (log 10 - log 11) and a nat over 40 tokens; each document is 0.5 away from 20 times the mean, so 2 * 0.5 / 40
    assert "| u-PMLM-A is below BERT, sequential | pretrained | holds | 10.0 and 11.0 | -0.070 ± 0.025 | – |" in text
    assert "| u-PMLM-A is below BERT, random | pretrained | **fails** | 12.0 and 11.5 | +0.043 ± 0.000 | – |" in text
    assert "| random is within 10 % of sequential, u-PMLM-A | pretrained | **fails** | 12.0 and 10.0 | +0.182" in text
    assert CLAIMS[-1].text not in text  # R was not measured
    assert "| BERT | 1 | 11.0 ± 0.5 | 11.5 ± 0.5 | – | – | 2.000 ± 0.125 | – | 23.12 | 25.54 |" in text


def test_a_claim_is_undecided_where_its_limit_is_near() -> None:
    a, b = Place("a", "l2r"), Place("b", "l2r")
    below = Claim("", a, b)
    assert [below.verdict(*x) for x in ((-0.3, 0.1), (-0.1, 0.1), (0.1, 0.1), (0.3, 0.1), (-0.3, None))] == [
        "holds", "undecided", "undecided", "**fails**", "undecided",
    ]  # fmt: skip
    within = Claim("", a, b, 1.1, 0.9)
    assert [within.verdict(x, 0.01) for x in (0.0, 0.08, -0.1, 0.2, -0.2)] == [
        "holds", "undecided", "undecided", "**fails**", "**fails**",
    ]  # fmt: skip
    assert within.verdict(0.0, 0.06) == "undecided"  # it may be more than 10 % either way
    above = Claim("", a, b, 1.1)
    assert [above.verdict(x, 0.01) for x in (-9.0, 0.05, 0.2)] == ["holds", "holds", "**fails**"]
    holds, fails, near, unknown = (Difference(1, 1, *x) for x in ((-0.3, 0.1), (0.3, 0.1), (-0.1, 0.1), (None, None)))
    assert [below.outcome(x) for x in ([holds, holds], [fails], [holds, fails], [holds, near], [holds, unknown])] == [
        "holds", "**fails**", "undecided", "undecided", "undecided",
    ]  # fmt: skip


def test_a_claim_is_checked_with_all_seeds(tmp_path: Path) -> None:
    for seed, value in ((1, 10.0), (2, 12.0), (3, 20.0)):
        write_perplexity(tmp_path, "u-pmlm-r", value, value, seed)
    for seed, value in ((1, 13.0), (2, 14.0)):
        write_perplexity(tmp_path, "bert-a", value, value, seed)
    row = next(line for line in report(read_results(tmp_path), "tiny").splitlines() if "is below BERT, random" in line)
    # the third seed stands beside the last one that there is
    assert "| undecided | 10.0 and 13.0 | -0.262 ± 0.000 | -0.154 ± 0.000, +0.357 ± 0.000 |" in row


def test_pairs_beyond_the_paper_are_compared_under_the_visibility_that_is_meant(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-r", 10.0, 10.0)
    write_perplexity(tmp_path, "aplm-r", 8.0, 8.0)
    write_perplexity(tmp_path, "both-r", 12.0, 12.0)
    for name, figures in (("aplm-r", ("order-causal",)), ("both-r", ("order-causal", "bidirectional"))):
        path = tmp_path / "perplexity" / f"{name}-1.json"
        record = read_record(path)
        found = record["wikitext"].pop("bidirectional")
        better = {**found, "exact": {"l2r": figure(9.0), "random": figure(9.0)}}
        record["wikitext"] |= {v: better if (v, name) == ("order-causal", "both-r") else found for v in figures}
        path.write_text(json.dumps(record))
    text = beyond_table(read_results(tmp_path))
    assert "| APLM-R, as many tokens, and u-PMLM-R | pretrained | random | 8.0 and 10.0 | -0.223 ± 0.000 | – |" in text
    assert "| u-PMLM + APLM, bidirectional, and u-PMLM-R | pretrained | random | 12.0 and 10.0 |" in text
    assert "| u-PMLM + APLM, order-causal, and APLM-R | pretrained | sequential | 9.0 and 8.0 |" in text
    whole = report(read_results(tmp_path), "tiny")
    assert "| u-PMLM + APLM, R, order-causal | 1 | 9.0 ± 0.5 | 9.0 ± 0.5 |" in whole
    assert "| u-PMLM + APLM, R, bidirectional | 1 | 12.0 ± 0.5 | 12.0 ± 0.5 |" in whole


def test_masked_models_are_compared_with_gpt_row_by_row(tmp_path: Path) -> None:
    write_perplexity(tmp_path, "u-pmlm-r", 12.0, 12.5)
    write_perplexity(tmp_path, "gpt-a", 10.0, None)
    text = report(read_results(tmp_path), "tiny")
    row = "| u-PMLM-R is at most 10 % above GPT, sequential | pretrained | **fails** | 12.0 and 10.0 | +0.182 ± 0.000 |"
    assert row in text
