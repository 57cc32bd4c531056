"""The leaderboard's zip: names, headers, labels, one line per example."""

import zipfile
from pathlib import Path

import pytest
import torch
from nlu_helpers import TOKENIZER, make_start

from pmlm.model import build_task_model
from pmlm.nlu.finetuned import Finetuned
from pmlm.nlu.glue import Example, GlueData, Split
from pmlm.nlu.submission import predict_test, submission_tsv, write_submission
from pmlm.nlu.tasks import SUBMISSION_NAMES, TASKS
from pmlm.runtime import generator

WANTED = {
    "CoLA": {"0", "1"},
    "SST-2": {"0", "1"},
    "MRPC": {"0", "1"},
    "QQP": {"0", "1"},
    "WNLI": {"0", "1"},
    "MNLI-m": {"entailment", "neutral", "contradiction"},
    "MNLI-mm": {"entailment", "neutral", "contradiction"},
    "AX": {"entailment", "neutral", "contradiction"},
    "QNLI": {"entailment", "not_entailment"},
    "RTE": {"entailment", "not_entailment"},
}


def test_a_complete_submission(tmp_path: Path) -> None:
    start = make_start(tmp_path)
    model = build_task_model(start.backbone, [task.head("first") for task in TASKS], generator(1))
    finetuned = Finetuned(model.eval(), TOKENIZER, {}, None)
    files: dict[str, str] = {}
    for task in TASKS:
        split = Split([Example(str(i), ("a film",) * len(task.texts)) for i in range(3)])
        files |= predict_test(finetuned, GlueData(task, None, {}, dict.fromkeys(task.test, split)))
    assert write_submission(tmp_path / "out" / "s.zip", files) == []
    with zipfile.ZipFile(tmp_path / "out" / "s.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in SUBMISSION_NAMES)
        for name in SUBMISSION_NAMES:
            head, *rows = archive.read(f"{name}.tsv").decode().removesuffix("\n").split("\n")
            assert head == "index\tprediction"
            assert [row.split("\t")[0] for row in rows] == ["0", "1", "2"]
            said = [row.split("\t")[1] for row in rows]
            if name == "STS-B":
                assert all(0 <= float(x) <= 5 for x in said)
            else:
                assert set(said) <= WANTED[name]
    assert write_submission(tmp_path / "part.zip", {"CoLA": files["CoLA"]})[:2] == ["SST-2", "MRPC"]


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_every_class_is_written_as_its_file_writes_it(task: object) -> None:
    from pmlm.nlu.tasks import GlueTask

    assert isinstance(task, GlueTask)
    values = [0.0, 2.5, 5.0] if task.is_number else [float(i) for i in range(len(task.labels))]
    lines = submission_tsv(task, ["4", "5", "6"][: len(values)], values).splitlines()[1:]
    expected = ["0.000", "2.500", "5.000"] if task.is_number else list(task.labels)
    assert [line.split("\t")[1] for line in lines] == expected


def test_numbers_stay_within_their_scale(tmp_path: Path) -> None:
    from pmlm.nlu.predict import decide

    spec = next(task for task in TASKS if task.is_number).head("first")
    assert decide(spec, [torch.tensor([-1.0]), torch.tensor([0.5]), torch.tensor([7.0])]) == [0.0, 2.5, 5.0]
