"""A loaded model for people: text in, text and figures out.

The thin edge between text and the core, which knows ids alone.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Unpack

from pmlm.config import from_dict
from pmlm.corpus.framing import Row, frame, row_batch
from pmlm.errors import CheckpointError, ConfigError, ConstraintError, DataError, OrderError, RunError, TemplateError
from pmlm.generation.decode import Reveal
from pmlm.generation.layouts import scatter
from pmlm.generation.sampling import PLAIN, Sampling
from pmlm.generation.speed import Speed
from pmlm.generation.template import (
    FilledPart,
    Template,
    encode_parts,
    filled_spans,
    fit,
    parse_template,
    template_source,
)
from pmlm.likelihood import MAX_SLOTS, check_order, check_visibility, order_logp, order_ranks, policy_logp
from pmlm.model import LanguageModel, TaskModel, Visibility
from pmlm.model.checkpoint import CARD, CONFIG, Checkpoint, Storage, load_checkpoint, read_config, save_checkpoint
from pmlm.model.graph import GraphModel, check_precision, load_graph, write_graph
from pmlm.options import FillOptions, listed, to_order, write_settings
from pmlm.orders import Order, arrange
from pmlm.refining import Method, refine
from pmlm.results import Filled, Ranked, Refined, Score, Step, Streamer, candidate_seeds, likeliest
from pmlm.runtime import draw_seed, generator, pick_device
from pmlm.tokenizer import Tokenizer, load_tokenizer
from pmlm.words import WordTable, load_words, save_words
from pmlm.writer import CORNERED, MOST_ATTEMPTS, NO_BLANK, Writer, WriteSettings, check_text

ENGINES = ("torch", "onnx")


class Stream:
    """A text that is being written: iterate over its steps; `result` is there once they are done.

    Where several constraints drive it into a corner it is begun anew, with steps counted from 1 again.
    """

    def __init__(self, writer: Writer, template: str | Template, seed: int, settings: WriteSettings) -> None:
        self._writer, self._template, self._seed, self._settings = writer, template, seed, settings
        self._attempts = 0
        self._begin()
        self._steps = self._all_steps()

    def _begin(self) -> None:
        self._writing = self._writer.start([self._template], [self._seed], self._settings, self._attempts)
        self.draft = self._writer.draft(self._writing.canvases[0])
        self._reveals: list[Reveal] = []

    def _all_steps(self) -> Iterator[Step]:
        while True:
            yield from self._writer.steps(self._writing, 0, self._keep())
            if self._is_done():
                return
            self._attempts += 1
            if self._attempts == MOST_ATTEMPTS:
                raise ConstraintError(CORNERED)
            self._begin()

    def _keep(self) -> Iterator[Reveal]:
        for turn in self._writing.turns:
            for reveal in turn:
                self._reveals.append(reveal)
                yield reveal

    def _is_done(self) -> bool:
        return self._writing.is_done(0, len(self._reveals))

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    @property
    def result(self) -> Filled:
        if not self._is_done():
            raise RunError("the text is not finished: iterate over the stream to its end, or call finish()")
        return self._writer.filled(self._writing, 0, self._reveals)

    def finish(self) -> Filled:
        """Write the rest."""
        for _ in self._steps:
            pass
        return self.result


class LM:
    """An any-order language model with its tokenizer."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        about: dict[str, Any],
        folder: Path | None,
        words: WordTable | None = None,
        sampling: Sampling = PLAIN,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.about = about
        self.folder = folder
        self.words = words
        self.sampling = sampling
        """How texts are drawn where the options do not say."""

    @property
    def engine(self) -> str:
        """What computes whole passes: torch, or onnx with its precision."""
        return f"onnx {self.model.precision}" if isinstance(self.model, GraphModel) else "torch"

    @cached_property
    def writer(self) -> Writer:
        return Writer(self.model, self.tokenizer, self.words)

    def score(
        self,
        text: str,
        *,
        order: str | Sequence[int] | Order = "l2r",
        seed: int = 0,
        visibility: str | None = None,
        given: str | Template | None = None,
        max_slots: int = MAX_SLOTS,
    ) -> Score:
        """The exact log-probability of `text` along an order.

        With `given`, a template that the text fits, only what stands in its blanks is scored, jointly; a list order
        then names the tokens of the blanks by their place among all tokens.
        """
        parts = self._parts(text, given)
        return self._score_parts(parts, to_order(order), seed, visibility, max_slots)

    def _score_parts(
        self, parts: list[FilledPart], order: Order, seed: int, visibility: str | None, max_slots: int = MAX_SLOTS
    ) -> Score:
        kind = check_visibility(visibility, self.model.config)
        check_order(order, kind)
        ids = [i for part in parts for i in part.ids]
        hidden = [part.is_blank for part in parts for _ in part.ids]
        if kind == "causal" and False in hidden[hidden.index(True) :]:
            raise OrderError("a left-to-right model cannot look at what stands after a blank")
        row = frame(ids, self.tokenizer, hidden=hidden)
        self.check_length(row)
        ranks, logp = self._score_row(row, order, seed, kind, max_slots)
        scored = [i for i, flag in enumerate(hidden) if flag]
        return Score(
            text="".join(part.text for part in parts),
            tokens=[self.tokenizer.show(i) for i in ids],
            order=sorted(scored, key=lambda i: ranks[i]),
            logp=[logp[i] if flag else None for i, flag in enumerate(hidden)],
            num_bytes=sum(len(part.text.encode()) for part in parts if part.is_blank),
            seed=seed,
            visibility=kind,
        )

    def rank(
        self,
        template: str,
        candidates: Sequence[str | Sequence[str]],
        *,
        order: str | Sequence[int] | Order = "l2r",
        seed: int = 0,
        visibility: str | None = None,
    ) -> list[Ranked]:
        """Fillings of a template's blanks, most probable first, by their exact joint probability along the order.

        A candidate is a text for each blank (one text alone where there is one blank). A filling of n tokens is scored
        given that there are n: candidates with different numbers of tokens are compared without a prior on them.
        """
        parsed = parse_template(template)
        if not candidates:
            raise DataError("no candidates were given")
        lists = [[c] if isinstance(c, str) else list(c) for c in candidates]
        parts = [encode_parts(parsed, filled_spans(parsed, c), self.tokenizer) for c in lists]
        scores = [self._score_parts(p, to_order(order), seed, visibility) for p in parts]
        least = min(score.nll for score in scores)
        weights = [math.exp(least - score.nll) for score in scores]
        ranked = [
            Ranked(c, score, weight / math.fsum(weights))
            for c, score, weight in zip(lists, scores, weights, strict=True)
        ]
        return sorted(ranked, key=lambda r: r.score.nll)

    def fill(
        self,
        template: str | Template,
        *,
        seed: int | None = None,
        best_of: int = 1,
        streamer: Streamer | None = None,
        **options: Unpack[FillOptions],
    ) -> Filled:
        """Write what stands in a template's blanks, in any order, around what is given.

        Without a seed one is drawn; the result names it. A streamer is told of every step. With `best_of`, so many
        texts are written at once, from seeds that no other seed shares, and the likeliest is returned with its own.
        """
        if best_of != 1:
            if streamer is not None:
                raise ConfigError("a streamer follows one text while it is written: it does not go with best_of")
            seeds = candidate_seeds(draw_seed() if seed is None else seed, 1, best_of)
            return likeliest(self.fill_batch([template] * best_of, seeds=seeds, **options), best_of)[0]
        stream = self.stream(template, seed=seed, **options)
        if streamer is None:
            return stream.finish()
        streamer.put_draft(stream.draft)
        try:
            for step in stream:
                streamer.put(step)
        finally:
            streamer.end()
        return stream.result

    def stream(self, template: str | Template, *, seed: int | None = None, **options: Unpack[FillOptions]) -> "Stream":
        """As `fill`, a step at a time: iterate over it, then ask for its `result`."""
        return Stream(self.writer, template, draw_seed() if seed is None else seed, self.settings(options))

    def fill_batch(
        self,
        templates: Sequence[str | Template],
        *,
        seeds: Sequence[int] | None = None,
        **options: Unpack[FillOptions],
    ) -> list[Filled]:
        """Several templates at once; each is written as if it were alone, from its own seed."""
        seeds = [draw_seed() for _ in templates] if seeds is None else list(seeds)
        if len(seeds) != len(templates):
            raise DataError(f"{len(templates)} templates need as many seeds, got {len(seeds)}")
        return self.writer.write(templates, seeds, self.settings(options))

    def refine(
        self,
        filled: Filled,
        *,
        method: Method = "mask-predict",
        passes: int = 4,
        seed: int | None = None,
        **options: Unpack[FillOptions],
    ) -> Refined:
        """Rewrite the least certain tokens of a text (`mask-predict`), or every token in turn (`gibbs`).

        Its visibility and what was asked of the whole text are kept; other options (order, sampling) are named again.
        """
        asked: FillOptions = {
            "ban": filled.wishes.ban,
            "num_words": filled.wishes.num_words,
            "whole_words": filled.wishes.whole_words,
            **options,
            "visibility": filled.visibility,
        }
        settings = self.settings(asked)
        chosen = draw_seed() if seed is None else seed
        return refine(self.writer, filled, settings, method=method, passes=passes, seed=chosen)

    def scatter(self, words: str, length: int, *, seed: int) -> str:
        """A template with the words, in their order, at random places of a canvas of `length` tokens."""
        rng = generator(seed, "scatter", 0)
        return template_source(scatter(check_text(words), length, self.tokenizer, rng))

    def fill_mask(
        self,
        template: str,
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        visibility: str | None = None,
    ) -> list[dict[str, Any]] | list[list[dict[str, Any]]]:
        """The likeliest tokens at each [MASK] while every [MASK] is hidden, with the keys of Hugging Face's pipeline:
        `score` (a probability), `token`, `token_str`, `sequence`. One list where there is one [MASK], else a list of
        lists. `targets` asks for the scores of given tokens, as they are spelt in a text (" cat"), one or several.
        """
        if top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {top_k}")
        kind = check_visibility(visibility, self.model.config)
        wanted = None if targets is None else listed(targets)
        guesses = self.writer.fill_mask(template, kind, top_k=top_k, targets=wanted)
        return guesses[0] if len(guesses) == 1 else guesses

    def candidates(
        self,
        template: str,
        position: int,
        *,
        count: int = 10,
        seed: int = 0,
        **options: Unpack[FillOptions],
    ) -> list[dict[str, Any]]:
        """The likeliest tokens at a hidden position once `written` stands on the canvas, with the keys of `fill_mask`.

        `seed` matters where the template leaves the length of a word open.
        """
        if count < 1:
            raise ConfigError(f"count must be at least 1, got {count}")
        settings = self.settings(options)
        if settings.speed != Speed():
            raise ConfigError(
                "candidates are exact and take one pass: leave parallel, approximate_cache, speculative, particles out"
            )
        return self.writer.candidates(template, seed, settings, position=position, count=count)

    def settings(self, options: FillOptions) -> WriteSettings:
        return write_settings(options, self.model.config, self.sampling)

    def describe(self) -> dict[str, Any]:
        """What it is, in plain data."""
        return describe(self.model, self.tokenizer, self.about, self.folder)

    def save(self, folder: str | Path, *, card: str = "", storage: str = "float32") -> None:
        """Write a checkpoint folder that `pmlm.load` reads; without a card, with the one that it came with."""
        self._save(Path(folder), card or self._card(), storage)  # type: ignore[arg-type]

    def export(self, folder: str | Path, *, precision: str = "fp32") -> None:
        """The same with a graph for ONNX Runtime beside the weights: `load(folder, engine="onnx")` computes with it."""
        chosen = check_precision(precision)
        self._save(Path(folder), self._card(), "float32", lambda part: write_graph(self.model, part, chosen))

    def _card(self) -> str:
        path = None if self.folder is None else self.folder / CARD
        if path is not None and path.is_file():
            return path.read_text(encoding="utf-8")
        return f"# {self.about.get('name', 'A pmlm model')}\n"

    def _save(
        self, folder: Path, card: str, storage: Storage, add_more: Callable[[Path], None] = lambda _part: None
    ) -> None:
        def add_files(part: Path) -> None:
            self.tokenizer.save(part)
            if self.words is not None:
                save_words(self.words, part, self.tokenizer.fingerprint)
            add_more(part)

        save_checkpoint(
            folder,
            Checkpoint(self.model, self.about, self.sampling.choices()),
            card=card,
            add_files=add_files,
            vocabulary=self.tokenizer.fingerprint,
            storage=storage,
        )

    def check_fits(self, text: str) -> None:
        """DataError where a text is longer than the model reads."""
        self.check_length(frame(self.tokenizer.encode(check_text(text)), self.tokenizer))

    def check_length(self, row: Row) -> None:
        most = self.model.config.max_length
        if len(row.ids) > most:
            raise DataError(
                f"the text needs {len(row.ids)} slots (markers included) but the model reads {most}. Shorten it, or "
                "use `pmlm evaluate`, which cuts a text into windows."
            )

    def _parts(self, text: str, given: str | Template | None) -> list[FilledPart]:
        """The text cut into what is given and what is scored."""
        text = check_text(text)
        if given is None:
            ids = self.tokenizer.encode(text)
            if not ids:
                raise DataError("there is no text to score")
            return [FilledPart(True, text, tuple(ids))]
        template = parse_template(check_text(given)) if isinstance(given, str) else given
        if not template.blanks:
            raise TemplateError(NO_BLANK)
        return fit(template, text, self.tokenizer)

    def _score_row(
        self, row: Row, order: Order, seed: int, visibility: Visibility, max_slots: int
    ) -> tuple[list[int], list[float]]:
        """Rank and log-probability of each content token."""
        lead = 1  # the start marker: content token i stands at slot i + 1
        batch = row_batch([row], self.tokenizer)
        if order.is_policy:
            logp, rank = policy_logp(self.model, batch, order.kind, visibility, max_slots=max_slots)
        else:
            places = {flag: [i - lead for i, f in enumerate(row.maskable) if f == flag] for flag in (True, False)}
            arranged = arrange(order, places[True], places[False], generator(seed, "order-0", 0))
            rank = order_ranks(batch, [[i + lead for i in arranged]])
            logp = order_logp(self.model, batch, rank, visibility, max_slots=max_slots)
        return rank[0, lead:-1].tolist(), logp[0, lead:-1].tolist()


def describe(
    model: LanguageModel | TaskModel, tokenizer: Tokenizer, about: Mapping[str, Any], folder: Path | None
) -> dict[str, Any]:
    """What a model is, in plain data."""
    config = model.config
    return {
        "name": about.get("name", folder.name if folder else "model"),
        "parameters": model.num_parameters(),
        "layers": config.num_layers,
        "width": config.width,
        "heads": config.num_heads,
        "positions": config.positions,
        "norm": config.norm,
        "max_length": config.max_length,
        "visibilities": list(config.visibilities),
        "vocabulary": {"size": tokenizer.vocab_size, "kind": tokenizer.kind},
    }


def packaged_model_folder() -> Path:
    """The model inside the package."""
    return Path(str(resources.files("pmlm"))) / "models" / "default"


def default_model_folder() -> Path:
    """The model where none is named: the environment's PMLM_MODEL, else the one inside the package."""
    chosen = os.environ.get("PMLM_MODEL")
    return Path(chosen) if chosen else packaged_model_folder()


def load(folder: str | Path | None = None, *, device: str = "auto", engine: str = "torch") -> LM:
    """A model from a checkpoint folder; without one, PMLM_MODEL's, else the model inside the package.

    `engine`: what computes whole passes; "onnx" needs a folder made by `LM.export`, and a CPU.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine must be one of {', '.join(ENGINES)}; got {engine!r}")
    if engine == "onnx" and device not in ("auto", "cpu"):
        raise ConfigError(f"the engine onnx computes on the CPU, not on {device!r}")
    path = default_model_folder() if folder is None else Path(folder)
    read_config(path)  # says what is wrong before the tokenizer is looked for
    tokenizer = load_tokenizer(path)
    checkpoint = load_checkpoint(
        path, vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.fingerprint, mask_id=tokenizer.mask_id
    )
    model = checkpoint.model if engine == "torch" else load_graph(path, checkpoint.model)
    model.to(pick_device(device if engine == "torch" else "cpu"))
    words = load_words(path, tokenizer.fingerprint)
    return LM(model, tokenizer, dict(checkpoint.about), path, words, _sampling(path, checkpoint.sampling))


def _sampling(folder: Path, section: Mapping[str, Any]) -> Sampling:
    try:
        return from_dict(Sampling, section, where="sampling")
    except ConfigError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None
