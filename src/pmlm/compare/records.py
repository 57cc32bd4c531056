"""What every result says of itself: settings, seed, version, machine, time."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pmlm
from pmlm.errors import DataError

Record = dict[str, Any]


def provenance(began: float) -> Record:
    return {
        "pmlm": pmlm.__version__,
        "commit": _commit(),
        "seconds": round(time.time() - began, 1),
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }


def _commit() -> str | None:
    """Of the checkout that the package runs from, if it does."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None


def once(path: Path, make: Callable[[], Record]) -> Record:
    """The record at `path`, made and written whole where it is not there yet."""
    if path.is_file():
        return read_record(path)
    began = time.time()
    record = {**make(), "made": provenance(began)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return record


def read_record(path: Path) -> Record:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}): remove it to measure again") from None
