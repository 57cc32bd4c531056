"""A model may say how its texts are drawn; whoever asks may say otherwise, and every door means the same."""

import json
from pathlib import Path

import pytest
from serve_helpers import close, printed, serving

from pmlm.cli import run
from pmlm.errors import CheckpointError
from pmlm.generation.sampling import PLAIN, Sampling
from pmlm.lm import LM, load

TEMPLATE = "Tom is a cat and Jerry is a [MASK]. [MASK:6]"


@pytest.fixture
def hot(tmp_path: Path, model: LM) -> Path:
    """The little model, to be drawn from at a high temperature."""
    assert model.folder is not None
    assert run(["convert", str(model.folder), "--out", str(tmp_path / "hot"), "--temperature", "3"]) == 0
    return tmp_path / "hot"


def test_texts_are_drawn_as_the_model_has_it_unless_told_otherwise(hot: Path, model: LM) -> None:
    own = load(hot)
    assert own.sampling == Sampling(temperature=3.0)
    assert model.sampling == PLAIN
    assert own.fill(TEMPLATE, seed=1).text == model.fill(TEMPLATE, seed=1, temperature=3.0).text
    assert own.fill(TEMPLATE, seed=1, temperature=1.0).text == model.fill(TEMPLATE, seed=1).text
    assert own.fill(TEMPLATE, seed=1).text != model.fill(TEMPLATE, seed=1).text
    both = own.fill(TEMPLATE, seed=1, top_k=3)
    assert both.sampled_logp == model.fill(TEMPLATE, seed=1, top_k=3, temperature=3.0).sampled_logp


def test_what_a_text_is_worth_does_not_depend_on_it(hot: Path, model: LM) -> None:
    filled = load(hot).fill(TEMPLATE, seed=1)
    again = model.score(filled.text, given=TEMPLATE)
    assert filled.nll == pytest.approx(again.nll, abs=1e-4)
    assert sum(filled.sampled_logp) != pytest.approx(-filled.nll, abs=0.1)


def test_it_goes_with_the_model(hot: Path, tmp_path: Path) -> None:
    load(hot).save(tmp_path / "copy", storage="float16")
    assert load(tmp_path / "copy").sampling.temperature == 3.0
    assert run(["convert", str(hot), "--out", str(tmp_path / "plain"), "--temperature", "1"]) == 0
    assert "sampling" not in json.loads((tmp_path / "plain" / "config.json").read_text())


def test_every_door_means_the_same(
    hot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMLM_MODEL", str(hot))
    capsys.readouterr()
    own = printed(capsys, "generate", TEMPLATE, "--seed", "2", "--json")
    told = printed(capsys, "generate", TEMPLATE, "--seed", "2", "--temperature", "1", "--json")
    assert own["text"] == load(hot).fill(TEMPLATE, seed=2).text != told["text"]
    with serving({"hot": load(hot)}) as served:
        assert close(served.post("/v1/generate", template=TEMPLATE, seed=2).json(), own)
        assert close(served.post("/v1/generate", template=TEMPLATE, seed=2, temperature=1).json(), told)
        (about,) = served.client.get("/v1/models").json()["models"]
        assert about["sampling"] == {"temperature": 3.0}
    assert printed(capsys, "info", "--json")["sampling"] == {"temperature": 3.0}
    assert str(load(hot).sampling) == "temperature 3"
    assert str(Sampling(top_p=0.9, repetition_penalty=1.2)) == "top p 0.9, repetition penalty 1.2"
    assert run(["info"]) == 0
    assert "texts are drawn at temperature 3, unless told otherwise" in capsys.readouterr().out


def test_nonsense_is_refused(hot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((hot / "config.json").read_text())
    for section, says in (({"temperature": -1.0}, "temperature must be 0"), ({"heat": 1}, "heat"), ([], "a section")):
        (hot / "config.json").write_text(json.dumps(document | {"sampling": section}))
        with pytest.raises(CheckpointError, match=says):
            load(hot)
    (hot / "config.json").write_text(json.dumps(document))
    for more, says in (
        (["--temperature", "-1"], "temperature"),
        (["--to", "bert", "--temperature", "1"], "own format"),
    ):
        assert run(["convert", str(hot), "--out", str(tmp_path / "x"), *more]) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "x").exists()
