"""The sheet for a blind reader, and what a reader said."""

import json
from collections import Counter
from pathlib import Path

import pytest
from bench_helpers import DOCUMENTS

from pmlm.bench.material import (
    write_texts,
)
from pmlm.bench.reading import (
    KINDS,
    Rating,
    make_sheet,
    rating_table,
    read_key,
    read_ratings,
    sheet_model,
    shuffled_sheet,
    summarise,
)
from pmlm.bench.study import Notes
from pmlm.errors import DataError
from pmlm.generation.template import Blank, parse_template
from pmlm.lm import LM
from pmlm.options import FillOptions

RATED = """# Reading sheet

## 1

Tom slept.

whole: 4 sense: 5 who: yes

## 2

Mia ran.

whole: 5 sense: 3 who: No
"""


def test_ratings_are_summed_up_by_side(tmp_path: Path) -> None:
    sheet, key = tmp_path / "reading.md", tmp_path / "reading-key.json"
    sheet.write_text(RATED)
    texts = [{"number": 1, "source": "model", "kind": "15 %"}, {"number": 2, "source": "real", "kind": "15 %"}]
    key.write_text(json.dumps({"texts": texts, "provenance": {"model": {"name": "ours"}}}))
    assert sheet_model(key) == {"name": "ours"}
    rated = summarise(read_ratings(sheet), read_key(key))
    assert [(r["kind"], r["source"], r["whole"], r["sense"], r["taken_for_program"]) for r in rated] == [
        ("all", "model", 4, 5, 1), ("all", "real", 5, 3, 0), ("15 %", "model", 4, 5, 1), ("15 %", "real", 5, 3, 0),
    ]  # fmt: skip
    assert "| all | real | 1 | 5.00 ± 0.00 | 3.00 ± 0.00 | 0% |" in rating_table(rated)
    with pytest.raises(DataError, match="not of the same texts"):
        summarise(read_ratings(sheet), texts[:1])
    for wrong in ("whole: 6 sense: 5 who: yes", "whole: 45 sense: 12 who: yes", "whole: __ sense: __ who: __", ""):
        sheet.write_text(RATED.replace("whole: 4 sense: 5 who: yes", wrong))
        with pytest.raises(DataError, match="text 1 has no rating"):
            read_ratings(sheet)


def test_a_sheet_of_other_texts_is_summed_up_by_their_kinds(tmp_path: Path) -> None:
    entries = [
        {"source": "model", "kind": kind, "text": text} for kind, text in (("warm", "Tom slept."), ("cool", "A_b"))
    ]
    sheet = shuffled_sheet([*entries, {"source": "real", "kind": "real", "text": "Mia ran."}], seed=1)
    assert sorted(entry["number"] for entry in sheet.key) == [1, 2, 3]
    assert all(f"## {e['number']}\n\n{e['text']}".replace("_", "\\_") in sheet.page for e in sheet.key)
    ratings = {e["number"]: Rating(whole, 3, e["source"] == "model") for whole, e in enumerate(sheet.key, 1)}
    rated = {row["kind"]: row for row in summarise(ratings, sheet.key) if row["kind"] != "all"}
    assert list(rated) == ["cool", "real", "warm"]
    assert rated["cool"]["whole"] == next(e["number"] for e in sheet.key if e["kind"] == "cool")


def test_texts_of_a_study_may_each_be_the_likeliest_of_several(model: LM) -> None:
    templates = [parse_template(source) for source in ("The [MASK:4].", "[MASK:5] ran.", "A ___ fox.")]
    found = write_texts(model, templates, FillOptions(), Notes(None, {}), "x", first_seed=7, best_of=3, chunk=2)
    own = [model.fill(template, seed=7 + i, best_of=3).text for i, template in enumerate(templates)]
    assert found == own
    assert found != write_texts(model, templates, FillOptions(), Notes(None, {}), "x", first_seed=7, chunk=2)
    sheet = make_sheet(model, DOCUMENTS, 4, FillOptions(), Notes(None, {}), seed=1, best_of=2)
    for entry in sheet.key:
        if entry["source"] == "model":
            best = model.fill(entry["template"], seed=entry["seed"], best_of=entry["best_of"])
            assert " ".join(best.text.split()) == entry["text"]


def test_the_reading_sheet_is_balanced_and_blind(model: LM) -> None:
    sheet = make_sheet(model, DOCUMENTS, 5, FillOptions(order="random"), Notes(None, {}), seed=1)
    assert Counter(entry["source"] for entry in sheet.key) == {"model": 5, "real": 5}
    for kind in KINDS:
        assert Counter(e["source"] for e in sheet.key if e["kind"] == kind) == {"model": 1, "real": 1}
    for entry in sheet.key:
        blanks = parse_template(entry["template"]).blanks
        hidden = sum(blank.num_tokens or 0 for blank in blanks)
        share = hidden / len(model.tokenizer.encode(" ".join(DOCUMENTS[entry["document"]].split())))
        least, most = {"15 %": (0, 0.3), "50 %": (0.3, 0.7), "85 %": (0.7, 0.99)}.get(entry["kind"], (0.3, 0.99))
        assert least < share < most, entry
        assert (len(blanks) == 1) == (entry["kind"] in KINDS[3:])
    assert [entry["number"] for entry in sheet.key] == list(range(1, 11))
    assert [entry["source"] for entry in sheet.key] != sorted(entry["source"] for entry in sheet.key)
    assert len({entry["document"] for entry in sheet.key}) == 10
    _, *texts = sheet.page.split("\n## ")
    assert len(texts) == 10
    frames = set()
    for part, entry in zip(texts, sheet.key, strict=True):
        assert part.startswith(f"{entry['number']}\n\n")
        assert entry["text"] in part
        frames.add(part.removeprefix(f"{entry['number']}\n\n").replace(entry["text"], "").strip())
        if entry["source"] == "real":
            assert entry["text"] == " ".join(DOCUMENTS[entry["document"]].split())
        else:
            given = parse_template(entry["template"]).segments
            assert all(" ".join(s.text.split()) in entry["text"] for s in given if not isinstance(s, Blank))
    assert len(frames) == 1  # around the texts nothing tells them apart
