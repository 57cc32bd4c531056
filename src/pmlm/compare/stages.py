"""The stages of a comparison. Each unit of work leaves one JSON file and is not done again once that is there.

Units are locked, so that several processes can share the work; what is not ready for one of them is left to another.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from pmlm.compare.arms import ARMS
from pmlm.compare.protocol import arm_settings, tune_settings
from pmlm.compare.records import Record, once, read_record
from pmlm.compare.settings import CompareSettings
from pmlm.compare.texts import Lengths, length_model, sentence_figures, sentence_rows, text_windows, window_figures
from pmlm.config import to_dict
from pmlm.corpus.documents import iter_documents, read_documents
from pmlm.corpus.prepare import PrepareSettings, prepare, read_ids
from pmlm.corpus.shards import Corpus, open_corpus
from pmlm.errors import DataError, TrainingDiverged
from pmlm.evaluation import Bar, no_bar
from pmlm.keeping import locked, write_text
from pmlm.lm import LM, load
from pmlm.nlu.finetuned import load_start
from pmlm.nlu.glue import load_glue
from pmlm.nlu.glue_study import GlueStudy
from pmlm.nlu.tasks import find_tasks
from pmlm.tokenizer import Tokenizer, load_tokenizer, train_on_sample
from pmlm.training.loop import MODEL, read_metrics
from pmlm.training.run import Run
from pmlm.training.settings import TrainSettings

STAGES = ("prepare", "pretrain", "evaluate", "tune", "padding", "samples", "probe")
ANCHORS = ("Tom is a cat and Jerry is a mouse.", "Tom and Jerry become good friends in the end.")
"""The paper's demonstration (Appendix B)."""
SAMPLED = ("u-pmlm-a", "u-pmlm-r", "bert-a", "bert-r", "gpt-a")
BETWEEN = 60
"""Tokens between the anchors."""

Drive = Callable[[Any], None]
"""Takes a run from where it is to its end; raises KeyboardInterrupt where it is stopped before."""


class Comparison:
    """`data`: the folder of source texts. `work`: corpora and runs. `out`: results, to keep."""

    def __init__(
        self, settings: CompareSettings, data: Path, work: Path, out: Path, *, device: torch.device, drive: Drive,
        say: Callable[[str], None] = lambda _line: None, bar: Bar = no_bar,
    ) -> None:  # fmt: skip
        self.settings, self.data, self.work, self.out = settings, data, work, out
        self.device, self.drive, self.say, self.bar = device, drive, say, bar

        self.failed: list[str] = []
        """Units whose training diverged."""

    def run(self, stages: tuple[str, ...]) -> None:
        """Several processes may do this at once: each takes what no other is at."""
        for stage in STAGES:
            if stage in stages:
                getattr(self, stage)()
        if self.failed:
            raise TrainingDiverged(f"the training of {', '.join(self.failed)} diverged; all else is done")

    # -- texts ------------------------------------------------------------------------------------------------------

    def source(self, name: str) -> Path:
        path = self.data / name
        if not path.exists():
            raise DataError(f"{path} is missing: give the folder that holds {name} by --data")
        return path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        folder = self.work / "tokenizer"
        if not (folder / "tokenizer.json").is_file():
            self.say("learning the vocabulary")
            texts = (d.text for name in self.settings.sources.pretrain for d in iter_documents(self.source(name)))
            folder.mkdir(parents=True, exist_ok=True)
            train_on_sample(texts, vocab_size=self.settings.vocab_size).save(folder)
        return load_tokenizer(folder)

    def prepare(self) -> None:
        with locked(self._lock("prepare")) as is_ours:
            if not is_ours:
                raise DataError(f"another process is preparing {self.work}: start this one when it is done")
            self._prepare_all()

    def _prepare_all(self) -> None:
        sources = self.settings.sources
        drop = read_ids(self.source(sources.drop)) if sources.drop else []
        main = PrepareSettings(heldout=self.settings.heldout)
        self._prepare([self.source(name) for name in sources.pretrain], "pretrain", main, drop)
        wikitext = PrepareSettings(split="wikitext", heldout=0.05, min_chars=1)
        self._prepare([self.source(sources.wikitext_train)], "wikitext", wikitext)
        sentences = self.work / "lm1b-train.txt"
        write_text(sentences, "\n".join(self.sentences[0]) + "\n")
        self._prepare([sentences], "lm1b", PrepareSettings(split="lines", heldout=0.05, min_chars=1))

    def _prepare(self, paths: list[Path], name: str, settings: PrepareSettings, drop: list[str] | None = None) -> None:
        self.say(f"preparing {name}")
        prepare(paths, self.work / "corpora" / name, self.tokenizer, settings, drop_ids=drop or [])

    def corpus(self, name: str) -> Corpus:
        folder = self.work / "corpora" / name
        if not folder.is_dir():
            raise DataError(f"{folder} is missing: run the stage `prepare` first")
        return open_corpus(folder)

    @cached_property
    def sentences(self) -> tuple[list[str], list[str]]:
        """Of LM1B: to fine-tune on, and to measure."""
        lines = read_documents(self.source(self.settings.sources.lm1b), "lines")
        cut = self.settings.sources.lm1b_train
        if len(lines) <= cut:
            raise DataError(
                f"{self.settings.sources.lm1b} has {len(lines)} sentences: lm1b_train leaves none to measure"
            )
        return lines[:cut], lines[cut:]

    @cached_property
    def lengths(self) -> Lengths:
        context = self.settings.measure.sentence_context
        return length_model(self.sentences[0], self.tokenizer, context)

    # -- models -----------------------------------------------------------------------------------------------------

    def pretrain(self) -> None:
        for name, seed in self.settings.pretrained():
            run = arm_settings(self.settings, name, seed)
            self._once("pretrain", run.name, partial(self._trained, run, "pretrain"), name, seed, {"run": run})

    def _trained(self, settings: TrainSettings, corpus: str, init_from: LM | None = None) -> Record:
        """Train to the end, from where it was left; what was trained, for how long, and how it went."""
        self.say(f"training {settings.name}")
        folder = self.work / "runs" / settings.name
        run = Run(settings, self.corpus(corpus), folder, device=self.device, init_from=init_from)
        run.resume()
        if not run.has_ended:
            self.drive(run)
        return {
            "parameters": run.model.num_parameters(),
            "tokens": run.job.tokens(),
            **_history(folder),
        }

    def model_folder(self, run: str) -> Path:
        folder = self.work / "runs" / run / MODEL
        if not folder.is_dir():
            raise DataError(f"{folder} is missing: run the stages before this one first")
        return folder

    def model(self, run: str) -> LM:
        return load(self.model_folder(run), device=str(self.device))

    def _pretrained(self, name: str, seed: int) -> LM:
        return self.model(arm_settings(self.settings, name, seed).name)

    def _is_trained(self, name: str, seed: int) -> bool:
        """To the end: a folder with a model may be of a run that is on its way, or was stopped."""
        run = arm_settings(self.settings, name, seed).name
        if is_there := (self.out / "pretrain" / f"{run}.json").is_file():
            self.model_folder(run)
        return is_there

    def _once(
        self, stage: str, unit: str, make: Callable[[], Record], name: str, seed: int, settings: Mapping[str, Any]
    ) -> None:
        """One unit of work under these settings, which go into its record."""
        if stage != "pretrain" and not self._is_trained(name, seed):
            self.say(f"{stage}: {unit} has to wait, {name} is not trained to the end")
            return
        about = {"model": name, "title": ARMS[name].title, "seed": seed, "scale": self.settings.scale}
        plain = {key: to_dict(value) for key, value in settings.items()}
        path = self.out / stage / f"{unit}.json"
        was_there = path.is_file()
        try:
            record = once(path, plain, lambda: {**about, **make()}, self._lock(f"{stage}-{unit}"))
        except TrainingDiverged as error:
            self.say(f"{stage}: {unit} failed: {error}")
            self.failed.append(unit)
            return
        if record is None:
            self.say(f"{stage}: another process is at {unit}")
        elif not was_there:
            self.say(f"{stage}: {unit} is done; {self._outlook(stage)}")

    def _outlook(self, stage: str) -> str:
        """How much of a stage is done and how long the rest would take one process."""
        done = [read_record(path) for path in (self.out / stage).glob("*.json")]
        left = max(0, self.units(stage) - len(done))
        minutes = left * sum(record["made"]["seconds"] for record in done) / len(done) / 60
        return f"{len(done)} of {len(done) + left}, about {minutes:.0f} min left in this stage"

    def units(self, stage: str) -> int:
        """How many records a stage makes."""
        tables, models = len(self.settings.tabulated()), self.settings.models
        padded = sum(len(packings) for name, packings in self._paddings().items() if name in models)
        probed = 0 if not self.settings.sources.glue else len(self._probed_models())
        return {
            "pretrain": len(self.settings.pretrained()), "perplexity": tables, "tuned": 2 * tables, "padding": padded,
            "samples": sum(name in models for name in SAMPLED), "probes": probed,
        }[stage]  # fmt: skip

    def _lock(self, unit: str) -> Path:
        return self.work / "locks" / unit

    # -- figures ----------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        for name, seed in self.settings.tabulated():
            run, measure = arm_settings(self.settings, name, seed), self.settings.measure
            make = partial(self._evaluated, run)
            self._once("perplexity", f"{name}-seed-{seed}", make, name, seed, {"run": run, "measure": measure})

    def _evaluated(self, run: TrainSettings) -> Record:
        trained = read_record(self.out / "pretrain" / f"{run.name}.json")
        return {"tokens": trained["tokens"], **self._figures(run.name, ("wikitext", "lm1b"))}

    def _figures(self, run: str, corpora: tuple[str, ...], packing: str = "packed", *, orders: bool = True) -> Record:
        """`orders`: with the bound over orders."""
        self.say(f"measuring {run} on {' and '.join(corpora)}")
        lm, measure, report = self.model(run), self.settings.measure, {}
        if "wikitext" in corpora:
            documents = read_documents(self.source(self.settings.sources.wikitext_test), "wikitext")
            rows = text_windows(documents, self.tokenizer, measure.context)
            words = [word for text in documents for word in text.split()]
            importance = (measure.importance_windows, measure.importance_orders) if orders else (0, 0)
            figures = window_figures(
                lm, rows, exact=measure.exact, bound=measure.bound, importance=importance, bar=self.bar
            )
            report["wikitext"] = {
                "context": measure.context,
                "windows": len(rows),
                "unk_words": words.count("<unk>") / len(words),
                **figures,
            }
        if "lm1b" in corpora:
            rows = sentence_rows(self.sentences[1], self.tokenizer, measure.sentence_context)
            report["lm1b"] = {
                "context": measure.sentence_context,
                "sentences": len(self.sentences[1]),
                "fitting": len(rows),
                **sentence_figures(
                    lm,
                    rows,
                    self.lengths,
                    exact=measure.exact_sentences,
                    packing=packing,
                    context=measure.sentence_context,
                    bar=self.bar,
                ),
            }
        return report

    def tune(self) -> None:
        for name, seed in self.settings.tabulated():
            for corpus in ("wikitext", "lm1b"):
                run = tune_settings(self.settings, name, seed, corpus)
                make = partial(self._tuned, run, name, seed, corpus)
                unit, settings = _tuned_unit(name, seed, corpus), {"run": run, "measure": self.settings.measure}
                self._once("tuned", unit, make, name, seed, settings)

    def _tuned(self, run: TrainSettings, name: str, seed: int, corpus: str, packing: str = "packed") -> Record:
        training = self._trained(run, corpus, self._pretrained(name, seed))
        figures = self._figures(run.name, (corpus,), packing, orders=False)
        return {"corpus": corpus, "packing": packing, "training": training, **figures}

    def padding(self) -> None:
        seed = self.settings.seeds[0]
        rows = sentence_rows(self.sentences[0], self.tokenizer, self.settings.measure.sentence_context)
        row_tokens = sum(row.num_tokens for row in rows) / len(rows)
        for name, packings in self._paddings().items():
            for packing in packings if name in self.settings.models else ():
                run = tune_settings(self.settings, name, seed, "lm1b", packing, row_tokens)
                make = partial(self._tuned, run, name, seed, "lm1b", packing)
                if packing == "packed":  # that is how all are tuned
                    done = self.out / "tuned" / f"{_tuned_unit(name, seed, 'lm1b')}.json"
                    if not done.is_file():
                        self.say(f"padding: {name}-{packing} has to wait, the stage `tune` makes it")
                        continue
                    make = partial(read_record, done)
                self._once(
                    "padding", f"{name}-{packing}", make, name, seed, {"run": run, "measure": self.settings.measure}
                )

    def _paddings(self) -> dict[str, tuple[str, ...]]:
        ways = self.settings.padding
        return {"gpt-a": ("packed", "padded"), "u-pmlm-a": ways, "u-pmlm-r": ways}

    def samples(self) -> None:
        seed = self.settings.seeds[0]
        for name in SAMPLED:
            if name in self.settings.models:
                run = arm_settings(self.settings, name, seed)
                self._once("samples", name, partial(self._samples, name, seed), name, seed, {"run": run})

    def _samples(self, name: str, seed: int) -> Record:
        lm = self._pretrained(name, seed)
        room = lm.model.config.max_length - 2 - sum(len(self.tokenizer.encode(text)) for text in ANCHORS)
        blank = f"[MASK:{min(BETWEEN, room)}]"
        template = f"{ANCHORS[0]} {blank}" if name == "gpt-a" else f"{ANCHORS[0]} {blank} {ANCHORS[1]}"
        order = "l2r" if name == "gpt-a" else "random"
        texts = [lm.fill(template, order=order, seed=s).text for s in self.settings.sample_seeds]
        return {"template": template, "order": order, "seeds": list(self.settings.sample_seeds), "texts": texts}

    def probe(self) -> None:
        """Frozen-backbone probes of the models that differ in the prior."""
        if not self.settings.sources.glue:
            return
        seed = self.settings.seeds[0]
        for name in self._probed_models():
            settings = {"run": arm_settings(self.settings, name, seed), "probe": self.settings.probe}
            self._once("probes", name, partial(self._probed, name, seed), name, seed, settings)

    def _probed_models(self) -> list[str]:
        there = (*self.settings.models, *self.settings.priors)
        return [name for name in dict.fromkeys(("bert-r", "u-pmlm-r", *self.settings.priors)) if name in there]

    def _probed(self, name: str, seed: int) -> Record:
        self.say(f"probing {name}")
        run = arm_settings(self.settings, name, seed).name
        start = load_start(self.model_folder(run))
        data = [load_glue(task, self.source(self.settings.sources.glue)) for task in find_tasks(self.settings.probes)]
        study = GlueStudy(start, self.settings.probe, self.work / "probes" / name, self.device)
        return {"probe": study.run(data, drive=self.drive)}


def _tuned_unit(name: str, seed: int, corpus: str) -> str:
    return f"{name}-seed-{seed}-{corpus}"


def _history(run: Path) -> Record:
    """Seconds of training and the held-out curve, from a run's log."""
    seconds, tokens, curve = 0.0, 0, []
    for record in read_metrics(run):
        if record["kind"] == "step":
            seconds, tokens = seconds + record["seconds"], record["tokens"]
        elif record["kind"] == "evaluation":
            curve.append({"tokens": tokens, "seconds": round(seconds, 1), "bits_per_byte": record["bits_per_byte"]})
    return {"training_seconds": round(seconds, 1), "curve": curve}
