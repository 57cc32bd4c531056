"""The examples run, and show what they say."""

import importlib.util
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
