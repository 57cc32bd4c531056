"""The model inside the package: small enough to carry, there without being named, able to write."""

import json
from pathlib import Path

import pytest

from pmlm import load
from pmlm.config import to_dict
from pmlm.errors import CheckpointError
from pmlm.lm import LM, packaged_model_folder
from pmlm.training.settings import load_settings


@pytest.fixture(scope="module")
def packaged() -> LM:
    return load(packaged_model_folder())


def test_it_is_what_is_loaded_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch, model: LM) -> None:
    assert model.folder != packaged_model_folder()
    monkeypatch.delenv("PMLM_MODEL")
    assert load().folder == packaged_model_folder()


def test_it_is_small_and_three_visibilities_are_its_own(packaged: LM) -> None:
    assert sum(path.stat().st_size for path in packaged_model_folder().iterdir()) < 40_000_000
    assert packaged.model.config.visibilities == ("order-causal", "bidirectional", "causal")
    assert packaged.words is not None


@pytest.mark.parametrize("visibility", ["order-causal", "bidirectional"])
@pytest.mark.parametrize("order", ["l2r", "random", "confidence"])
def test_it_writes_between_two_anchors(packaged: LM, visibility: str, order: str) -> None:
    first, last = "Tom is a cat and Jerry is a mouse.", "Tom and Jerry become good friends in the end."
    filled = packaged.fill(f"{first} [MASK:24] {last}", order=order, visibility=visibility, seed=0, top_p=0.9)
    assert filled.text.startswith(first)
    assert filled.text.endswith(last)


def test_english_is_likelier_to_it_than_the_same_words_shuffled(packaged: LM) -> None:
    text = "Once upon a time there was a little girl. She liked to play with her dog in the park."
    words = text.rstrip(".").split()
    shuffled = " ".join(words[::2] + words[1::2]) + "."
    for visibility in packaged.model.config.visibilities:
        order = "l2r" if visibility == "causal" else "random"
        real, jumbled = (
            packaged.score(t, order=order, visibility=visibility, seed=0).bits_per_byte for t in (text, shuffled)
        )
        assert real < 0.8 * jumbled


def test_a_folder_of_ones_own_can_be_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PMLM_MODEL", str(tmp_path / "nothing"))
    with pytest.raises(CheckpointError, match="nothing"):
        load()


@pytest.mark.parametrize(("leg", "settings"), [("leg.toml", "fifth"), ("gpt/leg.toml", "gpt/second")])
def test_the_file_for_a_further_leg_is_what_the_last_one_was_trained_by(leg: str, settings: str) -> None:
    results = Path(__file__).parent.parent / "results" / "stories"
    kept = json.loads((results / settings / "settings.json").read_text(encoding="utf-8"))["settings"]
    assert to_dict(load_settings(str(results / leg), [])) == kept
