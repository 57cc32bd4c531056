"""How a process ends: as Python ends it, or as a rank's, at once and with all that it printed."""

import os
import subprocess
import sys

import pytest

ENDS = """
import atexit
from pmlm.rank_process import leave
atexit.register(print, "tidied up")
print("done")
leave(3)
"""


@pytest.mark.parametrize(("rank", "printed"), [({}, "done\ntidied up\n"), ({"RANK": "0", "WORLD_SIZE": "2"}, "done\n")])
def test_a_rank_leaves_at_once_with_what_it_printed(rank: dict[str, str], printed: str) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, env={**plain, **rank}, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, printed, "")
