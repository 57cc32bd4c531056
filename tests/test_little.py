"""The script that trains the tests' little model, end to end."""

import subprocess
import sys
from pathlib import Path

import pytest

from pmlm import load

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "train_little.py"


@pytest.mark.slow
def test_the_script_trains_a_model_that_beats_chance(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--steps", "120", "--out", str(tmp_path / "m")], check=True)
    lm = load(tmp_path / "m")
    for visibility in lm.model.config.visibilities:
        assert lm.score("Tom is a cat and Jerry is a mouse.", order="random", visibility=visibility).bits_per_byte < 2.3
