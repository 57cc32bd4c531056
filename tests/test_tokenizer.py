"""Tokenizers: exact round trips, word starts, specials that are never taken from text, BERT's vocabulary."""

import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import STORIES
from pmlm.errors import TokenizerError
from pmlm.tokenizer import SPECIALS, Tokenizer, load_tokenizer, train_tokenizer, wordpiece_from_vocab

LEARNED = train_tokenizer(STORIES, vocab_size=400)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_comes_back_letter_for_letter(text: str) -> None:
    text = text.encode("utf-8", errors="ignore").decode()
    ids = LEARNED.encode(text)
    assert LEARNED.decode(ids) == text
    assert not set(ids) & set(LEARNED.special_ids)
    assert LEARNED.encode_many([text]) == [ids]


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_parts_are_encoded_as_written(one: str, two: str) -> None:
    one, two = (t.encode("utf-8", errors="ignore").decode() for t in (one, two))
    assert LEARNED.decode_inner(LEARNED.encode_inner(one) + LEARNED.encode_inner(two)) == one + two


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces ", "\n\nlines\n", "[MASK] is text, [CLS] too", "naïve café 東京 🦊", "5 o'clock"]
)
def test_awkward_texts_round_trip(text: str) -> None:
    assert LEARNED.decode(LEARNED.encode(text)) == text


def test_the_first_word_is_spelt_like_any_other() -> None:
    assert LEARNED.encode("Tom")[0] == LEARNED.encode("and Tom")[-1]
    starts = LEARNED.starts_word
    assert starts[LEARNED.encode("Tom")[0]]
    assert not starts[LEARNED.encode("Tom.")[-1]]


def test_pieces_cover_the_text_by_characters() -> None:
    for text in STORIES:
        pieces = LEARNED.pieces(text)
        assert pieces[0].start == 0
        assert pieces[-1].end == len(text)
        assert "".join(text[p.start : p.end] for p in pieces if LEARNED.show(p.id).isascii()) in text or "é" in text
        assert [text[p.start : p.end].strip() for p in pieces][:2] == [LEARNED.show(p.id).strip() for p in pieces][:2]


def test_bytes_of_rare_characters_are_known_as_such() -> None:
    ids = LEARNED.encode("x🦊")
    rare = [i for i in ids if i in LEARNED.byte_ids]
    assert len(rare) >= 3
    assert all(LEARNED.show(i).startswith("<0x") for i in rare)
    assert not set(LEARNED.encode("The little fox")) & set(LEARNED.byte_ids)


def test_training_is_deterministic_and_the_vocabulary_has_the_wanted_size(tmp_path: Path) -> None:
    again = train_tokenizer(STORIES, vocab_size=400)
    assert again.fingerprint == LEARNED.fingerprint
    assert LEARNED.vocab_size == 400
    assert train_tokenizer(STORIES, vocab_size=401).fingerprint != LEARNED.fingerprint
    again.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == again.fingerprint
    assert loaded.encode(STORIES[0]) == again.encode(STORIES[0])
    with pytest.raises(TokenizerError, match="at least 261"):
        train_tokenizer(STORIES, vocab_size=100)


WORDS = [*SPECIALS, "the", "The", "fox", "run", "##s", "##ning", ".", ",", "'", "s", "un", "##happy", "!"]


def test_wordpiece_is_berts() -> None:
    bert = wordpiece_from_vocab(WORDS)
    shown = [bert.show(i) for i in bert.encode("The fox runs, the [MASK] fly.")]
    assert shown == ["The", "fox", "run", "##s", ",", "the", "[UNK]", "[UNK]", "[UNK]", "[UNK]", "."]
    assert bert.decode(bert.encode("The fox runs.")) == "The fox runs."
    assert bert.starts_word[WORDS.index("fox")]
    assert not bert.starts_word[WORDS.index("##s")]
    assert bert.unk_id not in bert.forbidden_ids
    assert bert.unk_id in bert.special_ids


def test_wordpiece_continues_a_word_with_continuing_pieces() -> None:
    bert = wordpiece_from_vocab(WORDS)
    assert [bert.show(i) for i in bert.encode_inner("happy fox", continues=True)] == ["##happy", "fox"]
    assert [bert.show(i) for i in bert.encode_inner(" fox", continues=True)] == ["fox"]
    assert [bert.show(i) for i in bert.encode_inner("zz fox", continues=True)] == ["[UNK]", "fox"]


def test_a_learned_wordpiece_vocabulary_works() -> None:
    learned = train_tokenizer(STORIES, vocab_size=200, kind="wordpiece")
    assert learned.kind == "wordpiece"
    assert learned.decode(learned.encode(STORIES[1])) == STORIES[1]


def test_a_line_of_a_vocabulary_ends_at_a_new_line_alone(tmp_path: Path) -> None:
    """BERT's Chinese vocabulary has a piece that is U+2028."""
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, "\u2028", "\x85"]) + "\n", encoding="utf-8")
    assert load_tokenizer(tmp_path).vocab_size == len(WORDS) + 2


def test_broken_vocabularies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="lacks"):
        wordpiece_from_vocab(["a", "b", "[UNK]"])
    with pytest.raises(TokenizerError, match="more than once"):
        wordpiece_from_vocab([*WORDS, "the"])
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerError, match=r"vocab\.txt"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(TokenizerError, match="cannot read"):
        load_tokenizer(tmp_path)


def test_berts_real_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    raw = lzma.decompress((shared_data / "bert-cased-vocab" / "en_vocab.txt.xz").read_bytes())
    (tmp_path / "vocab.txt").write_bytes(raw)
    bert = load_tokenizer(tmp_path)
    assert bert.vocab_size == 28_996
    assert (bert.pad_id, bert.unk_id, bert.start_id, bert.end_id, bert.mask_id) == (0, 100, 101, 102, 103)
    for text in (
        *STORIES[:3],
        "It's 3.5% of $1,000 (about £700), isn't it?",
        'He said "no" and left.',
        "A well-known and/or new one.",
    ):
        assert bert.decode(bert.encode(text)) == text


def test_real_stories_round_trip(shared_data: Path) -> None:
    raw = lzma.decompress((shared_data / "tinystories-sample" / "tinystories_heldout.txt.xz").read_bytes()).decode()
    tokenizer: Tokenizer = train_tokenizer(raw[:200_000].split("<|endoftext|>"), vocab_size=2000)
    for story in raw[200_000:400_000].split("<|endoftext|>"):
        assert tokenizer.decode(tokenizer.encode(story)) == story
