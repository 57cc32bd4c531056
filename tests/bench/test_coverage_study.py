"""The study of words that must appear."""

import pytest
from bench_helpers import BYTES, DOCUMENTS

from pmlm.bench.coverage import CoverageSettings, common_words, draw_sets, missing_words, study_coverage, write_with
from pmlm.bench.study import Notes
from pmlm.errors import DataError
from pmlm.evaluation import silent
from pmlm.lm import LM
from pmlm.options import FillOptions


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
