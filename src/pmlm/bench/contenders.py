"""The networks that write in `pmlm bench generate`, ours and Hugging Face's, and the seconds of their steps.

Steps are timed on texts that are half written, with caches filled as they would be there.

Shapes: B rows, L slots.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmlm.batch import Batch, make_batch
from pmlm.errors import ConfigError
from pmlm.generation.decode import Allowed, Reveal, decode
from pmlm.generation.parallel import Parallel
from pmlm.generation.sampling import Sampling
from pmlm.generation.speculative import decode_speculative
from pmlm.generation.steppers import CausalCached, Columns, OrderCached, Recompute, StaleCached, State, Stepper
from pmlm.model import Inputs, LanguageModel, ModelConfig, Slots, Visibility, build_model
from pmlm.orders import Order
from pmlm.runtime import generator
from pmlm.visibility import NEVER

_MARKER, _MASK, _FIRST = 2, 4, 5
"""Ids: the start marker, the mask, the first that is no special token."""


@dataclass(frozen=True, kw_only=True)
class Size:
    name: str
    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    few_rows: int
    """Rows that stand for a batch where each step recomputes everything."""
    readings: int = 1
    """Of time against length in each round: several where one is over in a moment and uncertain."""


LAPTOP = Size(name="laptop", num_layers=6, width=256, num_heads=4, vocab_size=8192, few_rows=8, readings=4)
BERT_BASE = Size(name="BERT-base", num_layers=12, width=768, num_heads=12, vocab_size=30522, few_rows=2)
TINY = Size(name="tiny", num_layers=2, width=32, num_heads=2, vocab_size=128, few_rows=2)


Seconds = Callable[[int, int, int], float]
"""(rows, known tokens, steps) to the seconds of one step; with all steps of a sequence, of its beginning too."""


class Models:
    """The contenders' networks at one size; each is made when it is first asked for."""

    def __init__(self, size: Size, most: int, seed: int) -> None:
        self.size, self.most, self.seed = size, most, seed
        self._ours: dict[Visibility, LanguageModel] = {}
        self._theirs: Any = None

    def ours(self, visibility: Visibility) -> LanguageModel:
        if visibility not in self._ours:
            size, is_gpt = self.size, visibility == "causal"
            config = ModelConfig(
                vocab_size=size.vocab_size,
                num_layers=size.num_layers,
                width=size.width,
                num_heads=size.num_heads,
                ff_width=4 * size.width,
                max_length=self.most + 2,
                norm="pre" if is_gpt else "post",
                activation="gelu-tanh" if is_gpt else "gelu",
                head="tied" if is_gpt else "bert",
                dropout=0.0,
                mask_id=_MASK,
                forbidden_ids=tuple(range(_FIRST)),
                visibilities=(visibility,),
            )
            self._ours[visibility] = build_model(config, generator(self.seed)).eval()
        return self._ours[visibility]

    def cache_bytes(self, columns: int) -> int:
        return 2 * 4 * self.size.num_layers * self.size.width * columns

    def hugging_face(self, length: int) -> Seconds:
        """`generate` of a GPT-2 that is built from a configuration, with its cache on."""
        transformers = transformers_library()
        if self._theirs is None:
            transformers.logging.set_verbosity_error()
            size = self.size
            config = transformers.GPT2Config(
                vocab_size=size.vocab_size, n_positions=self.most + 2, n_embd=size.width, n_layer=size.num_layers,
                n_head=size.num_heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=_MARKER,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            self._theirs = transformers.GPT2LMHeadModel(config).eval()
        model, heads = self._theirs, self.size.num_heads

        def seconds(rows: int, known: int, steps: int) -> float:
            cache = transformers.DynamicCache(config=model.config)
            shape = (rows, heads, known, self.size.width // heads)
            for layer in range(self.size.num_layers if known else 0):
                cache.update(torch.zeros(shape), torch.zeros(shape), layer)
            stamps: list[float] = []

            def stamp(ids: Tensor, scores: Tensor) -> Tensor:
                del ids
                stamps.append(time.perf_counter())
                return scores

            whole = known == 0 and steps == length
            ids = torch.full((rows, known + 1), _MARKER)
            begin = time.perf_counter()
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), past_key_values=cache, do_sample=True, temperature=1.0,
                top_k=0, top_p=1.0, max_new_tokens=steps + (not whole), use_cache=True, logits_processor=[stamp],
            )  # fmt: skip
            end = time.perf_counter()
            assert out.shape[1] == known + 1 + steps + (not whole)
            return (end - begin if whole else stamps[-1] - stamps[0]) / steps

        return seconds

    def gpt(self, length: int) -> Seconds:
        model = self.ours("causal")

        def make(batch: Batch) -> Stepper:
            model.pack(batch.num_rows, batch.num_rows)
            stepper = CausalCached(model, batch)
            stepper.done_B += int((~batch.maskable_BL[0]).sum()) - 2  # as if all but the markers had been read
            return stepper

        return self._seconds(length, make, Order("l2r"))

    def naive(self, length: int) -> Seconds:
        """Algorithm 1 as it is written: all logits of the whole canvas, for one token."""
        return self._seconds(length, lambda _: Naive(self.ours("bidirectional")), Order("random"))

    def exact(self, length: int, parallel: Parallel | None = None) -> Seconds:
        model = self.ours("bidirectional")
        return self._seconds(length, lambda _: Recompute(model, "bidirectional"), Order("random"), parallel)

    def stale(self, length: int, refresh: int, parallel: Parallel | None) -> Seconds:
        model = self.ours("bidirectional")
        way = self._seconds(length, lambda batch: StaleCached(model, batch, refresh), Order("random"), parallel, skip=0)

        def seconds(rows: int, known: int, steps: int) -> float:
            return way(rows, min(known, length - steps * int(parallel.value if parallel else 1)), steps)

        return seconds

    def order_causal(self, length: int) -> Seconds:
        return self._seconds(length, lambda batch: self._reader(batch, 1), Order("random"))

    def _reader(self, batch: Batch, queries: int) -> OrderCached:
        """A cache that has read all that is known."""
        model = self.ours("order-causal")
        model.pack(2 * batch.num_rows, batch.num_rows)
        reader = OrderCached(model, batch, num_queries=queries)
        pretend_read(reader, ~batch.maskable_BL)
        return reader

    def speculative(self, length: int, drafts: int, passes_per_token: float) -> Seconds:
        def turns(batch: Batch) -> Iterator[list[Reveal]]:
            rows = batch.num_rows
            reader = Scripted(self._reader(batch, 2 * drafts), kept_share(drafts, passes_per_token), self.seed)
            rngs = [generator(self.seed, "bench", b) for b in range(rows)]
            return decode_speculative(
                reader, batch, self._allowed(batch), [Order("random")] * rows, Sampling(), rngs, [()] * rows, drafts
            )

        def seconds(rows: int, known: int, steps: int) -> float:
            """Of a pass."""
            batch = half_written(rows, min(known, length - 2 * drafts), length, self.seed)
            whole = known == 0 and steps == length
            return _timed(turns(batch), steps if not whole else 10**9, 0, by_pass=True)

        return seconds

    def _allowed(self, batch: Batch) -> Allowed:
        ids_1V = np.ones((1, self.size.vocab_size), dtype=bool)
        ids_1V[:, :_FIRST] = False
        return Allowed(torch.zeros_like(batch.ids_BL), ids_1V)

    def _seconds(
        self,
        length: int,
        make: Callable[[Batch], Stepper],
        order: Order,
        parallel: Parallel | None = None,
        skip: int = 1,
    ) -> Seconds:
        def seconds(rows: int, known: int, steps: int) -> float:
            whole = known == 0 and steps == length
            known = known if parallel is None or whole else min(known, length - (steps + 1) * int(parallel.value))
            batch = half_written(rows, known, length, self.seed, left_to_right=order.kind == "l2r")
            rngs = [generator(self.seed, "bench", b) for b in range(rows)]
            begin = time.perf_counter()
            turns = decode(
                make(batch), batch, self._allowed(batch), [order] * rows, Sampling(), rngs, parallel=parallel
            )
            if whole:
                num = sum(1 for _ in turns)
                return (time.perf_counter() - begin) / num
            return _timed(turns, steps, skip)

        return seconds


def _timed(turns: Iterator[list[Reveal]], steps: int, skip: int, *, by_pass: bool = False) -> float:
    """Seconds of a turn (of a pass) after the first ones."""
    for _ in range(skip):
        next(turns)
    begin, num = time.perf_counter(), 0
    for reveals in itertools.islice(turns, steps):
        num = max(num, *(r.turn for r in reveals)) if by_pass else num + 1
    return (time.perf_counter() - begin) / num


def half_written(rows: int, known: int, length: int, seed: int, *, left_to_right: bool = False) -> Batch:
    """Canvases with random tokens at some random slots (the first ones, from left to right)."""
    rng = generator(seed, "canvas", known)
    ids = torch.randint(_FIRST, 100, (rows, length), generator=rng).tolist()
    hidden = []
    for _ in range(rows):
        order = torch.arange(length) if left_to_right else torch.randperm(length, generator=rng)
        flags = torch.ones(length, dtype=torch.bool)
        flags[order[:known]] = False
        hidden.append(flags.tolist())
    framed = [[_MARKER, *row, _MARKER + 1] for row in ids]
    return make_batch(framed, [[False, *flags, False] for flags in hidden], pad_id=0)


def pretend_read(reader: OrderCached, known_BL: Tensor) -> None:
    """As if all that is known had been read; what is in the cache does not change how long a step takes."""
    count = int(known_BL[0].sum())
    reader.cached_BL |= known_BL
    reader.count_B += count
    reader.rank_BK[:, 1 : count + 1] = 0
    reader.slot_BK[:, 1 : count + 1] = known_BL.nonzero()[:, 1].view(len(known_BL), count)


class Naive:
    """Everything, everywhere, at each step."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def logp(self, state: State, at: Slots) -> Tensor:
        seen_BL = torch.where(state.hidden_BL, self.model.config.mask_id, state.batch.ids_BL)
        inputs = Inputs(seen_BL, torch.arange(state.batch.length)[None])
        everywhere = Slots.where(torch.ones_like(state.hidden_BL))
        logp_MV = self.model(inputs, everywhere).log_softmax(-1)
        return logp_MV.unflatten(0, state.hidden_BL.shape)[at.rows_M, at.slots_M]


def kept_share(drafts: int, passes_per_token: float) -> float:
    """The chance of a draft to stay with which as many passes are made for a token: by trying."""

    def passes(share: float) -> float:
        tokens = [share**i * (1 - share) for i in range(drafts - 1)]
        expected = sum((i + 2) * p for i, p in enumerate(tokens)) + drafts * share ** (drafts - 1)
        return (2 - share ** (drafts - 1)) / expected

    shares = [i / 100 for i in range(101)]
    return min(shares, key=lambda share: abs(passes(share) - passes_per_token))


class Scripted:
    """A cache that computes all and then answers so that a draft stays as often as it should.

    With random weights almost every draft would stay. Here what verifies a draft says either what it was drawn from or
    something disjoint.
    """

    def __init__(self, reader: OrderCached, share: float, seed: int) -> None:
        self.reader, self.share, self.rng = reader, share, generator(seed, "script")
        self.choices: tuple[Tensor, Tensor] | None = None

    @property
    def count_B(self) -> Tensor:
        return self.reader.count_B

    @count_B.setter
    def count_B(self, count_B: Tensor) -> None:
        self.reader.count_B = count_B

    def rewind(self, count_B: Tensor) -> None:
        self.reader.rewind(count_B)

    def extend(self, new: Columns, query_BQ: Tensor, query_rank_BQ: Tensor, here: Slots) -> Tensor:
        if self.choices is None:  # what was given has been read, by pretence
            new = Columns(*(part_BN[:, :0] for part_BN in new))
        logp_MV = self.reader.extend(new, query_BQ, query_rank_BQ, here)
        if self.choices is None:
            half_V = torch.arange(logp_MV.shape[1]) % 2 == 0
            one_V, two_V = (logp_MV[0].masked_fill(half, -1e9).log_softmax(-1) for half in (half_V, ~half_V))
            self.choices = one_V, two_V
        stays_M = torch.rand(len(logp_MV), generator=self.rng) < self.share
        stays_M |= query_rank_BQ[here.rows_M, here.slots_M] == NEVER
        return torch.where(stays_M[:, None], *self.choices)


def transformers_library() -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError("this comparison needs transformers: pip install 'pmlm[bench]'") from None
    return transformers
