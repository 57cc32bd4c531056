"""Text <-> ids, for two kinds of vocabulary.

*reversible*: byte-level subwords with the spaces kept in the pieces. Any text comes back letter for letter, and a
piece that starts a word is known by its space. A text is encoded as if a space stood before it, so that its first
word is spelt with the same pieces as any other. The default of our own models.

*wordpiece*: BERT's. Spacing is lost in the ids and restored as a reader expects.

Special tokens are known by role, never by a literal in the text: a text that says "[MASK]" is just text. GPT-2's
vocabulary has one special token, which plays every role.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from pmlm.detokenize import join_words
from pmlm.errors import RunError, TokenizerError

T = TypeVar("T")
Kind = Literal["reversible", "wordpiece"]
FILE = "tokenizer.json"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
_MOST_PIECES = 1_000_000
_WORDS = r"'(?:s|t|re|ve|m|ll|d)(?!\p{L})| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Piece:
    """One token of an encoded text, with the characters of the text that it stands for."""

    id: int
    start: int
    end: int


class Tokenizer:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # "[MASK]" in a text is text
        self._backend.no_truncation()  # some files carry the lengths of the task that they were last used for
        self._backend.no_padding()
        self.kind: Kind = "wordpiece" if isinstance(backend.model, models.WordPiece) else "reversible"
        self.special_names: tuple[str, ...] = SPECIALS
        if self.kind == "reversible" and _has(backend, END_OF_TEXT) and not _has(backend, "[MASK]"):
            self.special_names = (END_OF_TEXT,) * len(SPECIALS)
        ids = {name: i for name in self.special_names if (i := backend.token_to_id(name)) is not None}
        if missing := [name for name in self.special_names if name not in ids]:
            raise TokenizerError(f"the vocabulary lacks {', '.join(missing)}")
        self.pad_id, self.unk_id, self.start_id, self.end_id, self.mask_id = (ids[name] for name in self.special_names)

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size())

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Never generated."""
        return tuple(dict.fromkeys((self.pad_id, self.unk_id, self.start_id, self.end_id, self.mask_id)))

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Never predicted: the specials, but for [UNK] where a text can contain it."""
        return tuple(i for i in self.special_ids if i != self.unk_id or self.kind == "reversible")

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the pieces and their ids: two tokenizers that agree in it mean the same by an id."""
        vocabulary = sorted(self._backend.get_vocab().items(), key=lambda item: item[1])
        return hashlib.sha256(json.dumps([self.kind, vocabulary]).encode()).hexdigest()

    @functools.cached_property
    def starts_word(self) -> list[bool]:
        """For each id, whether the piece begins a new word: with a space, or (wordpiece) without `##`."""
        if self.kind == "wordpiece":
            return [not self._name(i).startswith("##") for i in range(self.vocab_size)]
        return [self._bytes[i].startswith(b" ") for i in range(self.vocab_size)]

    @functools.cached_property
    def running_bytes(self) -> list[bytes]:
        """Each piece as it stands in running text, its leading space included; nothing for the specials."""
        if self.kind == "reversible":
            return self._bytes
        special = set(self.special_ids)
        lead = {True: b" ", False: b""}
        return [b"" if i in special else lead[self.starts_word[i]] + raw for i, raw in enumerate(self._bytes)]

    @functools.cached_property
    def byte_ids(self) -> tuple[int, ...]:
        """Pieces that are no text by themselves, only bytes of a rare character."""
        return tuple(i for i in range(self.vocab_size) if i not in self.special_ids and not _is_text(self._bytes[i]))

    def encode(self, text: str) -> list[int]:
        """The ids of a whole text, without markers."""
        return [piece.id for piece in self.pieces(text)]

    def pieces(self, text: str) -> list[Piece]:
        """The tokens of a whole text and where they stand in it."""
        if self.kind == "wordpiece" or not text:
            return self.inner_pieces(text)
        return [Piece(p.id, max(p.start - 1, 0), p.end - 1) for p in self.inner_pieces(" " + text)]

    def inner_pieces(self, text: str) -> list[Piece]:
        """The tokens of a part of a text, exactly as written: no space is imagined before it."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return [Piece(i, start, end) for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def encode_inner(self, text: str, *, continues: bool = False) -> list[int]:
        """The ids of a part of a text; `continues`: it goes on the word before it (wordpiece writes `##` then)."""
        if self.kind == "wordpiece" and continues and text[:1].isalnum():
            text = self._backend.normalizer.normalize_str(text) if self._backend.normalizer is not None else text
            word = self._backend.pre_tokenizer.pre_tokenize_str(text)[0][0]
            return self._continuation(word) + self.encode_inner(text[len(word) :])
        return [piece.id for piece in self.inner_pieces(text)]

    def _continuation(self, word: str) -> list[int]:
        """The longest `##` pieces first, as WordPiece does; [UNK] where there are none."""
        ids: list[int] = []
        while word:
            for end in range(len(word), 0, -1):
                found = self._backend.token_to_id("##" + word[:end])
                if found is not None:
                    ids.append(int(found))
                    word = word[end:]
                    break
            else:
                return [self.unk_id]
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, several texts at once on several threads."""
        lead = " " if self.kind == "reversible" else ""
        encodings = self._backend.encode_batch_fast(
            [lead + text if text else "" for text in texts], add_special_tokens=False
        )
        return [list(encoding.ids) for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole row of ids; special tokens are left out."""
        text = self.decode_inner(ids)
        return text[1:] if self.kind == "reversible" and text.startswith(" ") else text

    def decode_inner(self, ids: Sequence[int]) -> str:
        """The text of a part of a row, with the space that its first piece may carry."""
        plain = [i for i in ids if i not in self.special_ids or (i == self.unk_id and self.kind == "wordpiece")]
        if self.kind == "wordpiece":
            return join_words(self._words(plain))
        return b"".join(self._bytes[i] for i in plain).decode("utf-8", errors="replace")

    def num_bytes(self, ids: Sequence[int]) -> int:
        """UTF-8 bytes of what the ids stand for, the space that a first piece may carry included."""
        if self.kind == "reversible":
            return sum(len(self._bytes[i]) for i in ids)
        return len(self.decode_inner(ids).encode())

    @functools.cached_property
    def sentence_end_ids(self) -> tuple[int, ...]:
        """Pieces that end in a mark that closes a sentence."""
        return tuple(
            i for i in range(self.vocab_size) if self._bytes[i].endswith((b".", b"!", b"?", b'."', b'!"', b'?"'))
        )

    def show(self, token_id: int) -> str:
        """A token for a person: its text, or <0x..> for bytes of a character."""
        if token_id in self.special_ids or self.kind == "wordpiece":
            return self._name(token_id)
        raw = self._bytes[token_id]
        return raw.decode() if _is_text(raw) else "".join(f"<0x{byte:02X}>" for byte in raw)

    def to_json(self) -> str:
        """The whole pipeline as `tokenizers` writes it."""
        return str(self._backend.to_str())

    def names(self) -> list[str]:
        """The pieces by id, as the vocabulary spells them."""
        return [self._name(i) for i in range(self.vocab_size)]

    def save(self, folder: Path) -> None:
        part = folder / f".{FILE}.{os.getpid()}"
        try:
            self._backend.save(str(part))
            part.replace(folder / FILE)
        except Exception as error:  # the library raises no kind of its own
            raise RunError(f"cannot write {folder / FILE}: {error}") from None

    def _name(self, token_id: int) -> str:
        return str(self._backend.id_to_token(token_id))

    @functools.cached_property
    def _bytes(self) -> list[bytes]:
        """Each piece as bytes; nothing for the specials."""
        if self.kind == "wordpiece":
            return [self._name(i).removeprefix("##").encode() for i in range(self.vocab_size)]
        byte_of = _byte_letters()
        special = set(self.special_ids)
        return [
            b"" if i in special else bytes(byte_of[letter] for letter in self._name(i)) for i in range(self.vocab_size)
        ]

    def _words(self, ids: Sequence[int]) -> list[str]:
        words: list[str] = []
        for i in ids:
            name = self._name(i)
            if name.startswith("##") and words:
                words[-1] += name[2:]
            else:
                words.append(name.removeprefix("##"))
        return words


def load_tokenizer(folder: Path) -> Tokenizer:
    """From a folder with tokenizer.json, with BERT's vocab.txt, or with GPT-2's vocab.json and merges.txt."""
    path = folder / FILE
    if path.is_file():
        return Tokenizer(_without_offsets_trimmed(_attempt(path, lambda: Backend.from_file(str(path)))))
    if (path := folder / "vocab.txt").is_file():
        lines = _attempt(path, lambda: path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
        return wordpiece_from_vocab(lines, **_bert_options(folder, lines))
    if (path := folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        model = _attempt(path, lambda: models.BPE.from_file(str(path), str(folder / "merges.txt")))
        return Tokenizer(_byte_level(Backend(model)))
    raise TokenizerError(f"no tokenizer in {folder}: neither {FILE} nor vocab.txt nor vocab.json with merges.txt")


def _attempt(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except Exception as error:  # the library raises no kind of its own
        raise TokenizerError(f"cannot read {path}: {str(error).splitlines()[0]}") from None


def _bert_options(folder: Path, lines: Sequence[str]) -> dict[str, Any]:
    """What tokenizer_config.json beside a vocab.txt says; without it, pieces with capitals mean that case is kept."""
    path = folder / "tokenizer_config.json"
    said = _attempt(path, lambda: json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    if not isinstance(said, dict):
        raise TokenizerError(f"{path} is no section of settings")
    has_capitals = any(line != line.lower() for line in lines if line not in SPECIALS)
    return {
        "lowercase": bool(said.get("do_lower_case", not has_capitals)),
        "strip_accents": said.get("strip_accents"),
        "split_chinese": bool(said.get("tokenize_chinese_chars", True)),
    }


def wordpiece_from_vocab(
    lines: Sequence[str], *, lowercase: bool = False, strip_accents: bool | None = None, split_chinese: bool = True
) -> Tokenizer:
    """BERT's tokenizer from the lines of its vocabulary file. Accents go with the capitals, unless it is said."""
    vocabulary = {line.rstrip("\n"): i for i, line in enumerate(lines)}
    if len(vocabulary) != len(lines):
        raise TokenizerError(f"the vocabulary names {len(lines) - len(vocabulary)} pieces more than once")
    if missing := [name for name in SPECIALS if name not in vocabulary]:
        raise TokenizerError(f"the vocabulary lacks {', '.join(missing)}")
    model = models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    strip_accents = lowercase if strip_accents is None else strip_accents
    return Tokenizer(_bert_pipeline(Backend(model), lowercase, strip_accents, split_chinese))


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, kind: Kind = "reversible") -> Tokenizer:
    """Learn a vocabulary from texts; the same texts in the same order give the same vocabulary."""
    if not len(SPECIALS) < vocab_size <= _MOST_PIECES:
        raise TokenizerError(f"a vocabulary has from {len(SPECIALS) + 1} to {_MOST_PIECES:,} pieces, got {vocab_size}")
    if kind == "wordpiece":
        backend = _bert_pipeline(Backend(models.WordPiece(unk_token="[UNK]")))
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size, special_tokens=list(SPECIALS), show_progress=False, continuing_subword_prefix="##"
        )
        backend.train_from_iterator(texts, trainer)
        return Tokenizer(backend)
    smallest = len(SPECIALS) + 256
    if vocab_size < smallest:
        raise TokenizerError(f"a reversible vocabulary has at least {smallest} pieces (all bytes), got {vocab_size}")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    bpe_trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((" " + text for text in texts), bpe_trainer)
    return Tokenizer(backend)


def train_on_sample(
    texts: Iterable[str], *, vocab_size: int, kind: Kind = "reversible", max_chars: int = 50_000_000
) -> Tokenizer:
    """Learn from texts spread evenly over a corpus: every second, fourth, eighth … once enough have been seen."""
    kept: list[str] = []
    size, stride = 0, 1
    for number, text in enumerate(texts):
        if number % stride:
            continue
        kept.append(text)
        size += len(text)
        if size > max_chars:
            kept, stride = kept[::2], stride * 2
            size = sum(map(len, kept))
    return train_tokenizer(kept, vocab_size=vocab_size, kind=kind)


def _has(backend: Backend, name: str) -> bool:
    return backend.token_to_id(name) is not None


def _byte_level(backend: Backend) -> Backend:
    """GPT-2's pipeline."""
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if _has(backend, END_OF_TEXT):
        backend.add_special_tokens([END_OF_TEXT])
    return backend


def _without_offsets_trimmed(backend: Backend) -> Backend:
    """GPT-2's files may drop the space from a piece's place in the text, or put one before every part of it."""
    if isinstance(backend.post_processor, processors.ByteLevel):
        backend.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel) and backend.pre_tokenizer.add_prefix_space:
        backend.pre_tokenizer.add_prefix_space = False
    return backend


def _bert_pipeline(
    backend: Backend, lowercase: bool = False, strip_accents: bool = False, split_chinese: bool = True
) -> Backend:
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=split_chinese
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(SPECIALS))
    return backend


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _byte_letters() -> dict[str, int]:
    """How byte-level vocabularies write each byte: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
