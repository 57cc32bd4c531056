"""GLUE (Wang et al. 2018) as data: one row per task with its files, columns, labels, metrics and published sizes.

Labels stand in the order of the model's outputs; the leaderboard wants them as they are written in the files. Of a
task whose positive class is counted by F1, that class is the last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pmlm.errors import ConfigError
from pmlm.model import HeadSpec, Pooling

Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    name: str
    texts: tuple[str, ...]
    """Columns of the one or two texts."""
    label: str
    labels: tuple[str, ...] = ()
    """As the files write them; none: a number."""
    says: tuple[str, ...] = ()
    """The same for people, where the files write digits."""
    metrics: tuple[Metric, ...]
    train: tuple[str, ...]
    """Files in the order of preference, below the data folder; each may also end in .xz."""
    dev: Mapping[str, tuple[str, ...]]
    """By the name that its scores are reported under."""
    test: Mapping[str, tuple[str, ...]]
    """By the name in the leaderboard's zip."""
    headless: tuple[str, ...] = ()
    """Columns of files that come without a header."""
    sizes: Mapping[str, int]
    """Published number of examples by split: what a complete file has."""
    hub: str
    """Its name among the `glue` sets of the `datasets` library."""
    hub_texts: tuple[str, ...] = ()
    """Columns there, where they differ."""
    scale: tuple[float, float] = (0.0, 5.0)

    @property
    def is_number(self) -> bool:
        return not self.labels

    def head(self, pooling: Pooling, *, linear: bool = False) -> HeadSpec:
        low, high = self.scale if self.is_number else (0.0, 0.0)
        return HeadSpec(
            name=self.name,
            kind="number" if self.is_number else "classes",
            labels=self.says or self.labels,
            is_pair=len(self.texts) == 2,
            pooling=pooling,
            linear=linear,
            low=low,
            high=high,
        )


def _plain(folder: str, split: str) -> tuple[str, ...]:
    return (f"{folder}/{split}.tsv",)


_NLI = ("entailment", "neutral", "contradiction")
_BINARY_NLI = ("entailment", "not_entailment")
_PARAPHRASE = ("different", "equivalent")

TASKS: tuple[GlueTask, ...] = (
    GlueTask(
        name="CoLA",
        texts=("sentence",),
        label="label",
        labels=("0", "1"),
        says=("unacceptable", "acceptable"),
        metrics=("matthews",),
        train=_plain("CoLA", "train"),
        dev={"CoLA": _plain("CoLA", "dev")},
        test={"CoLA": _plain("CoLA", "test")},
        headless=("source", "label", "mark", "sentence"),
        sizes={"train": 8551, "CoLA dev": 1043, "CoLA test": 1063},
        hub="cola",
    ),
    GlueTask(
        name="SST-2",
        texts=("sentence",),
        label="label",
        labels=("0", "1"),
        says=("negative", "positive"),
        metrics=("accuracy",),
        train=_plain("SST-2", "train"),
        dev={"SST-2": _plain("SST-2", "dev")},
        test={"SST-2": _plain("SST-2", "test")},
        sizes={"train": 67349, "SST-2 dev": 872, "SST-2 test": 1821},
        hub="sst2",
    ),
    GlueTask(
        name="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        labels=("0", "1"),
        says=_PARAPHRASE,
        metrics=("f1", "accuracy"),
        train=("MRPC/train_rebuilt_3668.tsv", "MRPC/train.tsv"),
        dev={"MRPC": _plain("MRPC", "dev")},
        test={"MRPC": _plain("MRPC", "test")},
        sizes={"train": 3668, "MRPC dev": 408, "MRPC test": 1725},
        hub="mrpc",
        hub_texts=("sentence1", "sentence2"),
    ),
    GlueTask(
        name="STS-B",
        texts=("sentence1", "sentence2"),
        label="score",
        metrics=("pearson", "spearman"),
        train=_plain("STS-B", "train"),
        dev={"STS-B": _plain("STS-B", "dev")},
        test={"STS-B": _plain("STS-B", "test")},
        sizes={"train": 5749, "STS-B dev": 1500, "STS-B test": 1379},
        hub="stsb",
    ),
    GlueTask(
        name="QQP",
        texts=("question1", "question2"),
        label="is_duplicate",
        labels=("0", "1"),
        says=_PARAPHRASE,
        metrics=("f1", "accuracy"),
        train=_plain("QQP", "train"),
        dev={"QQP": _plain("QQP", "dev")},
        test={"QQP": _plain("QQP", "test")},
        headless=("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        sizes={"train": 363846, "QQP dev": 40430, "QQP test": 390965},
        hub="qqp",
    ),
    GlueTask(
        name="MNLI",
        texts=("sentence1", "sentence2"),
        label="gold_label",
        labels=_NLI,
        metrics=("accuracy",),
        train=_plain("MNLI", "train"),
        dev={"MNLI-m": _plain("MNLI", "dev_matched"), "MNLI-mm": _plain("MNLI", "dev_mismatched")},
        test={
            "MNLI-m": _plain("MNLI", "test_matched"),
            "MNLI-mm": _plain("MNLI", "test_mismatched"),
            "AX": ("diagnostic/diagnostic.tsv", "MNLI/diagnostic.tsv", "AX/diagnostic.tsv"),
        },
        sizes={
            "train": 392702,
            "MNLI-m dev": 9815,
            "MNLI-mm dev": 9832,
            "MNLI-m test": 9796,
            "MNLI-mm test": 9847,
            "AX test": 1104,
        },
        hub="mnli",
        hub_texts=("premise", "hypothesis"),
    ),
    GlueTask(
        name="QNLI",
        texts=("question", "sentence"),
        label="label",
        labels=_BINARY_NLI,
        metrics=("accuracy",),
        train=_plain("QNLI", "train"),
        dev={"QNLI": _plain("QNLI", "dev")},
        test={"QNLI": _plain("QNLI", "test")},
        sizes={"train": 104743, "QNLI dev": 5463, "QNLI test": 5463},
        hub="qnli",
    ),
    GlueTask(
        name="RTE",
        texts=("sentence1", "sentence2"),
        label="label",
        labels=_BINARY_NLI,
        metrics=("accuracy",),
        train=_plain("RTE", "train"),
        dev={"RTE": _plain("RTE", "dev")},
        test={"RTE": _plain("RTE", "test")},
        sizes={"train": 2490, "RTE dev": 277, "RTE test": 3000},
        hub="rte",
    ),
    GlueTask(
        name="WNLI",
        texts=("sentence1", "sentence2"),
        label="label",
        labels=("0", "1"),
        says=("not_entailment", "entailment"),
        metrics=("accuracy",),
        train=_plain("WNLI", "train"),
        dev={"WNLI": _plain("WNLI", "dev")},
        test={"WNLI": _plain("WNLI", "test")},
        sizes={"train": 635, "WNLI dev": 71, "WNLI test": 146},
        hub="wnli",
    ),
)

SUBMISSION_NAMES = tuple(name for task in TASKS for name in task.test)
"""The files that a complete submission has."""


def find_tasks(names: Sequence[str]) -> list[GlueTask]:
    """Tasks by name, in any spelling of case and hyphens; `all` is every task."""
    known = {_key(task.name): task for task in TASKS}
    if "all" in map(_key, names):
        return list(TASKS)
    if unknown := [name for name in names if _key(name) not in known]:
        raise ConfigError(f"no GLUE task {unknown[0]!r}. Known: {', '.join(task.name for task in TASKS)}.")
    if not names:
        raise ConfigError("no task was named")
    return [known[key] for key in dict.fromkeys(map(_key, names))]


def _key(name: str) -> str:
    return name.strip().lower().replace("-", "")
