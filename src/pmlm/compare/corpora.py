"""The texts of a comparison: where they come from, one vocabulary for all of them, and the corpora made of them."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pmlm.compare.protocol import RowTokens, tune_settings
from pmlm.compare.settings import CompareSettings
from pmlm.compare.texts import Lengths, length_model, sentence_rows, text_windows
from pmlm.corpus.documents import iter_documents, read_documents
from pmlm.corpus.framing import Row
from pmlm.corpus.prepare import PrepareSettings, prepare, read_ids
from pmlm.corpus.rows import RowStream
from pmlm.corpus.shards import Corpus, open_corpus
from pmlm.errors import DataError
from pmlm.keeping import locked, write_text
from pmlm.tokenizer import Tokenizer, load_tokenizer, train_on_sample

PACKED_ROWS = 512
"""So many rows say how many content tokens a packed row holds."""
PATIENCE = 0.5
"""Seconds between two looks at a lock."""


class Corpora:
    """`data`: the folder of source texts. `work`: where vocabulary and corpora are put."""

    def __init__(self, settings: CompareSettings, data: Path, work: Path, say: Callable[[str], None]) -> None:
        self.settings, self.data, self.work, self.say = settings, data, work, say

    # -- sources ----------------------------------------------------------------------------------------------------

    def source(self, name: str) -> Path:
        path = self.data / name
        if not path.exists():
            raise DataError(f"{path} is missing: give the folder that holds {name} by --data")
        return path

    def check_sources(self, names: Iterable[str]) -> None:
        """Of the settings' sources, by their names there."""
        for name in sorted(names):
            value = getattr(self.settings.sources, name)
            for path in (value,) if isinstance(value, str) else value:
                if path:
                    self.source(path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        folder = self.work / "tokenizer"
        if not (folder / "tokenizer.json").is_file():
            self.say("learning the vocabulary")
            texts = (d.text for name in self.settings.sources.pretrain for d in iter_documents(self.source(name)))
            folder.mkdir(parents=True, exist_ok=True)
            train_on_sample(texts, vocab_size=self.settings.vocab_size).save(folder)
        return load_tokenizer(folder)

    # -- to train on ------------------------------------------------------------------------------------------------

    def prepare(self, lock: Path) -> None:
        """Where another process is at it, when that one is done: there is little left to do then."""
        has_said = False
        while True:
            with locked(lock) as is_ours:
                if is_ours:
                    return self._prepare_all()
            if not has_said:
                self.say(f"waiting: another process is preparing {self.work}")
                has_said = True
            time.sleep(PATIENCE)

    def _prepare_all(self) -> None:
        sources = self.settings.sources
        drop = read_ids(self.source(sources.drop)) if sources.drop else []
        main = PrepareSettings(heldout=self.settings.heldout)
        test = self.source(sources.wikitext_test) if sources.protect else None
        protect = [] if test is None else read_documents(test, "wikitext")
        self._prepare([self.source(name) for name in sources.pretrain], "pretrain", main, drop, protect)
        wikitext = PrepareSettings(split="wikitext", heldout=0.05, min_chars=1)
        self._prepare([self.source(sources.wikitext_train)], "wikitext", wikitext)
        self.prepare_sentences()

    def prepare_sentences(self) -> None:
        path = self.work / "lm1b-train.txt"
        write_text(path, "\n".join(self.lessons) + "\n")
        self._prepare([path], "lm1b", PrepareSettings(split="lines", heldout=0.05, min_chars=1))

    def _prepare(
        self, paths: list[Path], name: str, settings: PrepareSettings, drop: Sequence[str] = (),
        protect: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.say(f"preparing {name}")
        prepare(paths, self.work / "corpora" / name, self.tokenizer, settings, drop_ids=drop, protect=protect)

    def corpus(self, name: str) -> Corpus:
        folder = self.work / "corpora" / name
        if not folder.is_dir():
            raise DataError(f"{folder} is missing: run the stage `prepare` first")
        return open_corpus(folder)

    # -- One Billion Words ------------------------------------------------------------------------------------------

    @cached_property
    def sentences(self) -> tuple[list[str], list[str]]:
        """To fine-tune on, and to measure, where they fit."""
        lines = read_documents(self.source(self.settings.sources.lm1b), "lines")
        cut = self.settings.sources.lm1b_train
        if len(lines) <= cut:
            raise DataError(
                f"{self.settings.sources.lm1b} has {len(lines)} sentences: lm1b_train leaves none to measure"
            )
        return lines[:cut], lines[cut:]

    @cached_property
    def _lesson_rows(self) -> list[Row]:
        return self._sentence_rows(self.sentences[0])

    def _sentence_rows(self, sentences: list[str]) -> list[Row]:
        return sentence_rows(sentences, self.tokenizer, self.settings.measure.sentence_context)

    @cached_property
    def lessons(self) -> list[str]:
        """The sentences to fine-tune on that fit, as those do that are measured. No row of one is cut."""
        return [self.sentences[0][row.document] for row in self._lesson_rows]

    @cached_property
    def lengths(self) -> Lengths:
        return length_model(self.lessons, self.tokenizer, self.settings.measure.sentence_context)

    @cached_property
    def row_tokens(self) -> RowTokens:
        """Of the sentences that are fine-tuned on."""
        rows = tune_settings(self.settings, self.settings.models[0], self.settings.seeds[0], "lm1b").rows
        packed = RowStream(self.corpus("lm1b"), rows, 0).take(PACKED_ROWS)
        return RowTokens(
            packed=sum(piece.stop - piece.start for row in packed for piece in row) / len(packed),
            own=sum(row.num_tokens for row in self._lesson_rows) / len(self._lesson_rows),
        )

    # -- to measure -------------------------------------------------------------------------------------------------

    @property
    def exam_sentences(self) -> list[Row]:
        """Those that fit."""
        return self._sentence_rows(self.sentences[1])

    @cached_property
    def exam_articles(self) -> list[str]:
        return read_documents(self.source(self.settings.sources.wikitext_test), "wikitext")

    @property
    def exam_windows(self) -> list[Row]:
        return text_windows(self.exam_articles, self.tokenizer, self.settings.measure.context)
