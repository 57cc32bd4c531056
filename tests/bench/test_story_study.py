"""The study of a story model, its tables and its card."""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from bench_helpers import BYTES, DOCUMENTS, SMALL, heldout

from fakes import tiny_config
from pmlm.bench.card import model_card, weak_points
from pmlm.bench.material import (
    document_rows,
    draw_documents,
)
from pmlm.bench.plots import draw_study
from pmlm.bench.stories import add_gpt, rounded, study_stories
from pmlm.bench.stories import planned as stories_planned
from pmlm.bench.study import Notes, model_identity, read_document, run_study
from pmlm.bench.tables import paired, render, story_tables
from pmlm.errors import DataError
from pmlm.evaluation import silent
from pmlm.lm import LM, load
from pmlm.model import LanguageModel, build_model
from pmlm.runtime import generator


@pytest.fixture(scope="session")
def gpt(model: LM) -> LM:
    t = model.tokenizer
    config = tiny_config(vocab_size=t.vocab_size, mask_id=t.mask_id, forbidden_ids=t.forbidden_ids, max_length=128,
                         visibilities=("causal",))  # fmt: skip
    return LM(build_model(config, generator(1)).eval(), t, {"name": "tiny-gpt"}, None)


def test_rounding_is_what_a_file_would_do(model: LM, tmp_path: Path) -> None:
    model.save(tmp_path / "half", storage="float16")
    stored = load(tmp_path / "half").model.state_dict()
    assert all(torch.equal(t, stored[name]) for name, t in rounded(model.model, "float16").state_dict().items())
    original, eight = model.model.state_dict(), rounded(model.model, "int8").state_dict()
    name = max((n for n, t in original.items() if t.dim() == 2), key=lambda n: original[n].numel())
    step = original[name].abs().amax(dim=1, keepdim=True) / 127
    assert ((original[name] - eight[name]).abs() <= step / 2 + 1e-7).all()
    assert not torch.equal(original[name], eight[name])


@pytest.fixture(scope="session")
def story_document(model: LM, gpt: LM, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("stories")
    steps = Counter[str]()
    document = run_study(
        "stories", folder / "figures.json", model, heldout(folder), {}, "pmlm bench stories",
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
    model: LM, gpt: LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, text = replace(SMALL, lengths=(32,), samples=1), heldout(tmp_path)

    def study(out: Path, other: LM | None, seed: int = 0) -> dict:
        settings = replace(small, seed=seed)
        return run_study(
            "stories", out, model, text, asdict(settings), "with" if other else "without",
            lambda notes: study_stories(model, other, DOCUMENTS, None, settings, notes, silent),
            grow=other and (lambda notes, known: add_gpt(known, model, other, DOCUMENTS, None, settings, notes, silent)),
            beside={"gpt": other and model_identity(other)},
        )  # fmt: skip

    study(tmp_path / "together.json", gpt)
    alone = study(tmp_path / "later.json", None)
    asked: list[str] = []
    known = Notes.get
    monkeypatch.setattr(
        Notes, "get", lambda self, name, *rest, **more: asked.append(name) or known(self, name, *rest, **more)
    )
    later = study(tmp_path / "later.json", gpt)
    assert {name.split("/")[1][:4] for name in asked} == {"gpt-"}
    found, whole = (read_document(tmp_path / f"{name}.json")["result"] for name in ("later", "together"))
    assert found["likelihood"] == json.loads(json.dumps(alone["result"]["likelihood"]))
    assert found["free_stories"]["appraisal"].keys() == whole["free_stories"]["appraisal"].keys()
    assert found["gpt"]["causal"]["32"]["l2r"]["nll"] == pytest.approx(whole["gpt"]["causal"]["32"]["l2r"]["nll"])
    assert later["gpt"] == model_identity(gpt)
    assert alone["gpt"] is alone["result"]["gpt"] is None
    assert "GPT" not in alone["result"]["free_stories"]["appraisal"]
    assert (later["provenance"]["command"], later["added"]["command"]) == ("without", "with")
    assert "added by `with`" in render(later)
    asked.clear()
    assert "added" not in study(tmp_path / "later.json", gpt, seed=1)  # other settings: all of it is measured
    assert any("/model/" in name for name in asked)


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
    assert "blind reader" not in card
    rated = {"whole": 4.0, "whole_stderr": 0.5, "sense": 2.0, "sense_stderr": None, "taken_for_program": 1.0}
    read = model_card(model, story_document, "", [{"kind": "15 %", "source": "model", "texts": 2, **rated}])
    assert "## Before a blind reader" in read
    assert "| 15 % | model | 2 | 4.00 ± 0.50 | 2.00 ± 0.00 | 100% |" in read
    for needed in (
        "Made up.",
        f"{bound:.3f} ± ",
        "tokens seen: 2,463,966",
        "## Samples, unpicked",
        "Written along the order `l2r`, temperature 1, top-p 0.9.",
        "15% hidden",
        "confidence less l2r",
        "nats per token next to the GPT, on the same 3 stories",
        "of `[MASK",  # which words were given, where that differs by seed
    ):
        assert needed in card, needed
    trained_on = LM(model.model, model.tokenizer, model.about | {"tokens_before": 1_000_000}, None)
    measured = json.loads(json.dumps(story_document))
    measured["provenance"]["model"]["tokens_before"] = 1_000_000
    measured["gpt"] = model_identity(gpt) | {"tokens_seen": 500, "tokens_before": 1000}
    card = model_card(trained_on, measured, "")
    assert "tokens of training in all: 3,463,966; the lines below are of the last leg" in card
    assert f"The GPT beside it: {gpt.about['name']}, {gpt.model.num_parameters():,} parameters" in card
    assert f"{model.model.num_parameters():,} parameters" in card
    assert "The model has seen 3,463,966 tokens, the GPT 1,500." in card
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


def test_weak_points_are_read_off_the_figures(story_document: dict) -> None:
    result = json.loads(json.dumps(story_document["result"]))
    appraisal = result["free_stories"]["appraisal"]
    ours = next(name for name in appraisal if name.startswith("order-causal"))
    for name in (ours, "GPT"):
        appraisal[name] = json.loads(json.dumps(appraisal["real"])) | {"repetition_4": 0.5}
    appraisal["real"]["repetition_4"] = 0.25
    line = f"- {ours}: repeated 4-grams 0.500, real stories 0.250.\n"
    assert line in weak_points(result)
    assert "- GPT:" not in weak_points(result)  # the GPT's own are no weak points of the model
    result["gpt"] = None
    assert "no GPT" in weak_points(result)
    appraisal[ours]["judge"]["bits_per_byte"] *= 1.5
    both = f"- {ours}: the judge needs 1.50 times the bits per byte of real stories; repeated 4-grams 0.500,"
    assert both in weak_points(result)


def test_pages_and_pictures_are_made_from_the_document(story_document: dict, tmp_path: Path) -> None:
    page = render(story_document)
    cost = story_document["result"]["storage"]["cost"]["int8"]
    assert f"{100 * cost:+.3f} %" in page
    assert "`pmlm bench stories`" in page
    draw_study(story_document, tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 5000
    with pytest.raises(DataError, match="unknown study"):
        render(story_document | {"study": "nothing"})
