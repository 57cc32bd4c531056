"""SQuAD's questions, from its own JSON (1.1 or 2.0) or from plain lists of question, context and answer.

A question without answers is one that its paragraph does not answer. Splits go by article, never by question: the
questions of a paragraph share its text.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmlm.corpus.documents import read_text
from pmlm.errors import DataError
from pmlm.runtime import stream_seed

PUBLISHED_TRAIN, PUBLISHED_DEV = 130_319, 11_873
"""Questions of SQuAD 2.0: what the full protocol has."""


@dataclass(frozen=True)
class Answer:
    text: str
    start: int
    """The character of the context at which it begins."""


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    title: str = ""
    """The article's, where the file says it."""

    @property
    def golds(self) -> list[str]:
        return [answer.text for answer in self.answers]


@dataclass(frozen=True)
class Questions:
    questions: list[Question]
    broken: int = 0
    """Left out: an answer does not stand where the file says."""


def read_squad(path: Path) -> Questions:
    text = read_text(path)
    try:
        found = list(_questions(text, str(path)))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no SQuAD file: {type(error).__name__} {error}") from None
    kept: dict[str, Question] = {}
    for question in found:
        if question is not None and kept.setdefault(question.id, question) != question:
            raise DataError(f"{path} has two questions with the id {question.id!r}")
    if not kept:
        raise DataError(f"{path} holds no questions")
    return Questions(list(kept.values()), sum(question is None for question in found))


def _questions(text: str, where: str) -> Iterator[Question | None]:
    document = _parse(text, where)
    if isinstance(document, dict):
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    yield _official(qa, paragraph["context"], article.get("title", ""))
        return
    for record in document:
        for qa in record.get("qas", [record]):
            yield _located(qa["question"], record["context"], qa["answer"])


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is neither JSON nor JSON lines: {error}") from None


def _official(qa: dict[str, Any], context: str, title: str) -> Question | None:
    given = [] if qa.get("is_impossible") else qa["answers"]
    answers = tuple(Answer(a["text"], a["answer_start"]) for a in given)
    if any(context[a.start : a.start + len(a.text)] != a.text or not a.text for a in answers):
        return None
    return Question(str(qa["id"]), qa["question"], context, answers, title)


def _located(text: str, context: str, answer: str) -> Question | None:
    """A file without places: the first occurrence."""
    at = context.find(answer) if answer else -1
    key = hashlib.blake2b(f"{context}\x1f{text}\x1f{answer}".encode(), digest_size=12).hexdigest()
    return None if at < 0 else Question(key, text, context, (Answer(answer, at),))


def split_by_article(questions: Iterable[Question], train_share: float) -> tuple[list[Question], list[Question]]:
    """Whole articles to train on and to measure on; which is which follows from the titles alone."""
    every = list(questions)
    titles = sorted({q.title for q in every}, key=lambda title: stream_seed("article", title))
    if len(titles) < 2:
        raise DataError("a split by article needs at least two articles with titles")
    chosen = set(titles[: min(max(round(train_share * len(titles)), 1), len(titles) - 1)])
    return [q for q in every if q.title in chosen], [q for q in every if q.title not in chosen]


def without_shared(train: Iterable[Question], dev: Iterable[Question]) -> tuple[list[Question], int]:
    """The training questions that share neither an article nor a paragraph with dev; how many were left out."""
    held = list(dev)
    titles, paragraphs = {q.title for q in held if q.title}, {_plain(q.context) for q in held}
    every = list(train)
    kept = [q for q in every if q.title not in titles and _plain(q.context) not in paragraphs]
    return kept, len(every) - len(kept)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
