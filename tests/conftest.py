"""Shared fixtures."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pmlm.corpus.prepare import PrepareSettings, prepare
from pmlm.corpus.shards import Corpus, open_corpus
from pmlm.lm import LM, load
from pmlm.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from serve_helpers import Served

# Workers of xdist share the cores: threads of several processes wait for each other at every operation.
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
torch.set_num_threads(THREADS)
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))  # of the commands that tests start
os.environ["PMLM_MODEL"] = str(Path(__file__).parent / "little")  # a small model of both visibilities, quick to ask

STORIES = [
    "Tom is a cat and Jerry is a mouse. They live in a small house by the sea.",
    "The little fox ran over the hill, and the lazy dog slept in the sun.",
    '"Where is my kite?" asked Mia. "It is in the tree," said Ben. They laughed.',
    "Once there was a brave hen who wanted to see the river. She walked all day.",
    "It rained, so we stayed at home; the café was closed at 5 o'clock anyway.",
]


@pytest.fixture(scope="session")
def stories() -> list[str]:
    return STORIES


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout; the product does not need it, some tests do."""
    folder = Path(os.environ.get("PMLM_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data folder {folder}: set PMLM_DATA to one")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    texts = [f"{STORIES[i % 5]} {STORIES[(i * 3 + 1) % 5]} This was story {i}." for i in range(150)]
    (folder / "s.txt").write_text("\n\n".join(texts))
    tokenizer = train_tokenizer(STORIES, vocab_size=320)
    prepare([folder / "s.txt"], folder / "c", tokenizer, PrepareSettings(heldout=0.1, part_tokens=3000))
    return open_corpus(folder / "c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(scope="session")
def model() -> LM:
    """The small model beside the tests."""
    return load()


@pytest.fixture(scope="session")
def served(model: LM) -> "Iterator[Served]":
    """A server of that model, under two names, and of fine-tuned ones."""
    from serve_helpers import finetuned_models, serving

    with serving({"first": model, "second": model, **finetuned_models()}) as running:
        yield running
