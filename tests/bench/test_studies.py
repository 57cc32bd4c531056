"""Studies at small size: laws of each figure, runs that go on, pages made from documents."""

import json
import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from conftest import STORIES
from fakes import tiny_config
from pmlm.bench import stories
from pmlm.bench.card import model_card, weak_points
from pmlm.bench.coverage import CoverageSettings, common_words, draw_sets, missing_words, study_coverage, write_with
from pmlm.bench.export import ExportBench, _whole_text
from pmlm.bench.judge import Judge
from pmlm.bench.lengths import LengthSettings, draw_items, length_choices, study_lengths, summarise_choices
from pmlm.bench.material import (
    Passage,
    document_rows,
    draw_documents,
    draw_passages,
    hide_words,
    read_units,
    template_of,
    write_texts,
)
from pmlm.bench.orders import REAL, OrderSettings, planned, study_orders
from pmlm.bench.plots import draw_study
from pmlm.bench.reading import KINDS, make_sheet, rating_table, read_key, read_ratings, sheet_model, summarise
from pmlm.bench.stories import StorySettings, rounded, study_stories, words_right
from pmlm.bench.stories import planned as stories_planned
from pmlm.bench.study import Notes, model_identity, notes_path, provenance, read_document, run_study
from pmlm.bench.tables import paired, render, story_tables
from pmlm.cli import studies
from pmlm.errors import ConfigError, DataError
from pmlm.evaluation import Scorer, draw_part
from pmlm.generation.lengths import choose_lengths
from pmlm.generation.template import Blank, parse_template
from pmlm.lm import LM, load
from pmlm.model import LanguageModel, build_model
from pmlm.options import FillOptions
from pmlm.orders import parse_order
from pmlm.results import Filled
from pmlm.runtime import generator

BYTES = Judge("bytes", lambda text: list(text.encode()), lambda ids: torch.zeros(*ids.shape, 256), 0, 5000)
"""Knows nothing: 8 bits for every byte."""
NAMES = ("Tom", "Mia", "Ben", "Anna", "Leo", "Rosa")
DOCUMENTS = [
    f"One day {a} walked to the park. {b} lost a big ball near the river. {STORIES[i % 2]} {a} was very happy."
    for i, (a, b) in enumerate((a, b) for a in NAMES for b in NAMES if a != b)
]


def silent(_done: int) -> None:
    pass


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "heldout.txt"
    path.write_text("\n\n".join(DOCUMENTS))
    return path


@pytest.fixture(scope="session")
def gpt(model: LM) -> LM:
    t = model.tokenizer
    config = tiny_config(vocab_size=t.vocab_size, mask_id=t.mask_id, forbidden_ids=t.forbidden_ids, max_length=128,
                         visibilities=("causal",))  # fmt: skip
    return LM(build_model(config, generator(1)).eval(), t, {"name": "tiny-gpt"}, None)


# notes


def test_notes_go_on_where_they_were_and_drop_a_line_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    notes = Notes(path, {"seed": 1})
    assert notes.get("a", lambda: (1, 2.5)) == [1, 2.5]
    notes.get("b", lambda: "x")
    path.write_text(path.read_text()[:-4])
    again = Notes(path, {"seed": 1})
    assert again.get("a", lambda: pytest.fail("measured twice")) == [1, 2.5]
    assert again.get("b", lambda: "y") == "y"
    assert Notes(path, {"seed": 1}).known == {"a": [1, 2.5], "b": "y"}
    with pytest.raises(ConfigError, match="begun with other settings"):
        Notes(path, {"seed": 2})


def test_a_study_that_was_stopped_ends_like_one_that_was_not(model: LM, text: Path, tmp_path: Path) -> None:
    settings = LengthSettings(items=3, longest_span=4)

    def study(out: Path, stop_after: int | None = None) -> dict:
        seen = Counter[str]()

        def advance(done: int) -> None:
            seen["items"] += done
            if seen["items"] == stop_after:
                raise KeyboardInterrupt

        return run_study("lengths", out, model, text, {"items": 3}, "pmlm bench lengths",
                         lambda notes: study_lengths(model, DOCUMENTS, settings, notes, advance))  # fmt: skip

    whole = study(tmp_path / "whole.json")
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "part.json", stop_after=4)
    assert notes_path(tmp_path / "part.json").read_text().count("\n") == 1 + 4  # settings, then what was measured
    assert study(tmp_path / "part.json")["result"] == whole["result"]
    assert not notes_path(tmp_path / "part.json").exists()
    assert read_document(tmp_path / "part.json")["provenance"]["model"]["weights_sha256"]


# lengths


def test_choices_are_summed_up_as_by_hand() -> None:
    choices = [{"s": 1}, {"s": 3}, {"s": 4}]
    found = summarise_choices([1, 2, 2], choices, 4)
    assert found["scores"]["s"] == {"exact": 1 / 3, "exact_stderr": pytest.approx((2 / 27) ** 0.5),
                                    "within_one": 2 / 3, "mean_error": 1.0}  # fmt: skip
    assert found["scores"]["commonest"]["exact"] == 2 / 3
    assert found["scores"]["chance"]["exact"] == 1 / 4
    assert found["scores"]["chance"]["within_one"] == pytest.approx((2 / 4 + 3 / 4 + 3 / 4) / 3)
    assert found["scores"]["chance"]["mean_error"] == pytest.approx((6 / 4 + 4 / 4 + 4 / 4) / 3)
    assert found["exact_by_true_length"] == {
        "1": {"items": 1, "s": 1.0, "commonest": 0.0},
        "2": {"items": 2, "s": 0.0, "commonest": 1.0},
    }


@pytest.mark.parametrize("kind", ["word", "span"])
def test_the_context_score_is_the_one_that_templates_use(kind: str, model: LM) -> None:
    settings = LengthSettings(items=4, longest_span=5, seed=3)
    for item in draw_items(DOCUMENTS, model, kind, settings):  # type: ignore[arg-type]
        longest = 4 if kind == "word" else 5
        blank = item.template.segments[item.segment]
        assert isinstance(blank, Blank)
        chosen = length_choices(item, model, "order-causal", longest)
        segments = list(item.template.segments)
        segments[item.segment] = Blank(None, blank.starts_word, blank.is_word, (1, longest))
        assert model.words is not None
        template = choose_lengths(
            type(item.template)(tuple(segments)), model.model, model.tokenizer, "order-causal", model.words.length_logp,
            generator(0), is_possible=lambda *_, **__: True, greedy=True,
        )  # fmt: skip
        assert chosen["context + p(n)" if kind == "word" else "context"] == template.segments[item.segment].num_tokens


def test_spans_have_every_length_equally_often_and_are_as_long_as_they_say(model: LM) -> None:
    items = draw_items(DOCUMENTS, model, "span", LengthSettings(items=20, longest_span=5))
    for item in items:
        assert item.template.segments[item.segment].num_tokens == item.true  # type: ignore[union-attr]
    assert Counter(item.true for item in items) == dict.fromkeys(range(1, 6), 4)
    with pytest.raises(DataError, match="sentences with a word to hide, 20 are needed"):
        draw_items(DOCUMENTS[:1], model, "word", LengthSettings(items=20))


def test_long_words_have_several_tokens(model: LM) -> None:
    text = "Anna unexpectedly saw an astronaut. " * 3
    items = draw_items([text, *DOCUMENTS], model, "long word", LengthSettings(items=3))
    assert all(item.true > 1 for item in items)


# words that must appear


def test_words_are_missing_unless_they_stand_whole() -> None:
    assert missing_words("The cat sat. Cats, a ball!", ["cat", "ball", "the", "at"]) == ["the", "at"]


def test_sets_are_of_common_words() -> None:
    words = common_words(["the cat the dog", "The the an owl dog", "She didn't, he didn’t: didn"], 3)
    assert words == ["the", "dog", "cat"]  # small letters, three or more; equals by the alphabet
    sets = draw_sets([str(i) for i in range(50)], CoverageSettings(sets=40, common=50))
    assert {len(each) for each in sets} == {3, 4, 5}
    assert all(len(set(each)) == len(each) for each in sets)
    with pytest.raises(DataError, match="different words"):
        common_words(["one cat"], 9)


def test_what_cannot_appear_is_an_error_and_not_silence(model: LM) -> None:
    options = FillOptions(order="random")
    tight = write_with(model, ["river", "park", "happy"], 0, options, length=2)
    assert tight["text"] is None
    assert "no free blank with room" in tight["error"]
    assert write_with(model, ["river", "park"], 0, options, length=12)["missing"] == []


def test_the_coverage_study_adds_up(model: LM) -> None:
    settings = CoverageSettings(sets=3, common=12, length=20)
    result = study_coverage(model, DOCUMENTS, BYTES, settings, Notes(None, {}), silent)
    assert result["satisfied"] + result["errors"] + result["broken"] == 3
    assert result["broken"] == 0
    for each in result["appraisal"].values():
        assert each["judge"]["bits_per_byte"] == pytest.approx(8)


# orders


def test_the_study_of_orders_gives_the_exact_figures_of_the_scorer(model: LM) -> None:
    settings = OrderSettings(
        orders=("l2r", "random", "margin"), shares=(0.5, 1.0), rows=3, texts=2, context=24, chunk=2
    )
    steps = Counter[str]()
    result = study_orders(model, DOCUMENTS, BYTES, settings, Notes(None, {}), lambda n: steps.update(all=n))
    assert steps["all"] == planned(settings)
    rows = draw_part(document_rows(draw_documents(DOCUMENTS, 12, 0), model.tokenizer, 24), 3, 0)
    scorer = Scorer(model.model, model.tokenizer, "order-causal", 0)
    for name in settings.orders:
        exact = scorer.exact(rows, parse_order(name)).to_dict()
        assert result["exact"][name]["nll"] == pytest.approx(exact["nll"])
    for table in result["written"].values():
        assert set(table) == {*settings.orders, REAL}
        assert all(each["judge"]["bits_per_byte"] == pytest.approx(8) for each in table.values())
        assert all(each["texts"] + each["failed"] == 2 for each in table.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [({"shares": (0.0,)}, "above 0"), ({"orders": ("1,0",)}, "by name"), ({"rows": 0}, "--rows must be at least 1")],
)
def test_settings_of_orders_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OrderSettings(**change)


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (StorySettings, studies.stories),
        (CoverageSettings, studies.coverage),
        (LengthSettings, studies.lengths),
        (OrderSettings, studies.orders),
    ],
)
def test_settings_that_make_no_sense_name_options_that_there_are(settings: Any, command: Any) -> None:
    app = typer.Typer()
    app.command()(command)
    known = {name for option in typer.main.get_command(app).params for name in option.opts}
    said = {}
    for field in fields(settings):
        if isinstance(field.default, int) and field.name != "seed":
            try:
                settings(**{field.name: 0})
            except ConfigError as error:
                said[field.name] = str(error)
    assert len(said) > 1
    for line in said.values():
        assert set(re.findall(r"--[a-z-]+", line)) <= known, line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exact_documents": 0}, "^--exact must be at least 1, got 0$"),
        ({"policy_documents": 0}, "^--confidence must"),
        ({"word_passages": 0}, "^--passages must"),
        ({"stories": 0}, "^--free must"),
        ({"best_of": 0}, "^--best-of must"),
        ({"lengths": (3,)}, "^--lengths are"),
    ],
)
def test_settings_of_stories_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StorySettings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"common": 4}, "^--common must be at least 5, the words of the largest set, got 4$"),
        ({"fewest": 6}, "^a set has from 1 word on, and fewest is at most most, got fewest 6, most 5$"),
        ({"sets": 0}, "^--sets must be at least 1, got 0$"),
    ],
)
def test_settings_of_coverage_that_make_no_sense(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CoverageSettings(**change)


def test_orders_are_compared_row_by_row_and_text_by_text(model: LM) -> None:
    settings = OrderSettings(orders=("l2r", "nearest", "r2l"), shares=(0.5, 1.0), rows=4, texts=3, context=24, seed=3)
    result = study_orders(model, DOCUMENTS, BYTES, settings, Notes(None, {}), silent)
    page = render({"study": "orders", "provenance": provenance(model, "x"), "result": result,
                   "text": {"file": "t", "sha256": "0"}})  # fmt: skip
    line = {row.split(" | ")[0]: row.split(" | ")[1:] for row in page.split("\n\n")[2].splitlines()}
    whole, half, judged, _ = line["| l2r"]
    assert whole == f"{result['exact']['l2r']['nats_per_token']:.3f} (+0.000 ± 0.000)"
    assert half == f"{result['infilling']['0.5']['l2r']['nats_per_token']:.3f} (+0.000 ± 0.000)"
    assert judged == "8.000 (+0.000 ± 0.000)"
    one, other = result["exact"]["r2l"], result["exact"]["l2r"]
    apart = (sum(one["row_nll"]) - sum(other["row_nll"])) / one["tokens"]
    assert f"({apart:+.3f} ± " in line["| r2l"][0]
    hidden = result["infilling"]["0.5"]
    real = result["written"]["0.5"][REAL]["all"]
    assert 0.3 < hidden["l2r"]["tokens"] / sum(len(model.tokenizer.encode(text)) for text in real) < 0.7
    assert hidden["nearest"]["row_nll"] != hidden["l2r"]["row_nll"]


def test_passages_may_be_beginnings_alone(model: LM) -> None:
    texts = [*DOCUMENTS, *(" ".join([text] * 9) for text in DOCUMENTS)]
    for beginnings in (False, True):
        found = draw_passages(
            texts, model.tokenizer, room=60, count=3, rng=generator(0, "p"), beginnings=beginnings
        )  # fmt: skip
        assert [passage.is_whole for passage in found] == [not beginnings] * 3


# the story model


@pytest.mark.parametrize("visibility", ["order-causal", "bidirectional"])
def test_a_word_is_right_where_a_greedy_filling_is(visibility: str, model: LM) -> None:
    checked = Counter[int]()
    for text in (DOCUMENTS[0], "Anna wanted the blanket near the village."):
        passage = Passage(text, 0, True, read_units(text, model.tokenizer))
        for i, unit in enumerate(passage.units):
            if not (unit.is_word and unit.is_hideable):
                continue
            filled = model.fill(template_of(passage, [i]), temperature=0, order="l2r", whole_words=False, seed=0,
                                visibility=visibility)  # fmt: skip
            same = list(filled.ids[1:-1]) == model.tokenizer.encode(text)
            assert words_right(model, passage, [i], visibility) == [same], (text, unit)  # type: ignore[arg-type]
            checked[unit.num_tokens] += same
    assert sum(checked.values()) > 5


def test_a_guess_sees_what_is_given_and_the_beginning_of_its_own_word(
    model: LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Anna unexpectedly became an astronaut near the village."
    passage = Passage(text, 0, True, read_units(text, model.tokenizer))
    sizes = [unit.num_tokens for unit in passage.units]
    assert max(sizes) > 2
    hidden = [i for i in range(len(sizes)) if i % 3 != 2]
    first = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    word_of = {t: i for i in hidden for t in range(first[i], first[i + 1])}
    seen: list[int] = []

    def look(_lm: LM, rows: list, asked: list, _visibility: str) -> dict[int, bool]:
        for row, places in zip(rows, asked, strict=True):
            visible = {t for t, flag in enumerate(row.maskable[1:-1]) if not flag}
            for t in places:
                own = set(range(first[word_of[t]], t))
                assert visible == set(range(len(row.ids) - 2)) - set(word_of) | own
                seen.append(t)
        return {t: t % 2 == 0 for t in seen}

    monkeypatch.setattr(stories, "_likeliest", look)
    right = words_right(model, passage, hidden, "bidirectional")
    words = [i for i in hidden if passage.units[i].is_word]
    assert sorted(seen) == [t for i in words for t in range(first[i], first[i + 1])]
    assert right == [all(t % 2 == 0 for t in range(first[i], first[i + 1])) for i in words]


def test_words_hidden_together_do_not_see_each_other(model: LM) -> None:
    text = "Tom is a cat and Jerry is a mouse."
    passage = Passage(text, 0, True, read_units(text, model.tokenizer))
    everything = list(range(len(passage.units)))
    asked = words_right(model, passage, everything, "order-causal")
    assert len(asked) == 9, "the full stop is hidden but not asked"
    guesses = model.fill_mask(f"[MASK:{passage.num_tokens}]")
    ids = model.tokenizer.encode(text)
    assert all(unit.num_tokens == 1 for unit in passage.units)
    assert asked == [guess[0]["token"] == i for guess, i in zip(guesses, ids, strict=True)][:-1]


def test_rounding_is_what_a_file_would_do(model: LM, tmp_path: Path) -> None:
    model.save(tmp_path / "half", storage="float16")
    stored = load(tmp_path / "half").model.state_dict()
    assert all(torch.equal(t, stored[name]) for name, t in rounded(model.model, "float16").state_dict().items())
    original, eight = model.model.state_dict(), rounded(model.model, "int8").state_dict()
    name = max((n for n, t in original.items() if t.dim() == 2), key=lambda n: original[n].numel())
    step = original[name].abs().amax(dim=1, keepdim=True) / 127
    assert ((original[name] - eight[name]).abs() <= step / 2 + 1e-7).all()
    assert not torch.equal(original[name], eight[name])


SMALL = StorySettings(
    documents=3,
    exact_documents=2,
    policy_documents=1,
    lengths=(32, 64, 999),
    word_passages=2,
    stories=2,
    samples=2,
    orders=("l2r", "random"),
    best_of=3,
)


@pytest.fixture(scope="session")
def story_document(model: LM, gpt: LM, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "heldout.txt").write_text("\n\n".join(DOCUMENTS))
    steps = Counter[str]()
    document = run_study(
        "stories", folder / "figures.json", model, folder / "heldout.txt", {}, "pmlm bench stories",
        lambda notes: study_stories(
            model, gpt, DOCUMENTS, BYTES, SMALL, notes, lambda n: steps.update(all=n),
            original=LM(model.model, model.tokenizer, model.about, None),
        ),
    )  # fmt: skip
    assert steps["all"] == stories_planned(model, gpt, SMALL)
    return document


def test_the_story_study_holds_what_the_card_needs(story_document: dict, model: LM) -> None:
    result = story_document["result"]
    assert set(result["likelihood"]) == {"order-causal", "bidirectional"}
    for lengths in result["likelihood"].values():
        assert set(lengths) == {"32", "64"}, "longer than the model reads is left out"
        assert all(set(f) == {"bound", "l2r", "random", "confidence"} for f in lengths.values())
    gpt = result["gpt"]["causal"]["64"]
    exact, own = result["likelihood"]["bidirectional"]["64"], result["likelihood"]["order-causal"]["64"]
    sizes = [sum(row.num_bytes for row in document_rows(draw_documents(DOCUMENTS, n, 0), model.tokenizer, 64))
             for n in (2, 3)]  # fmt: skip
    assert exact["l2r"]["bytes"] == sizes[0] < exact["bound"]["bytes"] == sizes[1]
    assert own["l2r"]["bytes"] == gpt["l2r"]["bytes"] == sizes[1], "one pass: all documents"
    assert set(result["hidden_words"]["order-causal"]) == {"0.15", "0.5"}
    appraisal = result["free_stories"]["appraisal"]
    written = {f"{visibility}, {order}" for visibility in result["likelihood"] for order in ("l2r", "random")}
    assert set(appraisal) == {
        "real",
        "real, words shuffled",
        *written,
        "order-causal, l2r, best of 3",
        "GPT",
        "GPT, best of 3",
    }
    assert appraisal["real, words shuffled"]["distinct_1"] == appraisal["real"]["distinct_1"]
    assert result["storage"]["cost"]["float32"] == 0
    for name, each in result["samples"].items():
        if name == "the held-out story":
            continue
        assert [sample["seed"] for sample in each] == [0, 1]
        for sample in each:  # along the first order
            assert sample["text"] == model.fill(sample["template"], order="l2r", top_p=0.9, seed=sample["seed"]).text
    assert all("Tom is a cat and Jerry is a mouse." in sample["text"] for sample in result["samples"]["Tom and Jerry"])


def test_a_gpt_may_come_beside_later_and_the_model_is_asked_nothing_anew(
    model: LM, gpt: LM, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, out = replace(SMALL, lengths=(32,), samples=1), tmp_path / "figures.json"

    def study(other: LM | None) -> dict:
        beside = {"gpt": other and model_identity(other)}
        return run_study(
            "stories", out, model, text, {}, "x",
            lambda notes: study_stories(model, other, DOCUMENTS, None, small, notes, silent), beside=beside,
        )  # fmt: skip

    monkeypatch.setattr("pmlm.bench.study.notes_path", lambda out: out.with_name("kept.jsonl"))
    monkeypatch.setattr("pmlm.bench.study.write_document", lambda _out, _document: None)  # which removes the notes
    alone = study(None)
    before = (tmp_path / "kept.jsonl").read_text()
    both = study(gpt)
    added = (tmp_path / "kept.jsonl").read_text().removeprefix(before)
    assert {json.loads(line)["name"].split("/")[1][:4] for line in added.splitlines()} == {"gpt-"}
    assert both["gpt"] == model_identity(gpt)
    assert both["result"]["likelihood"] == alone["result"]["likelihood"]
    assert study(None)["result"] == alone["result"]


def test_figures_are_paired_over_the_stories_that_both_have() -> None:
    def figures(**nll: float) -> dict:
        numbers = [int(name[1:]) for name in nll]
        return {"row_documents": numbers, "row_nll": list(nll.values()), "row_tokens": [10] * len(nll)}

    one, other = figures(d3=12.0, d7=15.0), figures(d1=99.0, d3=10.0, d7=11.0, d9=99.0)
    apart, error, documents = paired(one, other)
    assert (apart, documents) == (pytest.approx(6 / 20), 2)
    assert error == pytest.approx(0.1)  # 2 and 4 nats over 10 tokens each
    halves = [
        {"row_documents": [3, 3, 7], "row_nll": [a, b, c], "row_tokens": [5, 5, 10]}
        for a, b, c in ((6.0, 6.0, 15.0), (9.0, 1.0, 11.0))
    ]
    assert paired(*halves) == paired(one, other)  # rows of one story are no stories of their own


def test_a_model_that_is_also_a_gpt_is_measured_as_one(model: LM) -> None:
    config = replace(model.model.config, visibilities=("order-causal", "causal"))
    network = LanguageModel(config)
    network.load_state_dict(model.model.state_dict())
    both, steps = LM(network.eval(), model.tokenizer, model.about, None), Counter[str]()
    settings = replace(SMALL, lengths=(32,), samples=1)
    result = study_stories(both, None, DOCUMENTS, BYTES, settings, Notes(None, {}), lambda n: steps.update(all=n))
    assert steps["all"] == stories_planned(both, None, settings)
    assert set(result["likelihood"]["causal"]["32"]) == {"bound", "l2r"}
    assert set(result["hidden_words"]) == {"order-causal"}
    written = {name for name in result["free_stories"]["appraisal"] if not name.startswith("real")}
    assert written == {"order-causal, l2r", "order-causal, random", "causal, l2r", "order-causal, l2r, best of 3"}


def test_the_card_is_made_from_the_document(story_document: dict, model: LM, gpt: LM) -> None:
    card = model_card(model, story_document, "## Data and licences\n\nMade up.")
    bound = story_document["result"]["likelihood"]["bidirectional"]["64"]["bound"]["bits_per_byte"]
    for needed in (
        "Made up.",
        f"{bound:.3f} ± ",
        "tokens seen: 2,463,966",
        "## Samples, unpicked",
        "Written along the order `l2r`, temperature 1, top-p 0.9.",
        "15% hidden",
        "1.00 times",
        "confidence less l2r",
        "nats per token next to the GPT, on the same 3 stories",
        "of `[MASK",  # which words were given, where that differs by seed
    ):
        assert needed in card, needed
    trained_on = LM(model.model, model.tokenizer, model.about | {"tokens_before": 1_000_000}, None)
    measured = json.loads(json.dumps(story_document))
    measured["provenance"]["model"]["tokens_before"] = 1_000_000
    measured["gpt"] = model_identity(gpt)
    card = model_card(trained_on, measured, "")
    assert "tokens of training in all: 3,463,966; the lines below are of the last leg" in card
    assert f"The GPT beside it: {gpt.about['name']}, {gpt.model.num_parameters():,} parameters" in card
    assert f"{model.model.num_parameters():,} parameters" in card
    with pytest.raises(DataError, match="another model"):
        model_card(gpt, story_document, "")
    with pytest.raises(DataError, match="not from 'orders'"):
        model_card(model, story_document | {"study": "orders"}, "")


def test_a_card_is_not_made_from_another_state_of_the_same_run(story_document: dict, model: LM) -> None:
    measured = json.loads(json.dumps(story_document))
    measured["provenance"]["model"]["tokens_seen"] = 1
    with pytest.raises(DataError, match="another model"):
        model_card(model, measured, "")


def test_what_storage_costs_is_not_said_of_rounded_weights(model: LM, gpt: LM, tmp_path: Path) -> None:
    model.save(tmp_path / "half", storage="float16")
    half = load(tmp_path / "half")
    small = replace(SMALL, lengths=(32,))
    result = study_stories(half, None, DOCUMENTS, None, small, Notes(None, {}), silent)
    assert result["storage"] is None
    assert "Not measured: the weights were stored" in story_tables(result)


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


def test_weak_points_are_read_off_the_figures(story_document: dict) -> None:
    result = json.loads(json.dumps(story_document["result"]))
    result["free_stories"]["appraisal"]["GPT"]["repetition_4"] = 0.5
    result["free_stories"]["appraisal"]["real"]["repetition_4"] = 0.25
    assert "- GPT: repeated 4-grams 0.500, real stories 0.250." in weak_points(result)
    result["gpt"] = None
    assert "no GPT" in weak_points(result)


def test_pages_and_pictures_are_made_from_the_document(story_document: dict, tmp_path: Path) -> None:
    page = render(story_document)
    cost = story_document["result"]["storage"]["cost"]["int8"]
    assert f"{100 * cost:+.3f} %" in page
    assert "`pmlm bench stories`" in page
    draw_study(story_document, tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 5000
    with pytest.raises(DataError, match="unknown study"):
        render(story_document | {"study": "nothing"})


def test_texts_of_a_study_may_each_be_the_likeliest_of_several(model: LM) -> None:
    templates = [parse_template(source) for source in ("The [MASK:4].", "[MASK:5] ran.", "A ___ fox.")]
    found = write_texts(model, templates, FillOptions(), Notes(None, {}), "x", first_seed=7, best_of=3, chunk=2)
    own = [model.fill(template, seed=7 + 3 * i, best_of=3).text for i, template in enumerate(templates)]
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


def test_hiding_is_the_same_for_every_order() -> None:
    from pmlm.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    passage = Passage(STORIES[0], 0, True, read_units(STORIES[0], tokenizer))
    one, two = (hide_words(passage, 0.5, generator(0, "hide", 0.5, 1)) for _ in range(2))
    assert one == two != hide_words(passage, 0.5, generator(0, "hide", 0.5, 2))


def test_the_text_that_engines_are_timed_by_is_written_in_random_order(model: LM) -> None:
    asked: list[dict[str, Any]] = []

    class Noting:
        """Passes on what it is asked, and keeps it."""

        def fill(self, template: str, **options: Any) -> Filled:
            asked.append(options)
            return model.fill(template, **options)

    timed = _whole_text({"torch": Noting()}, 4, ExportBench(rounds=1))  # type: ignore[dict-item]
    assert timed["tokens"] == 4
    assert {options.get("order") for options in asked} == {"random"}
