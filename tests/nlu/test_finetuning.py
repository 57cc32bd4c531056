"""Fine-tuning runs: they learn, go on bit for bit, stop early, say what failed; random labels give chance."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from nlu_helpers import CPU, TOKENIZER, make_settings, make_start, save_model, write_rte, write_sst

from pmlm.errors import ConfigError, DataError, RunError
from pmlm.keeping import locked
from pmlm.model import HeadSpec
from pmlm.nlu.exams import Scores
from pmlm.nlu.finetuned import Start, load_finetuned, load_start
from pmlm.nlu.framing import PairRow, frame_pair, frame_texts, read_rows, shares
from pmlm.nlu.glue import load_glue
from pmlm.nlu.glue_study import GlueStudy, prepare_task
from pmlm.nlu.lessons import Finetuning, Lesson, summed_loss
from pmlm.nlu.report import report_lines
from pmlm.nlu.run import FinetuneRun
from pmlm.nlu.settings import FinetuneSettings
from pmlm.nlu.study import drive_quietly
from pmlm.nlu.tables import page
from pmlm.nlu.tasks import find_tasks
from pmlm.runtime import generator
from pmlm.training.distributed import Ranks
from pmlm.training.optim import OptimSettings, build_optimizer
from pmlm.training.trainer import StepReport


def make_run(start: Start, data: Path, folder: Path, tasks: str = "SST-2", **changes: Any) -> FinetuneRun:
    settings = make_settings(**changes)
    prepared = {t.name: prepare_task(load_glue(t, data), start, settings) for t in find_tasks(tasks.split(","))}
    lessons, exams = [x for x, _ in prepared.values()], {name: exam for name, (_, exam) in prepared.items()}
    return FinetuneRun("test", start, lessons, exams, settings, folder, device=CPU)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rte(write_sst(tmp_path / "glue"))


def losses(events: list[Any]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepReport)]


def best(events: list[Any]) -> float:
    return max(event.headline for event in events if isinstance(event, Scores))


# rows


@pytest.mark.parametrize("first", range(0, 9, 2))
@pytest.mark.parametrize("second", range(0, 9, 2))
def test_pairs_are_cut_where_they_are_longest(first: int, second: int) -> None:
    for room in range(2, 12):
        a, b = shares(first, second, room)
        assert (a, b) == (first, second) if first + second <= room else a + b == room
        x, y = first, second
        while x + y > room:  # the definition: one piece after the other, from the longer
            x, y = (x - 1, y) if x > y else (x, y - 1)
        assert (a, b) == (x, y)


def test_rows_have_markers_types_and_the_models_length() -> None:
    start, end = TOKENIZER.start_id, TOKENIZER.end_id
    assert frame_pair([7, 8], None, TOKENIZER, 8) == PairRow((start, 7, 8, end), 4)
    pair = frame_pair([7, 8, 9, 10], [11], TOKENIZER, 6)
    assert pair == PairRow((start, 7, 8, end, 11, end), 4)
    single = frame_pair([7], None, TOKENIZER, 8)
    from fakes import tiny_config

    reading = read_rows([pair, single], TOKENIZER.pad_id, tiny_config(num_token_types=2), CPU)
    assert reading.inputs.token_types_BL is not None
    assert reading.inputs.token_types_BL.tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert reading.is_token_BL.sum(1).tolist() == [6, 3]
    assert read_rows([pair], TOKENIZER.pad_id, tiny_config(), CPU).inputs.token_types_BL is None
    causal = read_rows([pair], TOKENIZER.pad_id, tiny_config(visibilities=("causal",)), CPU).inputs.visible_BQK
    assert causal is not None
    assert not causal[0, 0, 1]
    with pytest.raises(DataError, match="at least 5 slots"):
        frame_texts([("a", "b")], TOKENIZER, 4)


# losses and dealing out


def test_losses_by_hand() -> None:
    classes = HeadSpec(name="c", kind="classes", labels=("a", "b"))
    assert summed_loss(classes, torch.zeros(3, 2), torch.tensor([0.0, 1.0, 1.0])).item() == pytest.approx(
        3 * 0.693147, abs=1e-4
    )
    number = HeadSpec(name="n", kind="number", low=0.0, high=5.0)
    assert summed_loss(number, torch.tensor([[0.5], [1.0]]), torch.tensor([5.0, 5.0])).item() == pytest.approx(0.25)
    span = HeadSpec(name="s", kind="span")
    said = torch.zeros(1, 4, 2).index_fill(1, torch.tensor([3]), -torch.inf)
    assert summed_loss(span, said, torch.tensor([[0, 2]])).item() == pytest.approx(1.098612, abs=1e-4)


def lesson(num: int, name: str = "x") -> Lesson:
    rows = [PairRow((1, *[5] * (i % 7), 2), i % 7 + 2) for i in range(num)]
    return Lesson(HeadSpec(name=name, kind="classes", labels=("a", "b")), rows, torch.arange(num) % 2)


def make_job(*lessons: Lesson, sampling: float = 0.5, seed: int = 1) -> Finetuning:
    from fakes import tiny_config

    return Finetuning(
        lessons, tiny_config(), pad_id=0, seed=seed, batch_rows=8, micro_rows=None, sampling=sampling, device=CPU
    )


def test_an_epoch_shows_every_example_once_and_the_next_in_another_order() -> None:
    job = make_job(lesson(45))
    assert job.steps_per_epoch == 6
    epochs = [[job._next(0) for _ in range(6)] for _ in range(2)]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(45))
    assert epochs[0] != epochs[1]
    assert epochs[0] != [make_job(lesson(45), seed=2)._next(0) for _ in range(6)]


def test_tasks_are_drawn_in_proportion_to_a_power_of_their_size() -> None:
    for power, expected in ((1.0, 0.9), (0.5, 0.75), (0.0, 0.5)):
        job = make_job(lesson(90, "a"), lesson(10, "b"), sampling=power)
        drawn = [job.member(step) for step in range(2000)]
        assert drawn.count(0) / 2000 == pytest.approx(expected, abs=0.035)
    job = make_job(lesson(90, "a"), lesson(10, "b"))
    for step in range(6):
        (task,) = job.tasks(step, Ranks())
        assert job.shares(step)[task.member] == 1
        assert sum(job.shares(step)) == 1
    assert sum(job.taken) == 6


def test_some_examples_are_the_same_for_every_seed_and_shuffled_labels_are_the_same_labels() -> None:
    full = lesson(40)
    part = full.some(10)
    assert len(part.rows) == 10
    assert full.some(10).fingerprint() == part.fingerprint()
    assert full.some(99) is full
    shuffled = full.shuffled(1)
    assert shuffled.rows == full.rows
    assert sorted(shuffled.targets.tolist()) == sorted(full.targets.tolist())
    assert shuffled.targets.tolist() != full.targets.tolist()


# runs


def test_a_run_learns_and_the_same_labels_at_random_give_chance(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    real = best(list(make_run(start, data, tmp_path / "a", epochs=6).events()))
    assert real > 0.9
    chance = make_run(start, data, tmp_path / "b", epochs=6, shuffle_labels=True)
    at_the_end = [event.headline for event in chance.events() if isinstance(event, Scores)][-1]
    assert 0.25 < at_the_end < 0.75  # 60 sentences: 0.5 ± 4 deviations


def test_a_pair_task_a_left_to_right_model_and_the_mean_learn_too(tmp_path: Path, data: Path) -> None:
    gpt = make_start(tmp_path, visibilities=("causal",), num_token_types=2)
    run = make_run(gpt, data, tmp_path / "gpt", epochs=6)
    assert run.model.specs["SST-2"].pooling == "last"
    assert best(list(run.events())) > 0.9
    mean = make_run(make_start(tmp_path), data, tmp_path / "mean", epochs=4, pooling="mean")
    assert best(list(mean.events())) > 0.9


STOP_AT = 7


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tasks": "SST-2,RTE", "sampling": 0.0},
        {"frozen": True},
        {"optim": {"ema": 0.9}, "layer_decay": 0.8},
        {"micro_rows": 5},
    ],
    ids=["plain", "joint", "frozen", "ema", "micro"],
)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, data: Path, changes: dict[str, Any]) -> None:
    start = make_start(tmp_path)
    straight = make_run(start, data, tmp_path / "a", **changes)
    expected = losses(list(straight.events()))
    assert len(expected) > STOP_AT + 5
    first = make_run(start, data, tmp_path / "b", **changes)
    got = losses(list(first.events(lambda: first.trainer.step == STOP_AT)))
    second = make_run(start, data, tmp_path / "b", **changes)
    assert second.resume() == STOP_AT
    got += losses(list(second.events()))
    assert got == expected
    for (name, a), b in zip(straight.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    logs = [[json.loads(line) for line in (tmp_path / x / "metrics.jsonl").read_text().splitlines()] for x in "ab"]
    kept = [[{k: v for k, v in r.items() if k not in ("time", "seconds")} for r in log] for log in logs]
    assert kept[0] == kept[1]


def test_a_head_that_was_never_used_before_the_stop_is_no_obstacle(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)

    def never_rte(run: FinetuneRun) -> FinetuneRun:
        run.job.member = lambda step: int(step >= 4)  # type: ignore[method-assign]
        return run

    changes: dict[str, Any] = {"tasks": "SST-2,RTE", "num_steps": 8}
    straight = never_rte(make_run(start, data, tmp_path / "a", **changes))
    expected = losses(list(straight.events()))
    first = never_rte(make_run(start, data, tmp_path / "b", **changes))
    got = losses(list(first.events(lambda: first.trainer.step == 3)))
    second = never_rte(make_run(start, data, tmp_path / "b", **changes))
    assert second.resume() == 3
    assert got + losses(list(second.events())) == expected
    for a, b in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_frozen_backbone_stays_as_it_was_and_its_head_learns(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    run = make_run(start, data, tmp_path / "run", frozen=True, pooling="mean", epochs=8, optim={"lr": 0.02})
    assert best(list(run.events())) > 0.75
    for (name, a), b in zip(start.backbone.named_parameters(), run.model.backbone.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_early_stopping_stops_and_a_finished_run_does_not_go_on(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    changes: dict[str, Any] = {"epochs": 30, "patience": 2, "evaluations": 2, "optim": {"lr": 1e-9}}
    run = make_run(start, data, tmp_path / "run", **changes)
    events = list(run.events())
    evaluations = [event for event in events if isinstance(event, Scores)]
    assert len(evaluations) == 3  # the first is the best, the next two are no better
    assert run.has_ended
    assert run.trainer.step < run.pace.num_steps
    again = make_run(start, data, tmp_path / "run", **changes)
    again.resume()
    assert again.has_ended
    assert list(again.events()) == []


def test_the_exported_model_is_the_best_one_and_says_what_it_reached(tmp_path: Path, data: Path) -> None:
    run = make_run(make_start(tmp_path), data, tmp_path / "run", epochs=4)
    reached = best(list(run.events()))
    saved = load_finetuned(tmp_path / "run" / "model")
    assert saved.about["dev"]["SST-2"]["accuracy"] == reached
    split = load_glue(find_tasks(["SST-2"])[0], data).dev["SST-2"]
    said = saved.classify_batch([e.texts for e in split.examples])
    right = [(r.label == "positive") == (e.label == 1) for r, e in zip(said, split.examples, strict=True)]
    assert sum(right) / len(right) == pytest.approx(reached)


def test_checkpoints_do_not_wait_for_an_evaluation_and_steps_have_a_limit(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    epoch = make_run(start, data, tmp_path / "a").job.steps_per_epoch
    short = make_run(start, data, tmp_path / "b", epochs=5, most_steps=epoch + 1, evaluations=2)
    assert short.pace.num_steps == epoch + 1
    assert short.pace.evaluate_every == -(-epoch // 2), "twice an epoch and not once more for what is left over"
    part = make_run(start, data, tmp_path / "c", num_steps=epoch - 1)
    assert part.pace.evaluate_every == epoch - 1
    long = make_run(start, data, tmp_path / "d", epochs=1, batch_rows=1)
    assert long.job.steps_per_epoch > long.pace.save_every == 200 or long.pace.save_every == long.pace.evaluate_every


def test_other_settings_another_start_and_other_data_are_refused(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    list(make_run(start, data, tmp_path / "run", num_steps=2).events())
    with pytest.raises(ConfigError, match="other settings \\(optim\\)"):
        make_run(start, data, tmp_path / "run", num_steps=2, optim={"lr": 0.5}).resume()
    with pytest.raises(ConfigError, match="other settings \\(start\\)"):
        make_run(replace(start, fingerprint="x"), data, tmp_path / "run", num_steps=2).resume()
    with pytest.raises(ConfigError, match="other settings \\(examples\\)"):
        make_run(start, write_sst(data, num=200), tmp_path / "run", num_steps=2).resume()
    write_sst(data)
    dev = data / "SST-2" / "dev.tsv"
    dev.write_text(dev.read_text().replace("\t1\n", "\t0\n", 1))
    with pytest.raises(ConfigError, match="other settings \\(exams\\)"):
        make_run(start, data, tmp_path / "run", num_steps=2).resume()
    settings = tmp_path / "run" / "settings.json"
    document = json.loads(settings.read_text())
    settings.write_text(json.dumps({key: document[key] for key in document if key != "exams"}))
    assert make_run(start, data, tmp_path / "run", num_steps=2).resume() == 2  # of a time when it was not kept


def test_layers_learn_slower_the_lower_they_are(tmp_path: Path) -> None:
    from pmlm.model import build_task_model

    spec = HeadSpec(name="x", kind="classes", labels=("a", "b"))
    model = build_task_model(make_start(tmp_path, num_layers=3, norm="pre").backbone, [spec], generator(1))
    optimizer = build_optimizer(model, OptimSettings(lr=1.0), layer_decay=0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    peak = {names[id(p)]: group["peak"] for group in optimizer.param_groups for p in group["params"]}
    assert len(peak) == len(names)
    assert peak["heads.x.output.weight"] == peak["backbone.output_norm.weight"] == 1
    assert [peak[f"backbone.layers.{i}.up.weight"] for i in (2, 1, 0)] == [0.5, 0.25, 0.125]
    assert peak["backbone.layers.1.up.bias"] == 0.25
    assert peak["backbone.tokens.weight"] == 0.0625
    plain = build_optimizer(model, OptimSettings(lr=1.0))
    assert len(plain.param_groups) == 2


# studies


def study(start: Start, folder: Path, seeds: int = 2, joint: bool = False, **changes: Any) -> GlueStudy:
    return GlueStudy(start, make_settings(**changes), folder, CPU, tuple(range(1, seeds + 1)), joint)


def load(data: Path, *names: str) -> list[Any]:
    return [load_glue(task, data) for task in find_tasks(names)]


def test_a_study_reports_every_run_and_what_is_missing_and_does_not_run_twice(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    report = study(start, tmp_path / "s", epochs=4).run(load(data, "SST-2", "MNLI"))
    sst = report["tasks"]["SST-2"]
    assert sst["runs"] == 2
    assert sst["failed"] == []
    scores = sst["dev"]["SST-2"]["accuracy"]
    assert len(scores["all"]) == 2
    assert scores["mean"] == pytest.approx(sum(scores["all"]) / 2)
    assert scores["best"] == max(scores["all"])
    assert report["not_run"]["MNLI"][0] == "MNLI: train is missing (MNLI/train.tsv)"
    assert (tmp_path / "s" / "SST-2" / f"seed-{sst['best_seed']}" / "model") == Path(sst["best_model"])
    assert not (tmp_path / "s" / "SST-2" / "seed-1" / "checkpoints").exists()

    assert sst["last"]["SST-2"]["accuracy"]["mean"] <= scores["mean"]
    assert sst["constants"]["SST-2"]["accuracy"] == sst["constant_score"]
    assert [bool(each["machine"]) for each in sst["made"]] == [True, True]

    def refuse(run: FinetuneRun) -> None:
        raise AssertionError("it ran again")

    assert study(start, tmp_path / "s", epochs=4).run(load(data, "SST-2", "MNLI"), drive=refuse) == report
    with pytest.raises(ConfigError, match="other settings"):
        study(start, tmp_path / "s", epochs=5).run(load(data, "SST-2"))
    with pytest.raises(DataError, match="nothing can be trained on: MNLI: train is missing"):
        study(start, tmp_path / "s").run(load(data, "MNLI"))


def test_two_processes_do_not_train_one_run(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    with locked(tmp_path / "s" / "SST-2" / "seed-1" / ".lock"), pytest.raises(RunError, match="another process is at"):
        study(start, tmp_path / "s").run(load(data, "SST-2"), drive=lambda _run: pytest.fail("it ran"))


def test_failed_runs_are_said_and_not_dropped(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)

    def drive(run: FinetuneRun) -> None:
        if run.settings.seed == 2:
            with torch.no_grad():
                run.model.backbone.tokens.weight.fill_(float("nan"))
        if run.settings.seed == 3:
            for group in run.trainer.optimizer.param_groups:
                group["peak"] = 0.0
            with torch.no_grad():
                run.model.heads["SST-2"].output.bias.copy_(torch.tensor([9.0, 0.0]))
        drive_quietly(run)

    task = study(start, tmp_path / "s", seeds=3, epochs=4).run(load(data, "SST-2"), drive=drive)["tasks"]["SST-2"]
    reasons = {f["seed"]: f["reason"] for f in task["failed"]}
    assert set(reasons) == {2, 3}
    assert reasons[2].startswith("diverged: step 0")
    assert reasons[3].startswith("no better than a constant answer")
    assert task["runs"] == 3
    assert len(task["score"]["all"]) == 2
    assert task["score_without_failed"]["all"] == [task["score"]["best"]]
    assert task["best_seed"] == 1


def test_joint_runs_make_one_model_for_all_tasks(tmp_path: Path, data: Path) -> None:
    report = study(make_start(tmp_path), tmp_path / "s", seeds=1, joint=True, epochs=3).run(load(data, "SST-2", "RTE"))
    assert report["sharing"] == "joint"
    assert set(report["tasks"]) == {"SST-2", "RTE"}
    model = load_finetuned(report["tasks"]["RTE"]["best_model"])
    assert model.classify("The film was good.", task="SST-2").label in ("negative", "positive")
    assert model.classify("The film was good.", "It was good.", task="RTE").label in ("entailment", "not_entailment")
    with pytest.raises(DataError, match="several tasks: name one of SST-2, RTE"):
        model.classify("The film was good.")
    with pytest.raises(DataError, match="RTE reads 2 texts at a time, got 1"):
        model.classify("x", task="RTE")
    with pytest.raises(DataError, match="does not know the task 'CoLA'"):
        model.classify("x", task="CoLA")


def test_intermediate_tasks_come_first_and_the_others_start_there(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    report = study(start, tmp_path / "s", seeds=1, epochs=2).run(load(data, "RTE"), load(data, "SST-2"))
    assert report["intermediate"] == ["SST-2"]
    assert set(report["tasks"]) == {"RTE"}
    before = load_start(tmp_path / "s" / "intermediate-SST-2" / "seed-1" / "model")
    started = json.loads((tmp_path / "s" / "RTE" / "seed-1" / "settings.json").read_text())["start"]
    assert started == {"name": "tiny after SST-2", "weights": before.fingerprint}
    assert not torch.equal(before.backbone.tokens.weight, start.backbone.tokens.weight)
    assert report["before"]["SST-2"]["runs"] == 1
    assert "SST-2, before constant" in "\n".join(report_lines(report))


def test_an_intermediate_run_that_failed_is_said(tmp_path: Path, data: Path) -> None:
    start = make_start(tmp_path)
    with pytest.raises(DataError, match="no intermediate task can be trained on: MNLI: train is missing"):
        study(start, tmp_path / "s", seeds=1).run(load(data, "RTE"), load(data, "MNLI"))

    def worthless(run: FinetuneRun) -> None:
        if "intermediate" in run.name:
            for group in run.trainer.optimizer.param_groups:
                group["peak"] = 0.0
            with torch.no_grad():
                run.model.heads["SST-2"].output.bias.copy_(torch.tensor([9.0, 0.0]))
        drive_quietly(run)

    report = study(start, tmp_path / "s", seeds=1).run(load(data, "RTE"), load(data, "SST-2"), worthless)
    assert report["before"]["SST-2"]["failed"][0]["reason"].startswith("no better than a constant answer")
    assert any(line.startswith("SST-2, before: seed 1 FAILED") for line in report_lines(report))
    assert "intermediate SST-2 seed 1 failed (no better" in page({"glue": {"x": report}})

    def broken(run: FinetuneRun) -> None:
        with torch.no_grad():
            run.model.backbone.tokens.weight.fill_(float("nan"))
        drive_quietly(run)

    for _ in range(2):  # and again, where it is known
        with pytest.raises(RunError, match="intermediate-SST-2/seed-1 diverged: step 0"):
            study(start, tmp_path / "t", seeds=1).run(load(data, "RTE"), load(data, "SST-2"), broken)


def test_where_nothing_is_left_to_train_on_it_is_said(tmp_path: Path, data: Path) -> None:
    (data / "SST-2" / "dev.tsv").write_text((data / "SST-2" / "train.tsv").read_text())
    with pytest.raises(DataError, match=r"SST-2: nothing is left to train on .*180 training examples are in dev"):
        study(make_start(tmp_path), tmp_path / "s").run(load(data, "SST-2"))


def test_a_text_is_cut_in_use_as_it_was_when_measured(tmp_path: Path, data: Path) -> None:
    report = study(make_start(tmp_path), tmp_path / "s", seeds=1, num_steps=2, length=7).run(load(data, "SST-2"))
    model = load_finetuned(report["tasks"]["SST-2"]["best_model"])
    assert model.model.specs["SST-2"].length == 7
    one, other = (model.classify(f"The film was good and {end}") for end in ("warm.", "dull and poor and awful."))
    assert len(TOKENIZER.encode("The film was good and")) == 5
    assert one.probs == other.probs  # what comes after is cut off


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 0},
        {"batch_rows": 0},
        {"patience": 0},
        {"warmup": 2.0},
        {"length": 3},
        {"dropout": 1.0},
        {"layer_decay": 0.0},
        {"windows": {"stride": 0}},
        {"windows": {"question": -1}},
        {"windows": {"answer": 0}},
        {"windows": {"best": 0}},
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_settings(**changes)


def test_a_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    start = load_start(save_model(tmp_path / "m"))
    with pytest.raises(ConfigError, match="length 64 is more than the model reads, 32"):
        FinetuneSettings(length=64).row_length(start.backbone.config)


# several ranks


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_share_a_batch_and_those_without_rows_count_nothing(world: int) -> None:
    """Batches of 8 of 10 examples: the last has 2."""
    seen: list[list[int]] = []
    for rank in range(world):
        job = make_job(lesson(10))
        steps = [job.tasks(step, Ranks(rank, world)) for step in range(job.steps_per_epoch)]
        assert all(task.rows for tasks in steps for task in tasks)  # every rank takes part in every step
        seen += [row.ids for tasks in steps for task in tasks if task.count for row in task.rows]
    assert sorted(seen) == sorted(row.ids for row in lesson(10).rows)


@pytest.mark.slow
def test_two_ranks_fine_tune_like_one(tmp_path: Path, data: Path) -> None:
    save_model(tmp_path / "start")
    options = ["finetune", "glue", "-m", str(tmp_path / "start"), "--data", str(data), "--tasks", "SST-2,RTE", "--joint",
               "--set", "epochs=1", "--set", "dropout=0.0", "--set", "batch_rows=7", "--set", "optim.lr=0.003", "--json"]  # fmt: skip

    def launch(name: str, *launcher: str) -> tuple[dict[str, Any], list[float]]:
        command = [sys.executable, *launcher, "-m", "pmlm", *options, "--out", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (tmp_path / name / "joint" / "seed-1" / "metrics.jsonl").read_text().splitlines()
        return json.loads(done.stdout), [r["loss"] for r in map(json.loads, lines) if r["kind"] == "step"]

    one, one_losses = launch("one")
    two, two_losses = launch("two", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert two_losses == pytest.approx(one_losses, rel=1e-3)
    for task, found in one["tasks"].items():
        assert two["tasks"][task]["score"]["mean"] == pytest.approx(found["score"]["mean"], abs=0.05)
