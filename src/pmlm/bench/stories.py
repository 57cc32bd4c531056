"""What the story model can do, on held-out stories: likelihoods, hidden words, free stories before a judge, storage.

Documents are drawn by the seed, fewer ones for what takes longer; the fewer are among the more. A model that reads the
end marker knows how long a text is, a GPT does not: what is compared is p(text | length) with p(text), to the bit or
two per text that a length is worth.

Shapes: M predictions, V vocabulary.
"""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pmlm.bench.judge import Judge, appraise
from pmlm.bench.material import (
    Passage,
    document_rows,
    draw_documents,
    draw_hidden_units,
    draw_passages,
    hide_words,
    shuffle_words,
    write_texts,
)
from pmlm.bench.study import Advance, Notes, exact_in_parts, model_identity
from pmlm.corpus.framing import Row, frame, row_batch
from pmlm.errors import ConfigError
from pmlm.evaluation import Scorer, ratio_stderr
from pmlm.generation.template import Template, parse_template, template_source
from pmlm.likelihood import hidden_logp
from pmlm.lm import LM
from pmlm.model import LanguageModel, Slots, Visibility
from pmlm.model.checkpoint import read_config
from pmlm.options import FillOptions
from pmlm.orders import parse_order
from pmlm.runtime import generator

FIRST = "Tom is a cat and Jerry is a mouse."
LAST = "Tom and Jerry become good friends in the end."
WORDS = "The quick brown fox jumps over the lazy dog"


@dataclass(frozen=True, kw_only=True)
class StorySettings:
    documents: int = 200
    """Held-out documents for the bound, for storage, and for exact figures that take one pass."""
    exact_documents: int = 16
    """Of these, so many for exact figures that take a pass per token."""
    policy_documents: int = 16
    """Of these, so many for the order that the model chooses itself, whose passes follow one another."""
    lengths: tuple[int, ...] = (32, 128, 256)
    """Slots of a window."""
    word_passages: int = 200
    """For the accuracy of hidden words."""
    stories: int = 100
    """Free stories before the judge."""
    orders: tuple[str, ...] = ("l2r", "random")
    """Along which free stories are written; the samples along the first."""
    best_of: int = 8
    """Along the first of them free stories are also written as the likeliest of so many; 1: not."""
    samples: int = 5
    """Of each kind, from seeds 0, 1, …"""
    temperature: float = 1.0
    top_p: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        counts = {
            "--documents": self.documents,
            "--exact": self.exact_documents,
            "--confidence": self.policy_documents,
            "--passages": self.word_passages,
            "--free": self.stories,
            "--samples": self.samples,
            "--best-of": self.best_of,
        }
        for option, count in counts.items():
            if count < 1:
                raise ConfigError(f"{option} must be at least 1, got {count}")
        if not self.lengths or min(self.lengths) < 4:
            raise ConfigError("--lengths are numbers of slots from 4 on")


def study_stories(
    lm: LM,
    gpt: LM | None,
    documents: Sequence[str],
    judge: Judge | None,
    settings: StorySettings,
    notes: Notes,
    advance: Advance,
    original: LM | None = None,
) -> dict[str, Any]:
    """`original`: the same model with weights in 32 bits, to say what storing it in fewer costs."""
    study = _Study(lm, documents, judge, settings, notes, advance)
    study.passages(max(settings.word_passages, settings.stories))  # says at once where there are too few
    result = {
        "settings": asdict(settings),
        "likelihood": study.likelihood(lm, "model"),
        "gpt": None,
        "same_vocabulary": True,
        "hidden_words": study.hidden_words(),
        "free_stories": study.free_stories(),
        "storage": study.storage(original or lm),
        "samples": study.samples(),
    }
    return result if gpt is None else study.with_gpt(result, gpt)


def add_gpt(
    result: Mapping[str, Any],
    lm: LM,
    gpt: LM,
    documents: Sequence[str],
    judge: Judge | None,
    settings: StorySettings,
    notes: Notes,
    advance: Advance,
) -> dict[str, Any]:
    """A finished study of `lm` with a GPT beside it, in place of another where there was one; `lm` is not asked."""
    return _Study(lm, documents, judge, settings, notes, advance).with_gpt(result, gpt)


def planned(lm: LM, gpt: LM | None, settings: StorySettings) -> int:
    """How many steps `advance` will be told of."""
    kinds = [visibility == "causal" for visibility in lm.model.config.visibilities]
    likelihood = len(_lengths(lm, settings)) * sum(2 if is_causal else 4 for is_causal in kinds)
    written = sum(1 if is_causal else len(settings.orders) for is_causal in kinds) + (settings.best_of > 1)
    own = likelihood + 2 * kinds.count(False) + settings.stories * written + 4 + 6
    return own + (0 if gpt is None else planned_for_gpt(gpt, settings))


def planned_for_gpt(gpt: LM, settings: StorySettings) -> int:
    return 2 * len(_lengths(gpt, settings)) + settings.stories * (1 + (settings.best_of > 1))


def _name_of(gpt: LM) -> str:
    """In notes: with another GPT, or with one where there was none, a study goes on and asks its model nothing anew."""
    identity = json.dumps(model_identity(gpt), sort_keys=True)
    return f"gpt-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _lengths(lm: LM, settings: StorySettings) -> list[int]:
    most = lm.model.config.max_length
    return [n for n in settings.lengths if n <= most] or [most]


class _Study:
    def __init__(
        self,
        lm: LM,
        documents: Sequence[str],
        judge: Judge | None,
        settings: StorySettings,
        notes: Notes,
        advance: Advance,
    ) -> None:
        self.lm, self.documents, self.judge = lm, documents, judge
        self.settings, self.notes, self.advance = settings, notes, advance

    def likelihood(self, lm: LM, name: str) -> dict[str, Any]:
        """By visibility and length; what stands for the bound of a GPT is its exact figure."""
        found: dict[str, Any] = {}
        for visibility in lm.model.config.visibilities:
            orders = ("bound", "l2r") if visibility == "causal" else ("bound", "l2r", "random", "confidence")
            found[visibility] = {
                str(length): {
                    order: self._figure(lm, name, visibility, length, order)
                    for order in orders
                }
                for length in _lengths(lm, self.settings)
            }  # fmt: skip
        return found

    def _figure(self, lm: LM, name: str, visibility: Visibility, length: int, order: str) -> dict[str, Any]:
        count = self.settings.exact_documents
        if order == "confidence":
            count = self.settings.policy_documents
        elif order == "bound" or visibility != "bidirectional":  # one pass
            count = self.settings.documents
        rows = document_rows(draw_documents(self.documents, count, self.settings.seed), lm.tokenizer, length)
        scorer = Scorer(lm.model, lm.tokenizer, visibility, self.settings.seed)
        where = f"likelihood/{name}/{visibility}/{length}/{order}"
        if order == "bound":
            figure = self.notes.get(where, _bound, scorer, rows)
        else:
            figure = exact_in_parts(scorer, rows, parse_order(order), self.notes, where)
        self.advance(1)
        return figure

    def hidden_words(self) -> dict[str, Any]:
        """Top-1 accuracy by visibility and share of words hidden."""
        found: dict[str, Any] = {}
        for visibility in self.lm.model.config.visibilities:
            if visibility == "causal":
                continue
            found[visibility] = {}
            for share in (0.15, 0.5):
                found[visibility][f"{share:g}"] = self.notes.get(
                    f"words/{visibility}/{share:g}", self._word_accuracy, visibility, share
                )
                self.advance(1)
        return found

    def _word_accuracy(self, visibility: Visibility, share: float) -> dict[str, Any]:
        passages = self.passages(self.settings.word_passages)
        counts: list[tuple[float, int]] = []
        for i, passage in enumerate(passages):
            hidden = draw_hidden_units(passage, share, generator(self.settings.seed, "words", share, i))
            asked = words_right(self.lm, passage, hidden, visibility)
            counts.append((float(sum(asked)), len(asked)))
        words, good = sum(n for _, n in counts), sum(value for value, _ in counts)
        return {
            "words": words,
            "accuracy": good / max(words, 1),
            "accuracy_stderr": ratio_stderr([pair for pair in counts if pair[1]]),
            "passages": len(passages),
        }

    def passages(self, count: int) -> list[Passage]:
        rng = generator(self.settings.seed, "passages")
        room = self.lm.model.config.max_length - 2
        return draw_passages(self.documents, self.lm.tokenizer, room=room, count=count, rng=rng)

    def free_stories(self) -> dict[str, Any]:
        """Stories as long as real ones, before the judge, next to those and to their words shuffled."""
        passages = self.passages(self.settings.stories)
        templates = [hide_words(passage, 1, generator(0)) for passage in passages]
        real = [passage.text for passage in passages]
        rngs = [generator(self.settings.seed, "shuffle", i) for i in range(len(real))]
        texts: dict[str, list[str]] = {
            "real": real,
            "real, words shuffled": [shuffle_words(text, rng) for text, rng in zip(real, rngs, strict=True)],
        }
        for visibility in self.lm.model.config.visibilities:
            for order in self.settings.orders if visibility != "causal" else ("l2r",):
                texts[f"{visibility}, {order}"] = self._stories(self.lm, "model", templates, visibility, order)
        if (best_of := self.settings.best_of) > 1:
            visibility, order = self.lm.model.config.visibilities[0], self.settings.orders[0]
            name = f"{visibility}, {order}, best of {best_of}"
            texts[name] = self._stories(self.lm, "model", templates, visibility, order, best_of)
        return {"whole_documents": sum(passage.is_whole for passage in passages), **self._judged(texts)}

    def with_gpt(self, result: Mapping[str, Any], gpt: LM) -> dict[str, Any]:
        """The result with what the GPT makes of the same documents, and stories of its own."""
        name, free = _name_of(gpt), result["free_stories"]
        likelihood = self.likelihood(gpt, name)
        room = gpt.model.config.max_length - 2
        sizes = [len(gpt.tokenizer.encode(passage.text)) for passage in self.passages(self.settings.stories)]
        templates = [parse_template(f"[MASK:{min(size, room)}]") for size in sizes]
        texts = {"GPT": self._stories(gpt, name, templates, "causal", "l2r")}
        if (best_of := self.settings.best_of) > 1:
            texts[f"GPT, best of {best_of}"] = self._stories(gpt, name, templates, "causal", "l2r", best_of)
        judged = self._judged(texts, name)
        return {
            **result,
            "gpt": likelihood,
            "same_vocabulary": gpt.tokenizer.fingerprint == self.lm.tokenizer.fingerprint,
            "free_stories": {**free, **{key: {**free[key], **found} for key, found in judged.items()}},
        }

    def _judged(self, texts: Mapping[str, Sequence[str]], gpt: str = "GPT") -> dict[str, dict[str, Any]]:
        """By who wrote them: how many were not written, and what there is to say of the others."""
        return {
            "not_written": {name: self.settings.stories - len(each) for name, each in texts.items()},
            "appraisal": {
                name: self.notes.get(f"judged/{name.replace('GPT', gpt)}", appraise, each, self.judge)
                for name, each in texts.items()
            },
        }

    def _stories(
        self, lm: LM, who: str, templates: Sequence[Template], visibility: Visibility, order: str, best_of: int = 1
    ) -> list[str]:
        name = f"free/{who}/{visibility}/{order}/{best_of}"
        options = self._options(order, visibility)
        texts = write_texts(lm, templates, options, self.notes, name, best_of=best_of, progress=self.advance)
        return [text for text in texts if text is not None]

    def _options(self, order: str, visibility: Visibility | None = None) -> FillOptions:
        return FillOptions(
            order=order, visibility=visibility, temperature=self.settings.temperature, top_p=self.settings.top_p
        )

    def storage(self, lm: LM) -> dict[str, Any] | None:
        """The bound with the weights as they are, and rounded as a file would store them; the same draws for all.

        None where the weights have been rounded already: nothing could be said of what that cost.
        """
        if lm.folder is not None and read_config(lm.folder).get("storage", "float32") != "float32":
            self.advance(4)
            return None
        length = max(_lengths(lm, self.settings))
        part = draw_documents(self.documents, self.settings.documents, self.settings.seed)
        rows = document_rows(part, lm.tokenizer, length)
        visibility = lm.model.config.visibilities[0]

        def measure(kind: str) -> float:
            model = lm.model if kind == "float32" else rounded(lm.model, kind)
            scorer = Scorer(model, lm.tokenizer, visibility, self.settings.seed)
            return float(_bound(scorer, rows)["bits_per_byte"])

        kinds = ("float32", "float16", "bfloat16", "int8")
        found: dict[str, float] = {}
        for kind in kinds:
            found[kind] = self.notes.get(f"storage/{kind}", measure, kind)
            self.advance(1)
        return {
            "visibility": visibility,
            "bits_per_byte": found,
            "cost": {kind: found[kind] / found["float32"] - 1 for kind in kinds},
        }

    def samples(self) -> dict[str, Any]:
        """Unpicked: seeds from 0 on of everything; what a short model has no room for is left out."""
        story = self.passages(1)[0]
        found: dict[str, Any] = {"the held-out story": story.text}
        for name, sources in self._sample_templates(story).items():
            parsed = [parse_template(source) for source in sources]
            texts = write_texts(self.lm, parsed, self._options(self.settings.orders[0]), self.notes, f"sample/{name}")
            found[name] = [
                {"seed": seed, "template": source, "text": text or "(no text was found)"}
                for seed, (source, text) in enumerate(zip(sources, texts, strict=True))
            ]
            self.advance(1)
        return found

    def _sample_templates(self, story: Passage) -> dict[str, list[str]]:
        """For each kind of sample a template per seed."""
        room = self.lm.model.config.max_length - 2
        found = {"free story": [f"[MASK:{min(150, room)}]"] * self.settings.samples}
        if (middle := min(60, room - len(self.lm.tokenizer.encode(f"{FIRST} {LAST}")))) > 0:
            found["Tom and Jerry"] = [f"{FIRST} [MASK:{middle}|ends=.] {LAST}"] * self.settings.samples
        if (length := min(60, room)) > len(self.lm.tokenizer.encode(WORDS)):
            found["scattered words"] = [
                self.lm.scatter(WORDS, length, seed=seed) for seed in range(self.settings.samples)
            ]
        for share in (0.15, 0.5, 0.85):
            template = hide_words(story, share, generator(self.settings.seed, share))
            found[f"{share:.0%} hidden"] = [template_source(template)] * self.settings.samples
        return found


def _bound(scorer: Scorer, rows: Sequence[Row]) -> dict[str, Any]:
    return scorer.bound(rows).to_dict()


@torch.no_grad()
def words_right(lm: LM, passage: Passage, hidden: Sequence[int], visibility: Visibility) -> list[bool]:
    """For each hidden word whether the model's best guess is right, while all that is hidden stays hidden.

    The guess at a word of several tokens is made from left to right within its slots, so it is right where each token
    is the likeliest one given those before it. The number of its tokens is known, marks are hidden too but not asked.
    """
    ids = lm.tokenizer.encode(passage.text)
    first = [0]
    for unit in passage.units:
        first.append(first[-1] + unit.num_tokens)
    assert first[-1] == len(ids)
    hidden_tokens = {t for i in hidden for t in range(first[i], first[i + 1])}
    words = [i for i in hidden if passage.units[i].is_word]
    if not words:
        return []
    rows, asked = list[Row](), list[list[int]]()
    longest = max(passage.units[i].num_tokens for i in words)
    for known in range(longest):  # how many tokens of each word have been guessed
        alike = [first[i] + known for i in words if passage.units[i].num_tokens > known]
        if known == 0:
            rows.append(frame(ids, lm.tokenizer, hidden=[t in hidden_tokens for t in range(len(ids))]))
            asked.append(alike)
            continue
        for t in alike:  # the others stay hidden whole, so each word has a row of its own
            still = hidden_tokens - set(range(t - known, t))
            rows.append(frame(ids, lm.tokenizer, hidden=[k in still for k in range(len(ids))]))
            asked.append([t])
    is_best = _likeliest(lm, rows, asked, visibility)
    return [all(is_best[t] for t in range(first[i], first[i + 1])) for i in words]


def _likeliest(
    lm: LM, rows: Sequence[Row], asked: Sequence[Sequence[int]], visibility: Visibility, chunk: int = 16
) -> dict[int, bool]:
    """Whether the token that stands at each place asked for is the likeliest there."""
    is_best: dict[int, bool] = {}
    for start in range(0, len(rows), chunk):
        batch = row_batch(rows[start : start + chunk], lm.tokenizer)
        pairs = [(b, t) for b, places in enumerate(asked[start : start + chunk]) for t in places]
        at = Slots(torch.tensor([b for b, _ in pairs]), torch.tensor([t + 1 for _, t in pairs]))  # the start marker
        device = lm.model.device
        logp_MV = hidden_logp(
            lm.model, batch.to(device), batch.maskable_BL.to(device), torch.zeros_like(batch.ids_BL).to(device),
            visibility, Slots(at.rows_M.to(device), at.slots_M.to(device)),
        )  # fmt: skip
        true_M = batch.ids_BL[at.rows_M, at.slots_M]
        for (_, t), good in zip(pairs, (logp_MV.argmax(1).cpu() == true_M).tolist(), strict=True):
            is_best[t] = good
    return is_best


def rounded(model: LanguageModel, kind: str) -> LanguageModel:
    """A copy whose weights have been through 16 bits, or through 8 (matrices, a scale per row; the rest in 16)."""
    other = copy.deepcopy(model)
    tensors = {name: _round(tensor, kind) for name, tensor in model.state_dict().items()}
    other.load_state_dict(tensors)
    return other.eval()


def _round(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    if kind != "int8":
        return tensor.to(getattr(torch, kind)).float()
    if tensor.dim() < 2:
        return tensor.half().float()
    scale = tensor.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
    return (tensor / scale).round().clamp(-127, 127) * scale
