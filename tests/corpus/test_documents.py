"""Files as documents, and documents as framed rows."""

import lzma
from pathlib import Path

import pytest

from conftest import STORIES
from pmlm.corpus.documents import read_documents
from pmlm.corpus.framing import frame, row_batch, windows
from pmlm.errors import DataError
from pmlm.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(STORIES, vocab_size=400)


@pytest.mark.parametrize(
    ("text", "split", "expected"),
    [
        ("a\nb\n\nc\n", "auto", ["a\nb", "c"]),
        ("a\nb\n", "auto", ["a", "b"]),
        ("a\n\nb<|endoftext|>c", "auto", ["a\n\nb", "c"]),
        ("a\n\nb", "whole", ["a\n\nb"]),
        ("a\n \nb", "lines", ["a", "b"]),
    ],
)
def test_documents_are_found(tmp_path: Path, text: str, split: str, expected: list[str]) -> None:
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "t.txt.xz").write_bytes(lzma.compress(text.encode()))
    assert read_documents(tmp_path / "t.txt", split) == expected  # type: ignore[arg-type]
    assert read_documents(tmp_path / "t.txt.xz", split) == expected  # type: ignore[arg-type]


def test_unreadable_files_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"abc \xff\xfe")
    (tmp_path / "bad.xz").write_bytes(b"no xz")
    (tmp_path / "empty.txt").write_text(" \n\n")
    for name, says in (
        ("bad.txt", "byte 4"),
        ("bad.xz", "cannot unpack"),
        ("empty.txt", "no text"),
        ("none.txt", "cannot read"),
    ):
        with pytest.raises(DataError, match=says):
            read_documents(tmp_path / name)


@pytest.mark.parametrize("context", [3, 4, 7, 16, 500])
def test_windows_hold_every_token_and_byte_once_and_mark_true_edges_alone(context: int) -> None:
    for text in STORIES:
        rows = windows(text, TOKENIZER, context)
        content = [i for row in rows for i, flag in zip(row.ids, row.maskable, strict=True) if flag]
        assert content == TOKENIZER.encode(text)
        assert sum(row.num_bytes for row in rows) == len(text.encode())
        assert all(len(row.ids) <= context for row in rows)
        assert [row.ids[0] == TOKENIZER.start_id for row in rows] == [i == 0 for i in range(len(rows))]
        assert not any(row.ids[-1] == TOKENIZER.end_id for row in rows[:-1])
        assert rows[-1].ids[-1] == TOKENIZER.end_id


def test_frames_and_padding() -> None:
    rows = [frame([7, 8], TOKENIZER), frame([9], TOKENIZER, hidden=[False], at_end=False)]
    batch = row_batch(rows, TOKENIZER)
    assert batch.ids_BL.tolist() == [[TOKENIZER.start_id, 7, 8, TOKENIZER.end_id], [TOKENIZER.start_id, 9, 0, 0]]
    assert batch.maskable_BL.tolist() == [[False, True, True, False], [False] * 4]
    assert batch.group_BL.tolist() == [[0] * 4, [0, 0, -1, -1]]
