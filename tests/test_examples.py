"""The examples run, and show what they say."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_scattered_words_stand_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    example("scattered_words").main(["--length", "40", "--seed", "3"])
    text = capsys.readouterr().out.splitlines()[-1]
    assert re.search(".*".join(["THE", "QUICK", "BROWN", "FOX", "JUMPS", "OVER", "THE", "LAZY", "DOG"]), text), text


def test_the_story_lies_between_its_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("between_sentences")
    module.main(["--tokens", "12"])
    text = capsys.readouterr().out.strip()
    assert text.startswith(module.FIRST + " ")
    assert text.endswith(" " + module.LAST)
    assert len(text) > len(module.FIRST) + len(module.LAST) + 12


def test_the_table_of_states_goes_along_the_paper_s_order(capsys: pytest.CaptureFixture[str]) -> None:
    example("states").main([])
    *rows, output = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in rows[1:]] == [
        [str(t), str(i)] for t, i in enumerate([3, 7, 1, 2, 4, 6, 5, 8], 1)
    ]
    assert [line.count("_") for line in rows] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert output.startswith("Output: ")


def test_an_adapted_bert_fills_a_template_in_three_orders(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("adapted_bert")
    folder = module.model_folder([])
    if not folder.is_absolute():
        folder = EXAMPLES.parent / folder
    if not folder.is_dir():
        pytest.skip(f"no adapted model in {folder}: make one by `pmlm adapt`, or set PMLM_ADAPTED to its folder")
    module.main([os.fspath(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["l2r", "r2l", "random"]
    assert all(
        re.search(r"the capital of \S.* is \S.* ?\.   \(\d+\.\d nats\)$", line, re.IGNORECASE) for line in lines
    ), lines


def test_without_an_adapted_bert_the_example_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    example("adapted_bert").main([str(tmp_path / "none")])
    assert "pmlm adapt" in capsys.readouterr().out
