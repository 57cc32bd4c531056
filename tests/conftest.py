"""Shared fixtures."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(2)

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
