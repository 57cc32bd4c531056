"""What requests and answers look like. How a text is written is read off `FillOptions`: one table for all doors.

Types are strict here; what the values mean is checked where the library checks it, with its words.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Strict, create_model

from pmlm.options import FillOptions
from pmlm.orders import Order
from pmlm.serve.limits import (
    MOST_CHARACTERS,
    MOST_ITEMS,
    MOST_OPTION_CHARACTERS,
    MOST_SPANS,
    MOST_WORD_CHARACTERS,
    MOST_WORDS,
)
from pmlm.writer import MOST_ATTEMPTS

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_HELP = {
    "order": "l2r, r2l, random, nearest, confidence, margin, entropy, or a list of positions.",
    "visibility": "One that the model was trained for; without it, its default.",
    "temperature": "0 takes the likeliest, 1 draws from the model's own distribution; without it, as the model has it.",
    "top_k": "Draw from this many of the likeliest.",
    "top_p": "Draw from the likeliest with this much probability.",
    "min_p": "Draw from what is this share as likely as the likeliest.",
    "repetition_penalty": "Above 1: less of what the text already has.",
    "whole_words": "Leave no word half-written.",
    "ban": "Words that must not be written.",
    "must": "Words that must appear; the model chooses where.",
    "num_words": "How many words the whole text has.",
    "num_tokens": "How many tokens the whole text has, what is given included; the template leaves a length open.",
    "parallel": "confidence:P, entropy:G or count:N: several tokens a pass. Approximate.",
    "approximate_cache": "Bidirectional: keep keys and values, made anew every so many passes. Approximate.",
    "speculative": "Order-causal, fixed orders: draft so many tokens and verify them. Exact in distribution.",
    "particles": "Left to right: so many texts side by side, weighed by how they read with what is given. Approximate.",
    "written": "Positions and tokens that come first, in this order; the text goes on from there.",
}
_WHICH = "Which of the n times best_of texts that the request has written, from 0; `seeds` has its seed."


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


def _bounded(hint: Any) -> Any:
    """A type as JSON has it, with bounds on what is long."""
    if hint is str:
        return Annotated[str, Field(max_length=MOST_OPTION_CHARACTERS)]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Sequence or (isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple):
        if inner[0] is str:
            word = Annotated[str, Field(max_length=MOST_WORD_CHARACTERS)]
            return Annotated[list[word], Field(max_length=MOST_WORDS)]
        return Annotated[list[_bounded(inner[0])], Field(max_length=MOST_ITEMS)]  # type: ignore[misc]
    if origin is tuple:
        return Annotated[tuple[tuple(_bounded(part) for part in inner)], Strict(False)]  # type: ignore[misc]
    if inner:
        return Union[tuple(_bounded(part) for part in inner if part is not Order)]  # noqa: UP007
    return hint


def _option(name: str, hint: Any) -> tuple[Any, Any]:
    return (_bounded(hint), Field(default=None, description=_HELP.get(name, "See `pmlm generate --help`.")))


Options: type[_Strict] = create_model(
    "Options", __base__=_Strict, **{name: _option(name, hint) for name, hint in get_type_hints(FillOptions).items()}
)  # type: ignore[call-overload]
"""The options of `pmlm generate`; what is left out is as the library has it."""


class _Model(_Strict):
    model: Annotated[
        str | None,
        Field(max_length=200, description="One of /v1/models; without it, the first that can be asked here."),
    ] = None


class _Asked(Options, _Model):  # type: ignore[valid-type,misc]
    """Options with a model; `options()` are those that were given."""

    def options(self) -> FillOptions:
        names = self.model_fields_set & FillOptions.__annotations__.keys()
        return {name: getattr(self, name) for name in names}  # type: ignore[return-value]


class GenerateRequest(_Asked):
    """As `pmlm generate`: a template, or words with a length."""

    template: Annotated[
        Text | None,
        Field(
            description="Text with blanks: [MASK], [MASK:20], ___ for a word.",
            examples=["Tom is a cat and Jerry is a [MASK]. [MASK:8]"],
        ),
    ] = None
    words: Annotated[Text | None, Field(description="Instead: words to scatter, in order, over `length`.")] = None
    length: Annotated[int | None, Field(description="Tokens of the canvas for `words`.")] = None
    n: Annotated[int, Field(description="How many texts are answered, from seeds that follow each other.")] = 1
    best_of: Annotated[
        int, Field(description="For each text, write so many and keep the likeliest; n times so many are written.")
    ] = 1
    seed: Annotated[Seed | None, Field(description="Without it one is drawn, and said.")] = None


class CandidatesRequest(_Asked):
    """A canvas with what is `written` on it, and a hidden position."""

    template: Annotated[Text, Field(examples=["Tom is a [MASK]."])]
    position: Annotated[int, Field(description="Counts the tokens from 0.", examples=[3])]
    count: Annotated[int, Field(le=1000, description="How many candidates.")] = 10
    seed: Annotated[Seed, Field(description="Matters where the template leaves the length of a word open.")] = 0


class ScoreRequest(_Model):
    """As `pmlm score`."""

    text: Annotated[Text, Field(examples=["Tom is a cat and Jerry is a mouse."])]
    order: Annotated[
        Annotated[str, Field(max_length=MOST_OPTION_CHARACTERS)] | Annotated[list[int], Field(max_length=MOST_ITEMS)],
        Field(description=_HELP["order"]),
    ] = "l2r"
    seed: Seed = 0
    visibility: Annotated[str | None, Field(max_length=40, description=_HELP["visibility"])] = None
    given: Annotated[Text | None, Field(description="A template: only what stands in its blanks is scored.")] = None


class FillMaskRequest(_Model):
    """The likeliest tokens at each [MASK], as Hugging Face's pipeline gives them."""

    template: Annotated[Text, Field(examples=["Tom is a [MASK]."])]
    top_k: Annotated[int, Field(le=1000)] = 5
    targets: Annotated[
        list[Annotated[str, Field(max_length=MOST_WORD_CHARACTERS)]] | None, Field(max_length=MOST_WORDS)
    ] = None
    visibility: Annotated[str | None, Field(max_length=40, description=_HELP["visibility"])] = None


class ClassifyRequest(_Model):
    """As `pmlm classify`: a text or a pair, or a batch of them."""

    texts: Annotated[
        list[Text] | None,
        Field(max_length=2, description="A text; two for a task of pairs.", examples=[["a warm and funny film"]]),
    ] = None
    batch: Annotated[
        list[Annotated[list[Text], Field(max_length=2)]] | None,
        Field(max_length=MOST_ITEMS, description="Instead: several, each as `texts`."),
    ] = None
    task: Annotated[str | None, Field(max_length=200, description="Which head, where the model has several.")] = None


class AnswerRequest(_Model):
    """As `pmlm answer`: a question and the text that may answer it, or a batch of both."""

    question: Annotated[Text | None, Field(examples=["Who is a mouse?"])] = None
    context: Annotated[Text | None, Field(examples=["Tom is a cat and Jerry is a mouse."])] = None
    batch: Annotated[
        list[Annotated[tuple[Text, Text], Strict(False)]] | None,
        Field(max_length=MOST_ITEMS, description="Instead: several, each a list of a question and a context."),
    ] = None
    num: Annotated[int, Field(le=MOST_SPANS, description="How many spans to list.")] = 3
    threshold: Annotated[float | None, Field(description="Answer less below it. Without it: the one found on dev.")] = (
        None
    )


class Problem(BaseModel):
    error: Annotated[str, Field(description="One line, as the command line says it.")]


class FilledText(BaseModel):
    text: str
    template: str
    tokens: list[str]
    order: Annotated[list[int], Field(description="Positions of what was written, in the order of writing.")]
    logp: Annotated[list[float], Field(description="The model's own, of the token written t-th.")]
    sampled_logp: Annotated[list[float], Field(description="The sampler's; 0 for what was `written` before.")]
    nll: float
    seed: int
    visibility: str
    passes: Annotated[int, Field(description="Passes of the model that the text took.")]
    approximate: Annotated[
        list[str],
        Field(description="Shortcuts for whose sake the text does not follow the model's own distribution."),
    ]
    attempts: Annotated[int, Field(description="How often the text was begun: anew where constraints left no way.")]
    best_of: Annotated[int, Field(description="Of how many texts it is the likeliest.")]


class FilledTexts(BaseModel):
    results: list[FilledText]


class ScoredText(BaseModel):
    text: str
    tokens: list[str]
    order: list[int]
    logp: Annotated[list[float | None], Field(description="Of each token; null where it was given.")]
    nll: float
    perplexity: float
    bits_per_byte: float
    bytes: int
    seed: int
    visibility: str


class Candidate(BaseModel):
    score: Annotated[float, Field(description="The model's probability.")]
    token: int
    token_str: str


class Guess(Candidate):
    sequence: str


class Candidates(BaseModel):
    position: int
    candidates: list[Candidate]


class ClassifiedText(BaseModel):
    """Of a task of classes."""

    texts: list[str]
    task: str
    label: str
    prob: Annotated[float, Field(description="Of the label.")]
    probs: dict[str, float]


class RatedText(BaseModel):
    """Of a task that asks for a number."""

    texts: list[str]
    task: str
    value: float


class ClassifiedTexts(BaseModel):
    results: list[ClassifiedText | RatedText]


class AnswerSpan(BaseModel):
    text: str
    start: Annotated[int, Field(description="Characters of the context.")]
    end: int
    prob: Annotated[float, Field(description="Among the spans that are listed and no answer.")]


class AnsweredQuestion(BaseModel):
    question: str
    answer: Annotated[str | None, Field(description="A stretch of the context; null where it does not answer.")]
    no_answer: Annotated[
        float | None,
        Field(description='How much "no answer" scores above the best span; null where there is no span at all.'),
    ]
    threshold: float
    spans: list[AnswerSpan]


class AnsweredQuestions(BaseModel):
    results: list[AnsweredQuestion]


class TaskAbout(BaseModel):
    name: str
    kind: Annotated[str, Field(description="classes, number or span.")]
    texts: Annotated[int, Field(description="How many it reads at a time; of a span, the question and its context.")]
    labels: list[str]


class ModelAbout(BaseModel):
    name: str
    endpoints: Annotated[list[str], Field(description="What can be asked of it.")]
    packaged: Annotated[
        bool, Field(description="The one that commands need not name: inside the package, or what PMLM_MODEL names.")
    ]
    tasks: Annotated[list[TaskAbout], Field(description="What it was fine-tuned for.")]
    parameters: int
    layers: int
    width: int
    heads: int
    positions: str
    norm: str
    max_length: int
    visibilities: Annotated[list[str], Field(description="The first is the default.")]
    vocabulary: dict[str, int | str]
    sampling: Annotated[
        dict[str, float | int],
        Field(description="How its texts are drawn where a request does not say: temperature, …."),
    ]


class Models(BaseModel):
    models: list[ModelAbout]


class Health(BaseModel):
    status: str


class StepEvent(BaseModel):
    """Data of a `step` event."""

    text: Annotated[int, Field(description=_WHICH)]
    step: int
    of: int
    position: int
    token: str
    logp: float
    sampled_logp: float


class DraftEvent(BaseModel):
    """Data of the first event, `draft`: each text before anything is written."""

    drafts: Annotated[list[list[str | None]], Field(description="Tokens; null where something will be written.")]
    templates: Annotated[
        list[str], Field(description="As they are filled: words placed, every blank with its number of tokens.")
    ]
    seeds: Annotated[list[int], Field(description="Of each text; those of one choice by best_of follow each other.")]


class RestartEvent(BaseModel):
    """Data of a `restart` event: constraints drove a text into a corner, it is begun anew and its steps from 1."""

    text: Annotated[int, Field(description=_WHICH)]
    attempt: Annotated[int, Field(description=f"2, 3, … of at most {MOST_ATTEMPTS}.")]
    draft: Annotated[list[str | None], Field(description="Tokens; null where something will be written.")]
    template: str
