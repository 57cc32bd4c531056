"""Templates in, written canvases out: the text side of generation, shared by every way to ask for it.

A writer belongs to one model; what it looks up (which pieces may stand where) it keeps.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from pmlm.corpus.framing import row_batch
from pmlm.errors import ConstraintError, DataError, OrderError, TemplateError
from pmlm.generation.canvas import Canvas, Role, allowed_pieces, canvas_text, make_canvas
from pmlm.generation.decode import Allowed, Reveal
from pmlm.generation.demands import RuleMaker
from pmlm.generation.engine import Job
from pmlm.generation.lengths import PLAIN_WORD_LOGP, barest, choose_lengths
from pmlm.generation.placement import has_room, place_words
from pmlm.generation.rules import Neighbours, Rule, word_neighbours
from pmlm.generation.sampling import Sampling
from pmlm.generation.speed import Speed, fill_batch
from pmlm.generation.template import Blank, Given, Template, parse_template, template_source
from pmlm.likelihood import check_order, hidden_logp
from pmlm.model import LanguageModel, Slots, Visibility
from pmlm.orders import Order, arrange
from pmlm.results import Filled, Step, Wishes
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer
from pmlm.words import Flags, WordTable

MOST_ATTEMPTS = 20
MOST_DRAWS = 40
"""Of lengths and places that can be had together."""
CORNERED = (
    f"no text was found that satisfies all constraints together in {MOST_ATTEMPTS} attempts: ask for less at once"
)
NO_BLANK = "the template has no blank: write [MASK], [MASK:3] or ___ where a token is wanted"


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How a canvas is to be filled."""

    order: Order
    visibility: Visibility
    sampling: Sampling = field(default_factory=Sampling)
    speed: Speed = field(default_factory=Speed)
    whole_words: bool = True
    """No word is left half-written; for models that come with a table of words."""
    ban: tuple[str, ...] = ()
    """Words that must not be written."""
    must: tuple[str, ...] = ()
    """Words that must appear; the model chooses where."""
    num_words: int | None = None
    """How many words the whole text has."""
    num_tokens: int | None = None
    """How many tokens the whole text has, what is given included."""
    written: tuple[tuple[int, str], ...] = ()
    """Positions and tokens that come first, in this order: how a text goes on from a state it was once in."""


@dataclass(frozen=True)
class Writing:
    """Canvases on their way to being filled: iterate over `turns`."""

    canvases: list[Canvas]
    seeds: list[int]
    settings: WriteSettings
    turns: Iterator[list[Reveal]]
    attempt: int = 0

    def is_done(self, row: int, reveals: int) -> bool:
        return reveals == len(self.canvases[row].hidden)


class Writer:
    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, words: WordTable | None) -> None:
        self.model, self.tokenizer, self.words = model, tokenizer, words

    @cached_property
    def ids_RV(self) -> Flags:
        return allowed_pieces(self.tokenizer)

    @property
    def tokens_per_word(self) -> float:
        """As many as a word has pieces on average, and something for the marks between."""
        logp = PLAIN_WORD_LOGP if self.words is None else self.words.length_logp
        return 1.15 * math.fsum(n * math.exp(p) for n, p in enumerate(logp, start=1))

    @cached_property
    def neighbours(self) -> Neighbours | None:
        return None if self.words is None else word_neighbours(self.tokenizer, self.words, self.ids_RV)

    def start(
        self, templates: Sequence[str | Template], seeds: Sequence[int], settings: WriteSettings, attempt: int = 0
    ) -> Writing:
        """Check everything, then begin; each canvas is written as if it were alone, from its own seed."""
        pairs = list(self.jobs(templates, seeds, settings, attempt))
        canvases = [canvas for canvas, _ in pairs]
        turns = self._decode(canvases, [job for _, job in pairs], settings)
        return Writing(canvases, list(seeds), settings, turns, attempt)

    def jobs(
        self, templates: Sequence[str | Template], seeds: Sequence[int], settings: WriteSettings, attempt: int = 0
    ) -> Iterator[tuple[Canvas, Job]]:
        """Each template as a canvas with all that is to be known for filling it."""
        self._check(settings)
        if not templates:
            raise DataError("there is no template to fill")
        rules_of = self._rule_maker(settings)
        for template, seed in zip(templates, seeds, strict=True):
            canvas, rules = self._laid_out(read_template(template), seed, settings, rules_of, attempt)
            yield canvas, self._job(canvas, generator(seed, "decode", attempt), settings, rules)

    def _check(self, settings: WriteSettings) -> None:
        """ConfigError or OrderError for settings that do not go together, or not with this model."""
        check_order(settings.order, settings.visibility)
        settings.speed.check(
            settings.order,
            settings.visibility,
            self.model.config.visibilities,
            settings.sampling,
            has_written=bool(settings.written),
        )

    def _laid_out(
        self, template: Template, seed: int, settings: WriteSettings, rules_of: RuleMaker, attempt: int
    ) -> tuple[Canvas, list[Rule]]:
        """Where draws of lengths and places depend on each other, draws that leave no way are made anew."""
        is_drawn = bool(settings.must) or sum(blank.num_tokens is None for blank in template.blanks) > 1
        draws = MOST_DRAWS if is_drawn and settings.sampling.temperature > 0 else 1
        if draws > 1:  # what no draw can help is said at once
            rules_of(make_canvas(barest(template), self.tokenizer, self.model.config.max_length), is_final=False)
        for draw in range(attempt, draws * MOST_ATTEMPTS, MOST_ATTEMPTS):
            try:
                canvas = self._canvas(template, seed, settings, rules_of, draw)
                return canvas, rules_of(canvas)
            except ConstraintError:
                if draw >= (draws - 1) * MOST_ATTEMPTS:
                    raise
        raise AssertionError("the last draw returns or raises")

    def _job(self, canvas: Canvas, rng: torch.Generator, settings: WriteSettings, rules: list[Rule]) -> Job:
        return Job(
            row=canvas.row,
            allowed=Allowed(torch.tensor([canvas.role], device=self.model.device), self.ids_RV, [rules]),
            order=replace(settings.order, positions=tuple(p + 1 for p in settings.order.positions)),  # the start marker
            sampling=settings.sampling,
            visibility=settings.visibility,
            speed=settings.speed,
            rng=rng,
            written=self._written(canvas, settings),
        )

    def turns(
        self, canvases: Sequence[Canvas], rngs: Sequence[torch.Generator], settings: WriteSettings
    ) -> Iterator[list[Reveal]]:
        """The decode loop over canvases; what can never be is said at once."""
        self._check(settings)
        rules_of = self._rule_maker(settings)
        pairs = zip(canvases, rngs, strict=True)
        return self._decode(canvases, [self._job(c, rng, settings, rules_of(c)) for c, rng in pairs], settings)

    def _decode(
        self, canvases: Sequence[Canvas], jobs: Sequence[Job], settings: WriteSettings
    ) -> Iterator[list[Reveal]]:
        batch = row_batch([job.row for job in jobs], self.tokenizer).to(self.model.device)
        role_BL = torch.zeros_like(batch.ids_BL)
        for b, canvas in enumerate(canvases):
            role_BL[b, : len(canvas.role)] = torch.tensor(canvas.role)
        return fill_batch(
            self.model,
            batch,
            Allowed(role_BL, self.ids_RV, [rules for job in jobs for rules in job.allowed.rules or [[]]]),
            [job.order for job in jobs],
            settings.sampling,
            [job.rng for job in jobs],
            [job.written for job in jobs],
            settings.visibility,
            settings.speed,
        )

    def _written(self, canvas: Canvas, settings: WriteSettings) -> list[tuple[int, int]]:
        """Slots and ids; DataError for what cannot have been written."""
        hidden, found = set(canvas.hidden), list[tuple[int, int]]()
        for position, token in settings.written:
            if position + 1 not in hidden:
                raise DataError(
                    f"nothing can be written at position {position}: it is given, or named twice, or outside"
                )
            if token not in self.pieces:
                raise DataError(f"{token!r} is not one token of this model: take tokens from a result")
            if settings.visibility == "causal" and position + 1 > min(hidden):
                raise OrderError(
                    f"a left-to-right model cannot have written position {position} before those left of it"
                )
            hidden.remove(position + 1)
            found.append((position + 1, self.pieces[token]))
        return found

    @cached_property
    def pieces(self) -> dict[str, int]:
        """The ids of the tokens that can be written, as they are shown."""
        return {self.tokenizer.show(int(i)): int(i) for i in self.ids_RV[Role.FREE].nonzero()[0]}

    def write(self, templates: Sequence[str | Template], seeds: Sequence[int], settings: WriteSettings) -> list[Filled]:
        """Everything at once. A text that two constraints drive into a corner is begun anew, a few times."""
        found: dict[int, Filled] = {}
        for attempt in range(MOST_ATTEMPTS):
            left = [i for i in range(len(templates)) if i not in found]
            if not left and templates:
                break
            writing = self.start([templates[i] for i in left], [seeds[i] for i in left], settings, attempt)
            by_row: list[list[Reveal]] = [[] for _ in left]
            for turn in writing.turns:
                for reveal in turn:
                    by_row[reveal.row].append(reveal)
            for row, i in enumerate(left):
                if writing.is_done(row, len(by_row[row])):
                    found[i] = self.filled(writing, row, by_row[row])
        if len(found) < len(templates):
            raise ConstraintError(CORNERED)
        return [found[i] for i in range(len(templates))]

    def _canvas(
        self,
        template: Template,
        seed: int,
        settings: WriteSettings,
        rules_of: RuleMaker,
        attempt: int = 0,
    ) -> Canvas:
        if not template.blanks:
            raise TemplateError(NO_BLANK)
        if settings.visibility == "causal" and any(
            isinstance(segment, Given) for segment in template.segments[_first_blank(template) :]
        ):
            raise OrderError("a left-to-right model cannot look at what stands after a blank")
        if any(blank.num_tokens is None for blank in template.blanks):
            template = choose_lengths(
                template,
                self.model,
                self.tokenizer,
                settings.visibility,
                PLAIN_WORD_LOGP if self.words is None else self.words.length_logp,
                generator(seed, "lengths", attempt),
                is_possible=partial(self._is_possible, settings, rules_of),
                total=settings.num_tokens,
                likely_total=None if settings.num_words is None else settings.num_words * self.tokens_per_word,
                greedy=settings.sampling.temperature == 0,
            )
        if settings.must:
            if settings.visibility == "causal":
                raise OrderError("a left-to-right model cannot write towards a word that must appear")
            template = place_words(
                template,
                [check_text(word) for word in settings.must],
                self.model,
                self.tokenizer,
                settings.visibility,
                generator(seed, "places", attempt),
                greedy=settings.sampling.temperature == 0,
            )
        canvas = make_canvas(template, self.tokenizer, self.model.config.max_length)
        if settings.num_tokens not in (None, found := len(canvas.row.ids) - 2):
            raise ConstraintError(
                f"the text has {found} tokens, not {settings.num_tokens}: leave a length open, as in [MASK:*]"
            )
        if settings.order.kind == "list":
            positions = [i - 1 for i in canvas.hidden]
            arrange(settings.order, positions, [], generator(0))  # refuses what is no permutation
        return canvas

    def _rule_maker(self, settings: WriteSettings) -> RuleMaker:
        """What is looked up once for all canvases of a call."""
        most = self.model.config.max_length - 2
        if settings.num_words is not None and settings.num_words > most:
            raise ConstraintError(f"{settings.num_words} words are more than the {most} tokens that the model writes")
        relation = self.neighbours if settings.whole_words else None
        return RuleMaker(relation, self.tokenizer.running_bytes, self.ids_RV, settings.ban, settings.num_words)

    def _is_possible(
        self, settings: WriteSettings, rules_of: RuleMaker, canvas: Canvas, *, is_final: bool, is_strict: bool
    ) -> bool:
        if is_final and not has_room(canvas.template, settings.must, self.tokenizer):
            return False
        if is_final and (settings.num_words or 0) > len(canvas.row.ids) - 2:  # a token begins one word at most
            return False
        if not is_strict and not any(blank.limits for blank in canvas.template.blanks):
            return False  # then it is as strict as ever
        try:
            rules_of(canvas, is_final=is_final and not settings.must, is_strict=is_strict)
        except ConstraintError:
            return False
        return True

    def filled(self, writing: Writing, row: int, reveals: Sequence[Reveal]) -> Filled:
        """A finished text, from what was revealed of it."""
        return self.result(writing.canvases[row], reveals, writing.seeds[row], writing.settings, writing.attempt + 1)

    def result(
        self, canvas: Canvas, reveals: Sequence[Reveal], seed: int, settings: WriteSettings, attempts: int = 1
    ) -> Filled:
        """The finished text of one canvas."""
        ids = list(canvas.row.ids)
        for reveal in reveals:
            ids[reveal.slot] = reveal.token
        return Filled(
            text=canvas_text(canvas, ids, self.tokenizer),
            tokens=[self.tokenizer.show(i) for i in ids[1:-1]],
            order=[reveal.slot - 1 for reveal in reveals],
            logp=[reveal.logp for reveal in reveals],
            sampled_logp=[reveal.sampled_logp for reveal in reveals],
            seed=seed,
            visibility=settings.visibility,
            template=template_source(canvas.template),
            passes=reveals[-1].turn if reveals else 0,
            approximate=settings.speed.approximations,
            ids=tuple(ids),
            sizes=tuple(end - start for start, end in canvas.spans),
            attempts=attempts,
            wishes=Wishes(settings.ban, settings.num_words, settings.whole_words),
        )

    def canvas_of(self, filled: Filled) -> Canvas:
        """The canvas that a text was written on."""
        template = read_template(filled.template)
        segments = list(template.segments)
        for k, size in enumerate(filled.sizes):
            blank = segments[k]
            if isinstance(blank, Blank) and blank.num_tokens is None:
                segments[k] = replace(blank, num_tokens=size)
        return make_canvas(Template(tuple(segments)), self.tokenizer, self.model.config.max_length)

    def draft(self, canvas: Canvas) -> list[str | None]:
        """The tokens before anything is written."""
        shown = [
            None if hidden else self.tokenizer.show(i)
            for i, hidden in zip(canvas.row.ids, canvas.row.maskable, strict=True)
        ]
        return shown[1:-1]

    def steps(self, writing: Writing, row: int, reveals: Iterator[Reveal]) -> Iterator[Step]:
        """What a row's reveals look like to a reader."""
        canvas = self.draft(writing.canvases[row])
        for number, reveal in enumerate(reveals, start=1):
            canvas[reveal.slot - 1] = self.tokenizer.show(reveal.token)
            yield self.step(writing.canvases[row], number, reveal, canvas)

    def step(self, canvas: Canvas, number: int, reveal: Reveal, state: Sequence[str | None] = ()) -> Step:
        """One reveal as a reader sees it; `state` is the canvas after it."""
        token = self.tokenizer.show(reveal.token)
        return Step(number, len(canvas.hidden), reveal.slot - 1, token, reveal.logp, reveal.sampled_logp, tuple(state))

    def candidates(
        self, template: str, seed: int, settings: WriteSettings, *, position: int, count: int
    ) -> list[dict[str, Any]]:
        """The likeliest tokens at a hidden position once `settings.written` stands there, as far as they may stand."""
        (canvas, job), *_ = self.jobs([template], [seed], settings)
        batch = row_batch([job.row], self.tokenizer).to(self.model.device)
        ids_BL, hidden_BL, rank_BL = batch.ids_BL.clone(), batch.maskable_BL.clone(), torch.zeros_like(batch.ids_BL)
        for turn, (slot, token) in enumerate(job.written, start=1):
            ids_BL[0, slot], hidden_BL[0, slot], rank_BL[0, slot] = token, False, turn
            job.allowed.reveal(Reveal(0, slot, token, 0.0, 0.0, turn))
        slot = position + 1
        if not (0 <= position < len(canvas.row.ids) - 2 and hidden_BL[0, slot]):
            raise DataError(f"position {position} is not hidden: candidates are for blanks that are not written yet")
        if settings.visibility == "causal" and hidden_BL[0, :slot].any():
            raise OrderError("a left-to-right model cannot guess at a token while one before it is hidden")
        at = Slots(torch.tensor([0], device=ids_BL.device), torch.tensor([slot], device=ids_BL.device))
        with torch.no_grad():
            logp_V = hidden_logp(
                self.model, replace(batch, ids_BL=ids_BL), hidden_BL, rank_BL, settings.visibility, at
            )[0].cpu()
        return [
            {"score": float(logp_V[i].exp()), "token": i, "token_str": self.tokenizer.show(i)}
            for i in _likeliest(logp_V, job.allowed.at(at)[0].cpu(), count)
        ]

    def fill_mask(
        self, template: str, visibility: Visibility, *, top_k: int, targets: Sequence[str] | None
    ) -> list[list[dict[str, Any]]]:
        """For each hidden token the likeliest ids while all the others are hidden, in Hugging Face's words."""
        settings = WriteSettings(order=Order("l2r"), visibility=visibility, sampling=Sampling(temperature=0))
        canvas = self._canvas(read_template(template), 0, settings, self._rule_maker(settings))
        limits = self._rule_maker(replace(settings, whole_words=False))(canvas)  # what its blanks ask for, no more
        if visibility == "causal" and len(canvas.hidden) > 1:
            raise OrderError("a left-to-right model cannot guess at a token while one before it is hidden")
        batch = row_batch([canvas.row], self.tokenizer).to(self.model.device)
        at = Slots.where(batch.maskable_BL)
        with torch.no_grad():
            logp_MV = hidden_logp(
                self.model, batch, batch.maskable_BL, torch.zeros_like(batch.ids_BL), visibility, at
            ).cpu()
        allowed_MV = Allowed(torch.tensor([canvas.role]), self.ids_RV, [limits]).at(
            Slots.where(batch.maskable_BL.cpu())
        )
        if targets is not None:
            allowed_MV = torch.zeros_like(allowed_MV)
            allowed_MV[:, self._target_ids(targets)] = True
        return [
            [self._guess(canvas, slot, i, float(logp_V[i].exp())) for i in _likeliest(logp_V, allowed_V, top_k)]
            for slot, logp_V, allowed_V in zip(canvas.hidden, logp_MV, allowed_MV, strict=True)
        ]

    def _target_ids(self, targets: Sequence[str]) -> list[int]:
        ids = []
        for target in targets:
            pieces = self.tokenizer.encode_inner(check_text(target))
            if len(pieces) != 1:
                raise DataError(
                    f"the target {target!r} is not one token but {len(pieces)}: "
                    f"{', '.join(repr(self.tokenizer.show(i)) for i in pieces)}"
                )
            ids.append(pieces[0])
        return ids

    def _guess(self, canvas: Canvas, slot: int, token: int, score: float) -> dict[str, Any]:
        ids = list(canvas.row.ids)
        ids[slot] = token
        shown = "".join(
            "[MASK]" if hidden and s != slot else self.tokenizer.show(i)
            for s, (i, hidden) in enumerate(zip(ids, canvas.row.maskable, strict=True))
            if 0 < s < len(ids) - 1
        )
        is_alone = len(canvas.hidden) == 1
        sequence = canvas_text(canvas, ids, self.tokenizer) if is_alone else shown.removeprefix(" ")
        return {"score": score, "token": token, "token_str": self.tokenizer.show(token), "sequence": sequence}


def _likeliest(logp_V: torch.Tensor, allowed_V: torch.Tensor, count: int) -> list[int]:
    best = logp_V.masked_fill(~allowed_V, -torch.inf).topk(min(count, int(allowed_V.sum())))
    return [int(i) for i in best.indices]


def _first_blank(template: Template) -> int:
    return next(i for i, segment in enumerate(template.segments) if not isinstance(segment, Given))


def read_template(template: str | Template) -> Template:
    return template if isinstance(template, Template) else parse_template(check_text(template))


def check_text(text: str) -> str:
    """Text that can be written as UTF-8; a lone half of a character pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the text is not Unicode: character {error.start} cannot be read") from None
    return text
