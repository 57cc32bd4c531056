"""Results that are kept: written whole or not at all, and saying where they come from."""

import contextlib
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pmlm
from pmlm.errors import RunError

try:
    import fcntl
except ImportError:  # no such locks on this system: run one process alone
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"
"""In a folder that one process at a time may work in."""


def made(seconds: float | None = None) -> dict[str, Any]:
    """By which source, on which machine and in which time a result was made."""
    took = {} if seconds is None else {"seconds": round(seconds, 1)}
    return {"pmlm": pmlm.__version__, "commit": git_commit(), **took, "machine": machine()}


def tokens_of(about: Mapping[str, Any]) -> int:
    """Tokens that a model was trained on in all: in its last run, and before in those that it went on from."""
    return int(about.get("tokens_seen", 0) + about.get("tokens_before", 0))


def machine() -> str:
    import torch  # not for those who only want a checksum

    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads used, "
        f"torch {torch.__version__}"
    )


def git_commit() -> str | None:
    """Of the source that runs, with a + where files differ from it; None outside a repository."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def file_sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """In one step: whoever reads the file sees the old text or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):  # where the folder itself could not be made
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within it, no other process is at this folder; refused where one is."""
    with locked(folder / LOCK) as is_ours:
        if not is_ours:
            raise RunError(f"another process is at {folder}: wait for it, or give another folder")
        yield


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Whether this process alone may go on. The system frees the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
