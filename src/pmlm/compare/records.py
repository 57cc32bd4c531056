"""Results of a comparison: each is made once, and says where it comes from."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmlm.errors import DataError
from pmlm.keeping import made, write_text

Record = dict[str, Any]


def once(path: Path, make: Callable[[], Record]) -> Record:
    """The record at `path`, made and written whole where it is not there yet."""
    if path.is_file():
        return read_record(path)
    began = time.time()
    record = make()
    record["made"] = made(time.time() - began)
    write_text(path, json.dumps(record, indent=2) + "\n")
    return record


def read_record(path: Path) -> Record:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}): remove it to measure again") from None
