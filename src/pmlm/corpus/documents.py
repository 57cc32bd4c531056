"""Text files as a stream of documents: plain or .xz, one per line, per paragraph block, or between separators."""

import lzma
import re
from pathlib import Path
from typing import Literal

from pmlm.errors import DataError

Split = Literal["auto", "lines", "blocks", "documents", "whole"]
SEPARATOR = "<|endoftext|>"


def read_text(path: Path) -> str:
    """A UTF-8 text file, unpacked where it ends in .xz."""
    try:
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except lzma.LZMAError as error:
        raise DataError(f"cannot unpack {path}: {error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def read_documents(path: Path, split: Split = "auto") -> list[str]:
    """The documents of a file, without surrounding white space, empty ones left out.

    `documents` are separated by <|endoftext|>, `blocks` by blank lines, `lines` by line ends; `whole` takes the file
    as one. `auto` takes the first of documents, blocks and lines whose separator occurs.
    """
    text = read_text(path)
    if split == "auto":
        split = "documents" if SEPARATOR in text else "blocks" if re.search(r"\S\n\s*\n\s*\S", text) else "lines"
    match split:
        case "documents":
            parts = text.split(SEPARATOR)
        case "blocks":
            parts = re.split(r"\n[ \t]*\n", text)
        case "lines":
            parts = text.splitlines()
        case _:
            parts = [text]
    documents = [part.strip() for part in parts if part.strip()]
    if not documents:
        raise DataError(f"{path} holds no text")
    return documents
