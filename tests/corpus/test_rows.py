"""The row stream: every token once per epoch, exact positions, framing, packing."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import STORIES
from fakes import tiny_config
from pmlm.batch import Batch
from pmlm.corpus.prepare import PrepareSettings, prepare
from pmlm.corpus.rows import MAX_TEXTS, RowRef, RowSettings, RowStream, heldout_rows
from pmlm.corpus.shards import Corpus, open_corpus
from pmlm.objectives import Mixture
from pmlm.tokenizer import train_tokenizer, wordpiece_from_vocab
from pmlm.training.distributed import Ranks
from pmlm.training.job import Pretraining

TOKENIZER = train_tokenizer(STORIES, vocab_size=400)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("rows")
    texts = [" ".join(STORIES[(i + k) % 5] for k in range(1 + i % 4)) + f" The end of {i}." for i in range(120)]
    (folder / "s.txt").write_text("\n\n".join(texts))
    prepare([folder / "s.txt"], folder / "c", TOKENIZER, PrepareSettings(heldout=0.1, part_tokens=1500))
    return open_corpus(folder / "c")


def epoch(stream: RowStream, step: int = 7) -> list[RowRef]:
    rows: list[RowRef] = []
    while stream.state.epoch == 0:
        rows += stream.take(step)
    return rows


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("short_share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("length", [16, 48, 128])
def test_every_token_of_an_epoch_is_in_exactly_one_row(
    corpus: Corpus, packing: str, short_share: float, length: int
) -> None:
    settings = RowSettings(length=length, short_share=short_share, packing=packing)  # type: ignore[arg-type]
    stream = RowStream(corpus, settings, seed=1)
    seen = [np.zeros(shard.tokens, dtype=int) for shard in stream.shards]
    while stream.state.epoch == 0:
        for row in stream.take(1):
            assert sum(piece.slots for piece in row) <= length
            assert 1 <= len(row) <= (MAX_TEXTS if packing == "packed" else 1)
            for piece in row:
                seen[piece.shard][piece.start : piece.stop] += 1
    assert all((counts == 1).all() for counts in seen)


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_train_on_each_row_of_the_stream_once_across_restarts(corpus: Corpus, world: int) -> None:
    """The stream has every token of an epoch once, by the test above; the ranks deal its rows out among them."""
    settings = RowSettings(length=48)
    config = tiny_config(vocab_size=corpus.tokenizer.vocab_size, mask_id=corpus.tokenizer.mask_id, max_length=48)
    built: list[RowRef] = []

    class Watched(RowStream):
        def build(self, refs: list[RowRef]) -> Batch:
            built.extend(refs)
            return super().build(refs)

    def job() -> Pretraining:
        stream = Watched(corpus, settings, seed=1)
        return Pretraining(
            stream, Mixture(), config, seed=1, batch_rows=7, micro_rows=2, num_steps=99, device=torch.device("cpu")
        )

    plain, jobs, step = RowStream(corpus, settings, seed=1), [job() for _ in range(world)], 0
    while plain.state.epoch < 2:
        if step % 5 == 4:  # all are killed and go on from what was saved
            states = [json.loads(json.dumps(j.state_dict())) for j in jobs]
            jobs = [job() for _ in range(world)]
            for j, state in zip(jobs, states, strict=True):
                j.load_state_dict(state)
        built.clear()
        for rank, j in enumerate(jobs):
            j.tasks(step, Ranks(rank, world, rank))
        assert built == plain.take(7)
        step += 1
    assert step > 10


def test_a_saved_position_goes_on_exactly_there(corpus: Corpus) -> None:
    settings = RowSettings(length=32, block_shards=2)
    whole = RowStream(corpus, settings, seed=1)
    rows = [whole.take(5) for _ in range(60)]
    for stop in (0, 1, 17, 40):
        first = RowStream(corpus, settings, seed=1)
        for _ in range(stop):
            first.take(5)
        second = RowStream(corpus, settings, seed=1)
        second.load_state_dict(first.state_dict())
        assert [second.take(5) for _ in range(stop, 60)] == rows[stop:]


def test_epochs_and_seeds_differ(corpus: Corpus) -> None:
    settings = RowSettings(length=48)
    stream = RowStream(corpus, settings, seed=1)
    first = epoch(stream, 1)
    second = stream.take(len(first))
    assert first != second
    assert epoch(RowStream(corpus, settings, seed=2), 1) != first
    assert epoch(RowStream(corpus, settings, seed=1), 1) == first


def test_markers_stand_at_true_edges_alone_and_are_given(corpus: Corpus) -> None:
    stream = RowStream(corpus, RowSettings(length=40), seed=1)
    starts = [set(corpus.read(shard)[1].tolist()) for shard in stream.shards]
    rows = stream.take(60)
    batch = stream.build(rows)
    assert batch.ids_BL.shape == (60, 40)
    for b, row in enumerate(rows):
        for number, piece in enumerate(row):
            slots = (batch.group_BL[b] == number).nonzero()[:, 0]
            ids, free = batch.ids_BL[b, slots], batch.maskable_BL[b, slots]
            assert len(slots) == piece.slots
            assert (ids[0] == TOKENIZER.start_id) == (piece.start in starts[piece.shard]) == bool(~free[0])
            assert (ids[-1] == TOKENIZER.end_id) == piece.at_end
            assert piece.at_end == (piece.stop in starts[piece.shard])
            content = corpus.read(stream.shards[piece.shard])[0][piece.start : piece.stop]
            assert ids[free].tolist() == content.tolist()
    assert (batch.ids_BL[batch.group_BL < 0] == TOKENIZER.pad_id).all()
    assert torch.equal(batch.starts_word_BL, torch.tensor(TOKENIZER.starts_word)[batch.ids_BL])  # type: ignore[arg-type]


def test_short_pieces_end_at_sentences_and_have_many_lengths(corpus: Corpus) -> None:
    stream = RowStream(corpus, RowSettings(length=64, short_share=1.0), seed=1)
    pieces = [piece for row in epoch(stream) for piece in row]
    ends = set(TOKENIZER.sentence_end_ids)
    last = [int(corpus.read(stream.shards[p.shard])[0][p.stop - 1]) in ends for p in pieces if not p.at_end]
    assert sum(last) / len(last) > 0.6  # a sentence longer than the drawn length is cut
    assert len({p.slots for p in pieces}) > 20


def test_packing_wastes_little(corpus: Corpus) -> None:
    stream = RowStream(corpus, RowSettings(length=64), seed=1)
    batch = stream.build(epoch(stream))
    assert (batch.group_BL >= 0).double().mean() > 0.96


@pytest.mark.parametrize("length", [8, 16, 64])
def test_bytes_of_held_out_windows_add_up_to_the_text_whatever_their_length(tmp_path: Path, length: int) -> None:
    """Of BERT's pieces, which do not say what stood between them."""
    words = sorted({word for text in STORIES for word in re.findall(r"\w+|[^\w\s]", text)})
    tokenizer = wordpiece_from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words[: len(words) // 2]])
    (tmp_path / "s.txt").write_text("\n\n".join(STORIES * 8))
    manifest = prepare([tmp_path / "s.txt"], tmp_path / "c", tokenizer, PrepareSettings(heldout=0.4))
    corpus = open_corpus(tmp_path / "c")
    rows = heldout_rows(corpus, length, 10**6)
    true = sum(shard["num_bytes"] for shard in manifest["shards"] if shard["split"] == "heldout")
    assert sum(row.num_bytes for row in rows) == pytest.approx(true, rel=0.005)


def test_heldout_rows_are_framed_windows_with_their_bytes(corpus: Corpus) -> None:
    rows = heldout_rows(corpus, 24, limit=1000)
    assert sum(row.num_tokens for row in rows) == corpus.tokens("heldout")
    assert sum(row.num_bytes for row in rows) == sum(s.num_bytes for s in corpus.of("heldout"))
    assert max(len(row.ids) for row in rows) <= 24
    assert heldout_rows(corpus, 24, limit=5) == heldout_rows(corpus, 24, limit=5)
    assert len(heldout_rows(corpus, 24, limit=5)) == 5
