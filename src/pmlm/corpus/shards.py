"""Token shards on disk: flat arrays of ids, memory-mapped, with a manifest that says where they came from.

A corpus is a folder with manifest.json, its tokenizer, and numbered parts. Each part holds, for each split, the ids of
whole documents end to end (`NAME.bin`) and where each of them starts (`NAME.idx`). Checksums stand in the manifest; a
damaged shard is refused.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pmlm.errors import DataError
from pmlm.keeping import file_sha256
from pmlm.tokenizer import Tokenizer, load_tokenizer

MANIFEST = "manifest.json"
FORMAT = 1
SplitName = Literal["train", "heldout"]
Ids = npt.NDArray[np.unsignedinteger[Any]]
Starts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    name: str
    split: SplitName
    tokens: int
    documents: int
    num_bytes: int
    """UTF-8 bytes of the documents' text."""
    sha256: str
    index_sha256: str


@dataclass(frozen=True)
class Corpus:
    """An opened corpus folder."""

    folder: Path
    manifest: Mapping[str, Any]
    tokenizer: Tokenizer
    shards: tuple[Shard, ...]

    def of(self, split: SplitName) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def tokens(self, split: SplitName) -> int:
        return sum(shard.tokens for shard in self.of(split))

    def read(self, shard: Shard) -> tuple[Ids, Starts]:
        """(ids, where each document starts, the end included)."""
        ids = np.memmap(self.folder / f"{shard.name}.bin", dtype=self.manifest["dtype"], mode="r")
        starts = np.fromfile(self.folder / f"{shard.name}.idx", dtype=np.int64)
        return ids, starts


def token_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 65_536 else "uint32"


def write_shard(
    folder: Path, name: str, split: SplitName, documents: list[npt.NDArray[Any]], num_bytes: int, dtype: str
) -> Shard:
    """Write both files of a shard and describe it."""
    ids = np.concatenate([np.asarray(d, dtype=dtype) for d in documents]) if documents else np.zeros(0, dtype=dtype)
    starts = np.cumsum([0, *(len(d) for d in documents)], dtype=np.int64)
    digests = [_write(folder / f"{name}.{end}", part.tobytes()) for end, part in (("bin", ids), ("idx", starts))]
    return Shard(name, split, len(ids), len(documents), num_bytes, digests[0], digests[1])


def _write(path: Path, raw: bytes) -> str:
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as handle:
            handle.write(raw)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    return hashlib.sha256(raw).hexdigest()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    _write(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def shard_dict(shard: Shard) -> dict[str, Any]:
    return asdict(shard)


def token_counts(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Tokens and documents of each split."""
    return {
        f"{split}_{what}": sum(shard[what] for shard in manifest["shards"] if shard["split"] == split)
        for split in ("train", "heldout")
        for what in ("tokens", "documents")
    }


def open_corpus(folder: Path, *, verify: bool = True) -> Corpus:
    """Read the manifest and, unless told otherwise, check every shard against its checksum."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(f"{folder} is no prepared corpus: it has no {MANIFEST}. Make one with `pmlm prepare`.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        shards = tuple(Shard(**shard) for shard in manifest["shards"])
        lacks = [key for key in ("dtype", "tokenizer", "recipe") if key not in manifest]
        if lacks or manifest["dtype"] not in ("uint16", "uint32"):
            raise ValueError(f"no {lacks[0]}" if lacks else f"dtype {manifest['dtype']!r}")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}. Prepare the corpus anew.") from None
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path} has format {manifest.get('format')!r}; this version reads format {FORMAT}")
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint != manifest["tokenizer"]:
        raise DataError(f"{folder}: the tokenizer is not the one that the shards were made with")
    if verify:
        for shard in shards:
            verify_shard(folder, shard)
    return Corpus(folder, manifest, tokenizer, shards)


def verify_shard(folder: Path, shard: Shard) -> None:
    for end, expected in (("bin", shard.sha256), ("idx", shard.index_sha256)):
        path = folder / f"{shard.name}.{end}"
        try:
            found = file_sha256(path)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        if found != expected:
            raise DataError(f"{path} is damaged: its checksum is not the one in {MANIFEST}. Prepare the corpus again.")
