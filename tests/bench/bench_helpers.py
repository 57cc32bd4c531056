"""What the tests of studies share: a judge that knows nothing, documents, a small study."""

from pathlib import Path

import torch

from conftest import STORIES
from pmlm.bench.judge import Judge
from pmlm.bench.stories import StorySettings

BYTES = Judge("bytes", lambda text: list(text.encode()), lambda ids: torch.zeros(*ids.shape, 256), 0, 5000)
"""Knows nothing: 8 bits for every byte."""
NAMES = ("Tom", "Mia", "Ben", "Anna", "Leo", "Rosa")
DOCUMENTS = [
    f"One day {a} walked to the park. {b} lost a big ball near the river. {STORIES[i % 2]} {a} was very happy."
    for i, (a, b) in enumerate((a, b) for a in NAMES for b in NAMES if a != b)
]


def heldout(folder: Path) -> Path:
    """The documents as a file."""
    path = folder / "heldout.txt"
    path.write_text("\n\n".join(DOCUMENTS))
    return path


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
