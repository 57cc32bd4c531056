"""The texts of a comparison and the corpora made of them."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_helpers import TINY, comparison, write_data

from pmlm.compare.corpora import Corpora
from pmlm.compare.texts import length_model
from pmlm.compare.units import Unit
from pmlm.corpus.rows import RowSettings, RowStream
from pmlm.corpus.shards import Corpus
from pmlm.keeping import locked


def test_what_is_fine_tuned_on_fits_and_padded_rows_cut_no_sentence(tmp_path: Path, corpus: Corpus) -> None:
    short = [f"Tom saw {n} cats." for n in range(60)]
    study = comparison(tmp_path, [])
    vars(study.corpora).update(
        tokenizer=corpus.tokenizer, sentences=([*short, "Mia and Tom went home because it rained. " * 9], [])
    )
    assert study.corpora.lessons == short
    context = TINY.measure.sentence_context
    assert study.corpora.lengths == length_model(short, corpus.tokenizer, context)
    study.corpora.prepare_sentences()
    stream = RowStream(study.corpora.corpus("lm1b"), RowSettings(length=context, short_share=0.0, packing="padded"), 0)
    rows = stream.take(200)
    assert all(len(row) == 1 and row[0].at_start and row[0].at_end for row in rows)

    del vars(study.corpora)["row_tokens"]  # of the real texts
    seen = {}
    for packing in TINY.padding:
        run = study._run_settings(Unit("padding", "u-pmlm-a", 1, "lm1b", packing))
        stream = RowStream(study.corpora.corpus("lm1b"), run.rows, run.seed)
        taken = stream.take(run.num_steps * run.batch_rows)
        seen[packing] = sum(piece.stop - piece.start for row in taken for piece in row)
    assert max(seen.values()) < 1.02 * min(seen.values())


def test_two_processes_may_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the texts that the first one prepares."""
    said: list[str] = []
    corpora, done = comparison(tmp_path, said).corpora, []
    monkeypatch.setattr(corpora, "_prepare_all", lambda: done.append("prepared"))
    lock = tmp_path / "lock"
    with locked(lock) as is_ours:
        assert is_ours
        second = threading.Thread(target=corpora.prepare, args=(lock,), daemon=True)
        second.start()
        second.join(timeout=1.2)
        assert second.is_alive()
        assert (done, len(said)) == ([], 1)
        assert said[0].startswith("waiting: another process is preparing")
    second.join(timeout=10)
    assert done == ["prepared"]


def test_what_overlaps_the_test_articles_can_be_left_out_of_pretraining(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    given: dict[str, list[str]] = {}

    def fake(_paths: Any, out: Path, *_more: Any, protect: list[str], **_others: Any) -> None:
        given[out.name] = list(protect)

    monkeypatch.setattr("pmlm.compare.corpora.prepare", fake)
    for protect in (False, True):
        settings = replace(TINY, sources=replace(TINY.sources, lm1b_train=300, protect=protect))
        corpora = Corpora(settings, tmp_path, tmp_path / "work", lambda _line: None)
        vars(corpora)["tokenizer"] = corpus.tokenizer
        corpora.prepare(tmp_path / "lock")
        assert bool(given["pretrain"]) == protect
        assert given["wikitext"] == given["lm1b"] == []
    assert len(given["pretrain"]) == 12  # the test articles, whole
