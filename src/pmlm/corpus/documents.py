"""Text files as a stream of documents, read piece by piece so that a large file does not fill the memory.

Plain text (one document per line, per block between blank lines, between separators, or the whole file), WikiText,
WikiExtractor output, JSON lines, and tar archives of such files; each also as .xz. What a file is, is seen from its
name and its beginning; `split` overrides it.
"""

import contextlib
import io
import itertools
import json
import lzma
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tarfile import HeaderError
from typing import IO, Literal, Self, get_args

from pmlm.errors import DataError

Split = Literal["auto", "lines", "blocks", "documents", "whole", "wikitext", "wikiextractor", "jsonl"]
SPLITS: tuple[str, ...] = get_args(Split)
SEPARATOR = "<|endoftext|>"
_PEEK_LINES = 2000
_METER_LINES = 256
_WIKI_OPEN = re.compile(r'<doc id="([^"]*)"[^>]*>\s*$')
_WIKITEXT_TITLE = re.compile(r"^ ?= [^=].* = *$")


@dataclass(frozen=True)
class Document:
    text: str
    id: str | None = None


Meter = Callable[[int], None]


def _unheard(_bytes: int) -> None:
    pass


def check_split(name: str) -> Split:
    for known in get_args(Split):
        if name == known:
            return known
    raise DataError(f"--split must be one of {', '.join(SPLITS)}; got {name!r}")


def read_text(path: Path) -> str:
    """A whole UTF-8 text file, unpacked where it ends in .xz."""
    return "".join(_lines(path))


def read_documents(path: Path, split: Split = "auto") -> list[str]:
    """The texts of all documents of a file; DataError where there are none."""
    documents = [document.text for document in iter_documents(path, split)]
    if not documents:
        raise DataError(f"{path} holds no text")
    return documents


def iter_documents(
    path: Path, split: Split = "auto", field: str = "text", meter: Meter = _unheard
) -> Iterator[Document]:
    """The documents of a file without surrounding white space, empty ones left out.

    `documents` are separated by <|endoftext|>, `blocks` by blank lines, `lines` by line ends; `wikitext` starts one at
    each top-level title; `wikiextractor` and `jsonl` (with the text under `field`) carry ids. Members of a tar are
    documents on their own unless `split` or their beginning says otherwise (WikiExtractor, JSON lines). `meter` hears
    how many bytes of the file have been read.
    """
    if ".tar" in path.suffixes[-2:]:
        yield from _tar_documents(path, split, field, meter)
        return
    lines = _lines(path, meter)
    head = list(itertools.islice(lines, _PEEK_LINES))
    kind = _guess(path, head, field) if split == "auto" else split
    for document in _split_lines(itertools.chain(head, lines), kind, field, path):
        text = document.text.strip()
        if text:
            yield Document(text, document.id)


def _lines(path: Path, meter: Meter = _unheard) -> Iterator[str]:
    try:
        with path.open("rb") as raw, lzma.open(raw) if path.suffix == ".xz" else contextlib.nullcontext(raw) as handle:
            is_file = raw.seekable()  # and no pipe, which has no place to tell
            for number, line in enumerate(_decoded(handle, path)):
                if is_file and number % _METER_LINES == 0:
                    meter(raw.tell())
                yield line
            if is_file:
                meter(raw.tell())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(f"cannot unpack {path}: {error}") from None


def _decoded(handle: Iterable[bytes], path: Path) -> Iterator[str]:
    at = 0
    for raw in handle:
        try:
            line = raw.decode("utf-8-sig" if at == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: byte {at + error.start} cannot be read") from None
        at += len(raw)
        yield line.removesuffix("\r\n") + "\n" if line.endswith("\r\n") else line


def _guess(path: Path, head: list[str], field: str) -> Split:
    text = "".join(head)
    if records := _guess_records(path, head, field):
        return records
    if SEPARATOR in text:
        return "documents"
    if any(_WIKITEXT_TITLE.match(line) for line in head[:3]):
        return "wikitext"
    return "blocks" if re.search(r"\S\n\s*\n\s*\S", text) else "lines"


def _guess_records(path: Path, head: list[str], field: str) -> Split | None:
    """Files whose documents carry ids, by their name or their first line."""
    first = head[0] if head else ""
    if ".jsonl" in path.suffixes[-2:]:
        return "jsonl"
    if _WIKI_OPEN.match(first):
        return "wikiextractor"
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(first) if first.startswith("{") else None
        if isinstance(record, dict) and isinstance(record.get(field), str):
            return "jsonl"  # as WikiExtractor --json writes it
    return None


def _split_lines(lines: Iterable[str], kind: Split, field: str, path: Path) -> Iterator[Document]:
    match kind:
        case "lines":
            yield from (Document(line) for line in lines)
        case "blocks":
            yield from _gather(lines, lambda line: not line.strip(), keep=False)
        case "wikitext":
            yield from _gather(lines, lambda line: bool(_WIKITEXT_TITLE.match(line)), keep=True)
        case "documents":
            yield from _separated(lines)
        case "wikiextractor":
            yield from _wikiextractor(lines)
        case "jsonl":
            yield from (
                _json_document(line, number, field, path) for number, line in enumerate(lines, 1) if line.strip()
            )
        case _:
            yield Document("".join(lines))


def _gather(lines: Iterable[str], is_edge: Callable[[str], bool], *, keep: bool) -> Iterator[Document]:
    """Documents that end before each edge line; `keep` puts that line at the start of the next."""
    parts: list[str] = []
    for line in lines:
        if is_edge(line):
            yield Document("".join(parts))
            parts = [line] if keep else []
        else:
            parts.append(line)
    yield Document("".join(parts))


def _separated(lines: Iterable[str]) -> Iterator[Document]:
    parts: list[str] = []
    for line in lines:
        *ended, rest = line.split(SEPARATOR)
        for piece in ended:
            yield Document("".join([*parts, piece]))
            parts = []
        parts.append(rest)
    yield Document("".join(parts))


def _wikiextractor(lines: Iterable[str]) -> Iterator[Document]:
    parts: list[str] = []
    key: str | None = None
    for line in lines:
        if opening := _WIKI_OPEN.match(line):
            parts, key = [], opening[1]
        elif line.startswith("</doc>"):
            yield Document("".join(parts), key)
            parts = []
        else:
            parts.append(line)
    if "".join(parts).strip():
        raise DataError("the last <doc> is not closed: the file is cut off")


def _json_document(line: str, number: int, field: str, path: Path) -> Document:
    try:
        record = json.loads(line)
        text = record[field]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise DataError(f"{path}, line {number}: no JSON object with a field {field!r}") from None
    if not isinstance(text, str):
        raise DataError(f"{path}, line {number}: the field {field!r} is not a text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{path}, line {number}: the text is not Unicode (half of a character pair)")
    key = record.get("id")
    return Document(text, None if key is None else str(key))


class _Member(tarfile.TarInfo):
    """Remembers what ended an archive: tarfile takes a damaged header for the end."""

    ended_by: type[BaseException] | None = None

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            cls.ended_by = type(error)
            raise


def _tar_documents(path: Path, split: Split, field: str, meter: Meter) -> Iterator[Document]:
    try:
        member_kind = type("_MemberOfOne", (_Member,), {})
        with path.open("rb") as raw, tarfile.open(fileobj=raw, tarinfo=member_kind) as archive:
            for member in archive:
                meter(raw.tell())
                handle: IO[bytes] | None = archive.extractfile(member) if member.isfile() else None
                if handle is None:
                    continue
                inside = Path(member.name)
                lines = _decoded(io.BytesIO(handle.read()), inside)
                head = list(itertools.islice(lines, 1))
                lines = itertools.chain(head, lines)
                kind: Split = (_guess_records(inside, head, field) or "whole") if split == "auto" else split
                for i, document in enumerate(_split_lines(lines, kind, field, inside)):
                    text = document.text.strip()
                    if text:
                        yield Document(text, document.id or (member.name if kind == "whole" else f"{member.name}#{i}"))
            if member_kind.ended_by is not tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                read = len(archive.getmembers())
                raise DataError(f"cannot unpack {path}: it is damaged, or cut off, after {read} members")
        meter(path.stat().st_size)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"cannot unpack {path}: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
