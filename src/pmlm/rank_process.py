"""A process that torchrun started: whether this is one, and how it ends. Importing it imports no torch."""

import os
import sys
from typing import NoReturn


def is_rank() -> bool:
    """Whether the environment names a rank, as torchrun's does."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def leave(code: int) -> NoReturn:
    """End the process with this code; a rank's at once, after what it printed, without Python's own tidying.

    A thread of gloo's that a busy machine has kept waiting may still have to let go of a tensor, and needs Python's
    lock for it. Where Python tidies up it ends such a thread in the middle, and that aborts the whole process (SIGABRT)
    although its work is done.
    """
    if not is_rank():
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
