"""Archives, JSON lines, WikiExtractor and WikiText."""

import io
import json
import lzma
import os
import tarfile
import threading
from pathlib import Path

import pytest

from pmlm.corpus.documents import Document, iter_documents
from pmlm.errors import DataError

WIKI = '<doc id="12" url="u" title="Cats">\nCats\n\nA cat is small.\nIt sleeps.\n</doc>\n<doc id="13" url="u" title="D">\nDogs\n\nBig.\n</doc>\n'


def test_wikiextractor_documents_carry_their_ids(tmp_path: Path) -> None:
    (tmp_path / "w.txt.xz").write_bytes(lzma.compress(WIKI.encode()))
    assert list(iter_documents(tmp_path / "w.txt.xz")) == [
        Document("Cats\n\nA cat is small.\nIt sleeps.", "12"),
        Document("Dogs\n\nBig.", "13"),
    ]
    (tmp_path / "cut.txt").write_text(WIKI[: WIKI.rindex("</doc>")])
    with pytest.raises(DataError, match="cut off"):
        list(iter_documents(tmp_path / "cut.txt"))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "one\n\ntwo", "id": 7}) + "\n\n" + json.dumps({"text": "three"}) + "\n")
    assert list(iter_documents(path)) == [Document("one\n\ntwo", "7"), Document("three", None)]
    path.write_text('{"text": "a"}\n{"body": "b"}\n')
    with pytest.raises(DataError, match="line 2"):
        list(iter_documents(path))
    path.write_text('{"text": "a \\ud800"}\n')
    with pytest.raises(DataError, match="half of a character pair"):
        list(iter_documents(path))
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(DataError, match="line 1"):
        list(iter_documents(path))
    path.write_text('{"body": "b"}\n')
    assert [d.text for d in iter_documents(path, field="body")] == ["b"]


def test_json_lines_are_known_by_their_beginning_too(tmp_path: Path) -> None:
    """WikiExtractor --json calls its files wiki_00."""
    lines = [json.dumps({"id": str(i), "url": "u", "title": "T", "text": f"Text {i}."}) for i in (4, 5)]
    path = tmp_path / "wiki_00"
    path.write_text("\n".join(lines) + "\n")
    assert list(iter_documents(path)) == [Document("Text 4.", "4"), Document("Text 5.", "5")]
    path.write_text('{"body": "no such field"}\n{a line of prose}\n')
    assert [d.text for d in iter_documents(path)] == ['{"body": "no such field"}', "{a line of prose}"]


def test_members_of_a_tar_that_carry_ids_are_not_one_document_each(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, text in (("AA/wiki_00", WIKI), ("b.jsonl", '{"text": "One."}\n{"text": "Two.", "id": 9}\n')):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    found = list(iter_documents(tmp_path / "a.tar"))
    assert [d.id for d in found] == ["12", "13", "b.jsonl#0", "9"]
    assert [d.text for d in found][1:] == ["Dogs\n\nBig.", "One.", "Two."]


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    """As by `pmlm evaluate <(…)`: it has no place to tell."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("One.\n\nTwo.\n",))
    writer.start()
    assert [d.text for d in iter_documents(pipe)] == ["One.", "Two."]
    writer.join()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz", "a.tar", "a.tar.xz"])
def test_the_meter_comes_to_the_size_of_the_file(tmp_path: Path, name: str) -> None:
    raw = "".join(f"Line {i * i}.\n" for i in range(5000)).encode()
    path = tmp_path / name
    if "tar" in name:
        with tarfile.open(path, "w:xz" if name.endswith("xz") else "w") as archive:
            for i in range(3):
                info = tarfile.TarInfo(str(i))
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
    else:
        path.write_bytes(lzma.compress(raw) if name.endswith("xz") else raw)
    heard: list[int] = []
    assert len(list(iter_documents(path, meter=heard.append))) == (3 if "tar" in name else 5000)
    assert heard == sorted(heard)
    assert heard[-1] == path.stat().st_size


@pytest.mark.parametrize("mode", ["w", "w:xz"])
def test_tar_members_are_documents(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("b.tar" if mode == "w" else "b.tar.xz")
    with tarfile.open(path, mode) as archive:
        for name, text in (("x/one.txt", "First.\n\nStill first."), ("two.md", "Second."), ("empty.txt", " ")):
            raw = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    assert list(iter_documents(path)) == [
        Document("First.\n\nStill first.", "x/one.txt"),
        Document("Second.", "two.md"),
    ]
    assert [d.text for d in iter_documents(path, "blocks")] == ["First.", "Still first.", "Second."]
    raw = path.read_bytes() if mode == "w" else lzma.decompress(path.read_bytes())
    for damaged in (raw[:1024], raw[:1024] + b"x" + raw[1025:]):  # where the second member begins
        path.write_bytes(damaged if mode == "w" else lzma.compress(damaged))
        with pytest.raises(DataError, match="damaged, or cut off, after 1 members"):
            list(iter_documents(path))
    (tmp_path / "bad.tar").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot unpack"):
        list(iter_documents(tmp_path / "bad.tar"))


def test_wikitext_articles_start_at_their_titles(tmp_path: Path) -> None:
    path = tmp_path / "wiki.tokens"
    path.write_text(" \n = One = \n \n Text . \n \n = = Part = = \n \n More . \n \n = Two = \n \n End . \n")
    texts = [d.text for d in iter_documents(path)]
    assert len(texts) == 2
    assert texts[0].startswith("= One =")
    assert "= = Part = =" in texts[0]


def test_real_files_are_recognised(shared_data: Path) -> None:
    wiki = next(iter_documents(shared_data / "wikipedia-en-2015-wikiextractor" / "wiki_AA.txt.xz"))
    assert wiki.id == "12"
    assert wiki.text.startswith("Anarchism")
    titles = [d.text[:20] for d in iter_documents(shared_data / "wikitext-2" / "wiki.valid.tokens.xz")]
    assert len(titles) == 60
    book = next(iter_documents(shared_data / "books-eltec-eng" / "eltec_eng_text.tar.xz"))
    assert len(book.text) > 50_000
    assert sum(1 for _ in iter_documents(shared_data / "tinystories-sample" / "tinystories_heldout.txt.xz")) == 1559
