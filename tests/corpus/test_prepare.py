"""Preparing a corpus: deterministic, restartable, split by document, checked."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import STORIES
from pmlm.corpus import prepare as module
from pmlm.corpus.documents import Document
from pmlm.corpus.prepare import PrepareSettings, grams, overlap, prepare, read_ids, split_of
from pmlm.corpus.shards import open_corpus
from pmlm.errors import ConfigError, DataError, RunError
from pmlm.tokenizer import train_tokenizer, wordpiece_from_vocab

TOKENIZER = train_tokenizer(STORIES, vocab_size=400)
TEXTS = [f"Story {i}. " + STORIES[i % 5] for i in range(200)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("\n\n".join([*TEXTS, "tiny"]))
    return path


def settings(**changes: object) -> PrepareSettings:
    return PrepareSettings(**({"heldout": 0.2, "part_tokens": 1000} | changes))  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_every_document_is_on_one_side_and_comes_back(source: Path, tmp_path: Path) -> None:
    manifest = prepare([source], tmp_path / "c", TOKENIZER, settings())
    corpus = open_corpus(tmp_path / "c")
    found: dict[str, list[str]] = {"train": [], "heldout": []}
    for shard in corpus.shards:
        ids, starts = corpus.read(shard)
        assert len(ids) == shard.tokens == starts[-1]
        found[shard.split] += [TOKENIZER.decode(ids[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    assert sorted(found["train"] + found["heldout"]) == sorted(TEXTS)
    assert all(split_of(text, 0.2) == side for side, texts in found.items() for text in texts)
    assert 20 < len(found["heldout"]) < 60
    assert manifest["dropped"] == {"short": 1}
    assert manifest["documents_read"] == 201
    assert len(corpus.of("train")) > 3
    assert sum(s.num_bytes for s in corpus.shards) == sum(len(t.encode()) for t in TEXTS)


def test_progress_counts_up_to_all_of_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 20)
    heard: list[tuple[int, int, float]] = []
    other = tmp_path / "more.txt"
    other.write_text("A text that stands in a file of its own, and is long enough.\n")
    manifest = prepare([source, other], tmp_path / "c", TOKENIZER, settings(), progress=lambda *now: heard.append(now))
    assert sum(documents for documents, _, _ in heard) == manifest["documents_read"] == 202
    assert sum(tokens for _, tokens, _ in heard) == sum(shard["tokens"] for shard in manifest["shards"])
    shares = [share for _, _, share in heard]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_process_that_is_killed_ends_the_work_with_one_line(source: Path, tmp_path: Path) -> None:
    class Deadly(PrepareSettings):
        """Read by the process that starts: it ends there as if killed."""

        def __reduce__(self) -> tuple[Any, ...]:
            return os._exit, (9,)

    deadly = Deadly(heldout=0.2, part_tokens=1000)
    with pytest.raises(RunError, match="a process that encodes text has died"):
        prepare([source], tmp_path / "c", TOKENIZER, deadly, processes=2)
    assert prepare([source], tmp_path / "c", TOKENIZER, settings())["documents_read"] == 201


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="asks Linux's /proc whether a process lives")
def test_the_death_of_the_parent_ends_its_workers(tmp_path: Path) -> None:
    """Here the worker's parent is this process's child, which is killed."""
    code = (
        "import multiprocessing as m, time\n"
        "from pmlm.corpus.prepare import _end_with_parent\n"
        "if __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=_end_with_parent)\n"
        "    p.start(); print(p.pid, flush=True); time.sleep(600)\n"
    )
    (tmp_path / "parent.py").write_text(code)
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    for _ in range(600):
        if not is_running(worker):
            return
        time.sleep(0.1)
    pytest.fail("the worker lives on")


def is_running(process: int) -> bool:
    """Zombies of which nobody takes notice are not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("bad", [{"min_chars": -5}, {"vocab_size": 0}, {"part_tokens": 0}, {"heldout": 1.0}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        settings(**bad)


def test_processes_and_restarts_change_no_byte(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare([source], tmp_path / "one", TOKENIZER, settings())
    prepare([source], tmp_path / "two", TOKENIZER, settings(), processes=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    seen = []

    def interrupt(documents: int, tokens: int, share: float) -> None:
        seen.append(documents)
        if len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_CHUNK", 40)
    with pytest.raises(KeyboardInterrupt):
        prepare([source], tmp_path / "three", TOKENIZER, settings(), progress=interrupt)
    assert (tmp_path / "three" / "manifest.partial.json").is_file()
    with pytest.raises(DataError, match="no prepared corpus"):
        open_corpus(tmp_path / "three")
    read: list[Document] = []
    monkeypatch.setattr(
        module._Worker,
        "encode",
        (lambda real: lambda self, docs: (read.extend(docs), real(self, docs))[1])(module._Worker.encode),
    )
    prepare([source], tmp_path / "three", TOKENIZER, settings())
    assert 0 < len(read) < 201  # it went on, and did not begin again
    restarted = open_corpus(tmp_path / "three")
    straight = open_corpus(tmp_path / "one")
    for split in ("train", "heldout"):
        both = [np.concatenate([c.read(s)[0] for s in c.of(split)]) for c in (restarted, straight)]  # type: ignore[arg-type]
        assert np.array_equal(*both)


def test_a_finished_corpus_is_left_alone_and_another_recipe_is_refused(source: Path, tmp_path: Path) -> None:
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    before = files(tmp_path / "c")
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    assert files(tmp_path / "c") == before
    with pytest.raises(DataError, match="other files or settings"):
        prepare([source], tmp_path / "c", TOKENIZER, settings(heldout=0.1))


@pytest.mark.parametrize("end", ["bin", "idx"])
def test_a_damaged_shard_is_refused(source: Path, tmp_path: Path, end: str) -> None:
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    path = tmp_path / "c" / f"train-00000.{end}"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(DataError, match=f"train-00000.{end} is damaged"):
        open_corpus(tmp_path / "c")
    path.unlink()
    with pytest.raises(DataError, match="cannot read"):
        open_corpus(tmp_path / "c")
    path.write_bytes(bytes(raw))
    prepare([source], tmp_path / "c", TOKENIZER, settings())  # as the message says
    open_corpus(tmp_path / "c")


def test_a_damaged_part_of_an_unfinished_corpus_is_written_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare([source], tmp_path / "whole", TOKENIZER, settings())
    with monkeypatch.context() as patched:
        patched.setattr(module._PartWriter, "finish", lambda _self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare([source], tmp_path / "c", TOKENIZER, settings())
    path = tmp_path / "c" / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    assert files(tmp_path / "c") == files(tmp_path / "whole")


def test_other_protected_files_and_another_pipeline_are_another_recipe(source: Path, tmp_path: Path) -> None:
    words = [" ".join(f"{letter}{i}" for i in range(20)) for letter in "ab"]
    prepare([source], tmp_path / "c", TOKENIZER, settings(), protect=words[:1])
    with pytest.raises(DataError, match="other files or settings"):
        prepare([source], tmp_path / "c", TOKENIZER, settings(), protect=words[1:])  # as many runs of words
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,'", "##a"]
    cased, uncased = (wordpiece_from_vocab(names, lowercase=lower) for lower in (False, True))
    prepare([source], tmp_path / "d", cased, settings())
    with pytest.raises(DataError, match="other files or settings"):
        prepare([source], tmp_path / "d", uncased, settings())


def test_a_vocabulary_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TOKENIZER.save(tmp_path)
    before = files(tmp_path)

    def killed(_self: Path, _target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(STORIES, vocab_size=390).save(tmp_path)
    assert files(tmp_path)["tokenizer.json"] == before["tokenizer.json"]


@pytest.mark.parametrize("broken", [b"\xff\xfe", b"[]", "tokenizer", "dtype", "recipe", {"dtype": "int8"}])
def test_a_manifest_that_cannot_be_used_is_one_line(source: Path, tmp_path: Path, broken: object) -> None:
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    path = tmp_path / "c" / "manifest.json"
    document = json.loads(path.read_text())
    if isinstance(broken, bytes):
        path.write_bytes(broken)
    elif isinstance(broken, dict):
        path.write_text(json.dumps(document | broken))
    else:
        path.write_text(json.dumps({key: document[key] for key in document if key != broken}))
    with pytest.raises(DataError, match=r"cannot read .*manifest\.json"):
        open_corpus(tmp_path / "c")


def test_a_changed_tokenizer_is_refused(source: Path, tmp_path: Path) -> None:
    prepare([source], tmp_path / "c", TOKENIZER, settings())
    train_tokenizer(STORIES, vocab_size=390).save(tmp_path / "c")
    with pytest.raises(DataError, match="not the one"):
        open_corpus(tmp_path / "c")


def test_listed_and_overlapping_documents_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS[:20])))
    (tmp_path / "drop.tsv").write_text("title\twiki_id\nx\t3\ny\t4\n")
    assert read_ids(tmp_path / "drop.tsv") == ["3", "4"]
    (tmp_path / "plain.txt").write_text("5\n6\n")
    assert read_ids(tmp_path / "plain.txt") == ["5", "6"]
    manifest = prepare(
        [path], tmp_path / "c", TOKENIZER, settings(heldout=0.0), drop_ids=["3", "4"], protect=[STORIES[0]]
    )
    copies = sum(STORIES[0] in text for i, text in enumerate(TEXTS[:20]) if i not in (3, 4))
    assert manifest["dropped"] == {"listed": 2, "overlap": copies}


def test_overlap_is_a_share_of_thirteen_word_runs() -> None:
    words = [f"w{i}" for i in range(30)]
    protected = frozenset(grams(" ".join(words[:20])))
    assert len(protected) == 8
    assert overlap(" ".join(words), protected) == pytest.approx(8 / 18)
    assert overlap("too short", protected) == 0


def test_a_text_is_known_again_however_its_marks_are_spaced() -> None:
    raw = "Nero, born in 37 AD (as Lucius), was the last Julio-Claudian emperor: he died in 68, aged 30, near Rome."
    tokenised = "Nero , born in 37 AD ( as Lucius ) , was the last Julio - Claudian emperor : he died in 68 , aged 30 ,"
    assert overlap(raw, frozenset(grams(tokenised))) > 0.6
    assert overlap(raw.replace("emperor", "king").replace("born", "made"), frozenset(grams(tokenised))) == 0


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("short\n\nshort too")
    with pytest.raises(DataError, match="no document was left"):
        prepare([tmp_path / "s.txt"], tmp_path / "c", TOKENIZER, settings())
