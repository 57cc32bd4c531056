"""Training runs: micro-batches, resuming bit for bit, checkpoints that survive, divergence, export."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from traceback import StackSummary
from typing import Any

import pytest
import torch
from torch.distributed import Backend, DistBackendError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.distributed_c10d import BackendConfig
from training_helpers import make_settings

from pmlm import load
from pmlm.corpus.shards import Corpus
from pmlm.errors import CheckpointError, ConfigError, DataError, RunError, TrainingDiverged
from pmlm.keeping import alone_in
from pmlm.lm import LM
from pmlm.training import resume as resume_module
from pmlm.training.adapt import split_note
from pmlm.training.ahead import Ahead
from pmlm.training.distributed import Ranks, backends, naming_lost_ranks, own_device
from pmlm.training.job import Job
from pmlm.training.resume import step_folders
from pmlm.training.run import Evaluation, Event, Run, with_tokens
from pmlm.training.trainer import StepReport

CPU = torch.device("cpu")


def make_run(corpus: Corpus, folder: Path, **changes: Any) -> Run:
    return Run(make_settings(**changes), corpus, folder, device=CPU)


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepReport)]


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


def test_loading_costs_under_two_percent_of_a_step_of_laptop_size(corpus: Corpus, tmp_path: Path) -> None:
    """In processor time, so that a busy machine does not matter; planning an epoch is part of it."""
    laptop = {"num_layers": 6, "width": 256, "num_heads": 4, "ff_width": 1024, "max_length": 128}
    run = make_run(corpus, tmp_path, batch_rows=16, num_steps=2, model=laptop, rows={"length": 128})
    began = time.process_time()
    list(run.trainer.run())
    step = (time.process_time() - began) / 2
    began = time.process_time()
    for number in range(50):
        run.trainer.job.tasks(number, Ranks())  # rows, and what is hidden in them
    assert (time.process_time() - began) / 50 < 0.02 * step


def test_micro_batches_do_not_change_the_run(corpus: Corpus, tmp_path: Path) -> None:
    plain = {"model": {"dropout": 0.0}}
    whole = make_run(corpus, tmp_path / "a", **plain)
    parts = make_run(corpus, tmp_path / "b", micro_rows=3, **plain)
    assert losses(list(whole.events())) == pytest.approx(losses(list(parts.events())), rel=1e-4)
    for a, b in zip(weights(whole).values(), weights(parts).values(), strict=True):
        assert torch.allclose(a, b, atol=2e-4)


@pytest.mark.parametrize(
    "optim", [{"kind": "adamw"}, {"kind": "lamb"}, {"kind": "muon"}, {"kind": "adamw", "ema": 0.9}]
)
def test_ten_steps_are_five_and_a_stop_and_five_more_bit_for_bit(
    corpus: Corpus, tmp_path: Path, optim: dict[str, Any]
) -> None:
    straight = make_run(corpus, tmp_path / "a", optim=optim)
    expected = losses(list(straight.events()))
    first = make_run(corpus, tmp_path / "b", optim=optim)
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count >= 5

    got = losses(list(first.events(stop)))
    assert len(got) == 5
    second = make_run(corpus, tmp_path / "b", optim=optim)
    assert second.resume() == 5
    got += losses(list(second.events()))
    assert got == expected
    for (name, a), b in zip(weights(straight).items(), weights(second).values(), strict=True):
        assert torch.equal(a, b), name
    logs = [[json.loads(line) for line in (tmp_path / x / "metrics.jsonl").read_text().splitlines()] for x in "ab"]
    kept = [[{k: v for k, v in r.items() if k not in ("time", "seconds")} for r in log] for log in logs]
    assert kept[0] == kept[1]


def test_a_kill_loses_the_steps_since_the_last_checkpoint_alone(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder, evaluation={"every": 0})
    events = run.events()
    for event in events:
        if isinstance(event, StepReport) and event.step == 7:
            break  # as a kill would: nothing is said or saved
    events.close()  # type: ignore[attr-defined]
    (folder / "checkpoints" / ".step-00000008.part").mkdir()
    again = make_run(corpus, folder, evaluation={"every": 0})
    assert again.resume() == 6
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    list(again.events())
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_kill_before_the_first_checkpoint_leaves_nothing_in_the_log(corpus: Corpus, folder: Path) -> None:
    changes = {"num_steps": 4, "saving": {"every": 100}, "evaluation": {"every": 2}}
    events = make_run(corpus, folder, **changes).events()
    for event in events:
        if isinstance(event, Evaluation):
            break
    events.close()  # type: ignore[attr-defined]
    again = make_run(corpus, folder, **changes)
    assert again.resume() == 0
    list(again.events())
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in logged] == [
        ("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("step", 4), ("evaluation", 4),
    ]  # fmt: skip


def test_the_best_is_kept_though_no_checkpoint_was_due(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder, num_steps=8, evaluation={"every": 3}, saving={"every": 4, "keep": 1})
    headlines = iter([1.0, 2.0, 3.0])
    run.evaluate = lambda _model: Evaluation(run.trainer.step, {"bidirectional": {16: next(headlines)}})  # type: ignore[method-assign]
    list(run.events())
    assert [path.name for path in step_folders(folder / "checkpoints")] == ["step-00000003", "step-00000008"]


def test_the_last_few_and_the_best_are_kept(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder, num_steps=12, evaluation={"every": 4})
    figures = [event for event in run.events() if isinstance(event, Evaluation)]
    best = min(figures, key=lambda e: e.headline).step
    names = [path.name for path in step_folders(folder / "checkpoints")]
    assert names == sorted({f"step-{s:08}" for s in (best, 10, 12)})
    assert set(figures[0].bits_per_byte) == {"order-causal", "bidirectional"}
    assert set(figures[0].bits_per_byte["bidirectional"]) == {16, 32}


@pytest.mark.parametrize("export", ["best", "last"])
def test_the_best_or_the_last_is_exported(corpus: Corpus, folder: Path, export: str) -> None:
    run = make_run(corpus, folder, evaluation={"every": 5}, saving={"export": export})
    figures = iter([2.0, 3.0])  # the second is worse
    run.evaluate = lambda _model: Evaluation(run.trainer.step, {"bidirectional": {16: next(figures)}})  # type: ignore[method-assign]
    list(run.events())
    assert load(folder / "model").about["steps"] == {"best": 5, "last": 10}[export]


def test_training_learns_and_the_exported_model_can_be_used(corpus: Corpus, folder: Path) -> None:
    run = make_run(
        corpus, folder, num_steps=60, optim={"kind": "muon", "lr": 0.01}, evaluation={"every": 20}, saving={"every": 60}
    )
    figures = [event.headline for event in run.events() if isinstance(event, Evaluation)]
    assert figures[-1] < figures[0] < 6
    lm = load(folder / "model")
    assert lm.model.config.visibilities == ("order-causal", "bidirectional")
    assert lm.fill("Tom is a [MASK:3]", seed=1).text.startswith("Tom is a ")
    assert lm.about["tokens_seen"] > 10_000


def test_the_average_is_what_is_exported(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder, optim={"ema": 0.9})
    list(run.events())
    assert run.trainer.average is not None
    exported = dict(load(folder / "model").model.named_parameters())
    assert run.best is not None
    assert run.best[1] == "step-00000010"  # otherwise an earlier average was exported
    for name, value in run.trainer.average.weights.items():
        assert torch.equal(exported[name], value)
        assert not torch.equal(value, dict(run.model.named_parameters())[name])


def test_a_full_disk_is_one_clear_error_and_the_old_checkpoint_stays(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(corpus, folder, num_steps=4)
    events = run.events()
    real = resume_module.save_file

    def full(*args: Any, **kwargs: Any) -> None:
        if run.trainer.step >= 4:
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr(resume_module, "save_file", full)
    with pytest.raises(RunError, match=r"No space left on device\. The checkpoints before it are intact"):
        list(events)
    again = make_run(corpus, folder, num_steps=4)
    assert again.resume() == 2


def test_shards_that_cannot_be_written_or_read_are_one_clear_error(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch wraps what a rank meets into something that is no Exception."""

    def full(*_args: Any, **_options: Any) -> None:
        raise CheckpointException("save", {0: (OSError(28, "No space left on device"), StackSummary())})

    list(make_run(corpus, folder, num_steps=2).events())
    monkeypatch.setattr(resume_module, "_is_sharded", lambda _tensors: True)
    monkeypatch.setattr(resume_module, "save_sharded", full)
    with pytest.raises(RunError, match=r"No space left on device\. The checkpoints before it are intact"):
        list(make_run(corpus, folder, num_steps=4).events())
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.setattr(resume_module, "load_sharded", full)
    saved = folder / "checkpoints" / "step-00000002"
    (saved / "state.safetensors").unlink()
    loop = json.loads((saved / "loop.json").read_text())
    (saved / "loop.json").write_text(json.dumps({**loop, "sha256": {}}))  # as if the files were whole
    with pytest.raises(CheckpointError, match=r"step-00000002 cannot be read: .*No space left"):
        make_run(corpus, folder, num_steps=4).resume()


def test_loss_scaling_skips_large_gradients_but_not_a_loss_that_is_none(corpus: Corpus, folder: Path) -> None:
    """As with fp16, without 16-bit products, which not every processor survives."""
    run = make_run(corpus, folder, num_steps=60)
    run.trainer.scaler = torch.amp.GradScaler("cpu", enabled=True)
    clip, infinite = run.trainer._clip, [True] * 3

    def clipped() -> torch.Tensor:
        norm = clip()
        return torch.tensor(torch.inf) if infinite and infinite.pop() else norm

    run.trainer._clip = clipped  # type: ignore[method-assign]
    reports = run.trainer.run()
    assert [next(reports).grad_norm < torch.inf for _ in range(5)] == [False, False, False, True, True]
    infinite += [True] * 99
    with pytest.raises(TrainingDiverged, match=r"step 29: the loss is .* and the gradient norm inf"):
        list(reports)
    run = make_run(corpus, folder)
    run.trainer.scaler = torch.amp.GradScaler("cpu", enabled=True)
    with torch.no_grad():
        run.model.head.transform.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="step 0: the loss is nan"):
        list(run.trainer.run())


def test_a_run_in_full_precision_goes_on_in_fp16(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    again = make_run(corpus, folder, num_steps=4)
    again.trainer.scaler = torch.amp.GradScaler("cpu", enabled=True)
    assert again.resume() == 2


def test_a_run_does_not_go_on_with_another_corpus(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    recipe = corpus.manifest["recipe"]
    other = replace(corpus, manifest={**corpus.manifest, "recipe": {**recipe, "dropped_ids": "x"}})
    with pytest.raises(ConfigError, match="was started on another corpus"):
        make_run(other, folder, num_steps=4).resume()
    newer = replace(corpus, manifest={**corpus.manifest, "recipe": {**recipe, "came_later": 1}})
    assert make_run(newer, folder, num_steps=4).resume() == 2


def test_a_rank_without_held_out_rows_adds_nothing(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(corpus, folder)
    rows = run._heldout_rows()[32][:1]
    whole = run._bits_per_byte(run.model, rows, "bidirectional")
    parts: list[torch.Tensor] = []
    monkeypatch.setattr("pmlm.training.run.sum_over_ranks", lambda own, _ranks: parts.append(own) or sum(parts))
    for rank in (0, 1):
        run.ranks = Ranks(rank, 2, rank)
        both = run._bits_per_byte(run.model, rows, "bidirectional")
    assert parts[1].tolist() == [0.0, 0.0]
    assert both == whole


def test_two_processes_do_not_train_in_one_folder(folder: Path) -> None:
    with alone_in(folder), pytest.raises(RunError, match="another process is at"), alone_in(folder):
        pytest.fail("both were let in")
    with alone_in(folder):
        pass


def test_counts_on_the_cpu_and_gradients_on_the_gpu_have_each_their_way() -> None:
    served = BackendConfig(Backend(backends(torch.device("cuda")))).get_device_backend_map()
    assert (served["cpu"], served["cuda"]) == ("gloo", "nccl")
    assert backends(CPU) == "gloo"


def test_divergence_stops_before_the_update(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder)
    with torch.no_grad():
        run.model.head.transform.weight.fill_(float("nan"))
    before = weights(run)
    with pytest.raises(TrainingDiverged, match="step 0"):
        list(run.events())
    for a, b in zip(before.values(), weights(run).values(), strict=True):
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_a_run_goes_on_that_was_started_before_a_setting_existed(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    saved = json.loads((folder / "settings.json").read_text())
    del saved["settings"]["model"]["activation"]
    (folder / "settings.json").write_text(json.dumps(saved))
    assert make_run(corpus, folder, num_steps=4).resume() == 2


def test_settings_are_written_in_one_step_and_damaged_ones_are_named(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    before = (folder / "settings.json").read_text()

    def killed(path: Path, text: str, **_options: Any) -> int:
        path.write_bytes(text.encode()[:10])
        raise KeyboardInterrupt

    again = make_run(corpus, folder, num_steps=4)
    again.resume()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            list(again.events())
    assert (folder / "settings.json").read_text() == before
    for text in ("", "{}", "[1]"):
        (folder / "settings.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"settings\.json is damaged"):
            make_run(corpus, folder, num_steps=4).resume()
    (folder / "settings.json").write_text(before)
    (folder / "checkpoints" / "step-00000002" / "loop.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is no checkpoint of a run"):
        make_run(corpus, folder, num_steps=4).resume()


def test_weights_to_start_from_must_fit(corpus: Corpus, folder: Path) -> None:
    other = LM(make_run(corpus, folder, model={"width": 16}).model, corpus.tokenizer, {}, None)
    with pytest.raises(ConfigError, match="do not fit the settings"):
        Run(make_settings(), corpus, folder, device=CPU, init_from=other)


def test_a_run_goes_on_from_its_own_start_alone(corpus: Corpus, folder: Path, tmp_path: Path) -> None:
    list(make_run(corpus, tmp_path / "a", num_steps=1).events())
    list(make_run(corpus, tmp_path / "b", num_steps=2).events())
    a, b = load(tmp_path / "a" / "model"), load(tmp_path / "b" / "model")
    begun = Run(make_settings(num_steps=1), corpus, folder, device=CPU, init_from=a)
    list(begun.events())
    assert Run(make_settings(num_steps=2), corpus, folder, device=CPU, init_from=a).resume() == 1
    for other in (b, None):
        with pytest.raises(ConfigError, match="what it starts from"):
            Run(make_settings(num_steps=2), corpus, folder, device=CPU, init_from=other).resume()
    settings = json.loads((folder / "settings.json").read_text())
    del settings["start"]  # as runs of before left it
    (folder / "settings.json").write_text(json.dumps(settings))
    assert Run(make_settings(num_steps=2), corpus, folder, device=CPU, init_from=b).resume() == 1


def test_the_best_by_another_yardstick_is_the_best_no_more(corpus: Corpus, folder: Path) -> None:
    run = make_run(corpus, folder, num_steps=4, evaluation={"every": 2})
    run.evaluate = lambda _model: Evaluation(run.trainer.step, {"bidirectional": {16: 0.5}})  # type: ignore[method-assign]
    list(run.events())
    same, other = (make_run(corpus, folder, num_steps=6, evaluation={"every": 2, **e}) for e in ({}, {"lengths": [16]}))
    same.resume()
    assert same.best == (0.5, "step-00000002")
    other.resume()
    assert other.best is None
    list(other.events())
    assert load(folder / "model").about["steps"] == 6


def test_a_model_says_what_it_was_started_from(corpus: Corpus, folder: Path, tmp_path: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    first = load(folder / "model")
    list(Run(make_settings(num_steps=1), corpus, tmp_path / "second", device=CPU, init_from=first).events())
    second = load(tmp_path / "second" / "model")
    assert second.about["started_from"] == first.about["name"]
    assert second.about["tokens_before"] == first.about["tokens_seen"]
    list(Run(make_settings(num_steps=1), corpus, tmp_path / "third", device=CPU, init_from=second).events())
    third = load(tmp_path / "third" / "model")
    assert third.about["tokens_before"] == first.about["tokens_seen"] + second.about["tokens_seen"]
    assert third.about["heldout_share"] == corpus.manifest["recipe"]["settings"]["heldout"]


def test_texts_that_one_leg_was_trained_on_are_not_called_held_out_in_the_next(corpus: Corpus, tmp_path: Path) -> None:
    share = corpus.manifest["recipe"]["settings"]["heldout"]
    assert split_note({"heldout_share": share / 2}, share).endswith(f"Use `pmlm prepare --heldout {share / 2:g}`.")
    assert split_note({"heldout_share": share}, share) == split_note({"heldout_share": 0.9}, share) == ""
    assert split_note({}, share) == ""  # a model of others, of which nothing is known
    before = LM(make_run(corpus, tmp_path / "x").model, corpus.tokenizer, {"heldout_share": share / 2}, None)
    list(Run(make_settings(num_steps=1), corpus, tmp_path / "leg", device=CPU, init_from=before).events())
    assert load(tmp_path / "leg" / "model").about["heldout_share"] == share / 2  # what neither leg has seen


def test_a_step_that_is_prepared_ahead_changes_nothing(corpus: Corpus, folder: Path) -> None:
    """As on a GPU, with a stop and another start on the way; neither the stop nor the start knows of what is ready."""

    def ahead(run: Run) -> Run:
        run.trainer.job = Ahead(run.trainer.job)
        return run

    plain = make_run(corpus, folder / "a")
    expected = list(plain.events())
    first = ahead(make_run(corpus, folder / "b"))
    begun = list(first.events(should_stop=lambda: first.trainer.step == 5))
    assert first.trainer.job.tokens() == [e.tokens for e in expected if isinstance(e, StepReport)][4]
    second = ahead(make_run(corpus, folder / "b"))
    assert second.resume() == 5
    found = losses(begun) + losses(list(second.events()))
    assert found == losses(expected)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain).values(), weights(second).values(), strict=True))


def test_ahead_any_step_may_be_asked_for_and_errors_reach_the_caller(corpus: Corpus, folder: Path) -> None:
    def drawn(job: Job, step: int) -> list[float]:
        return [float(task.count) for task in job.tasks(step, Ranks())]

    plain, job = make_run(corpus, folder / "a").trainer.job, Ahead(make_run(corpus, folder / "b").trainer.job)
    assert [drawn(job, 0), drawn(job, 7), drawn(job, 8)] == [drawn(plain, 0), drawn(plain, 7), drawn(plain, 8)]
    assert job.state_dict() == plain.state_dict()

    class Damaged(Ahead):
        def _prepare(self, step: int, ranks: Ranks) -> Any:
            if step == 2:
                raise DataError("a shard is damaged")
            return super()._prepare(step, ranks)

    job = Damaged(make_run(corpus, folder / "c").trainer.job)
    job.tasks(0, Ranks())
    job.tasks(1, Ranks())
    with pytest.raises(DataError, match="a shard is damaged"):
        job.tasks(2, Ranks())


def test_a_checkpoint_whose_bytes_changed_is_refused_by_name(corpus: Corpus, folder: Path) -> None:
    """A flipped bit in a weight is no error of the format: only the checksum can see it."""
    list(make_run(corpus, folder, num_steps=4).events())
    latest = step_folders(folder / "checkpoints")[-1]
    tensors = latest / "state.safetensors"
    raw = bytearray(tensors.read_bytes())
    raw[-1] ^= 1
    tensors.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged.*Remove step-00000004"):
        make_run(corpus, folder, num_steps=6).resume()
    shutil.rmtree(latest)
    assert make_run(corpus, folder, num_steps=6).resume() == 2


def test_a_run_knows_its_settings_without_their_file(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    (folder / "settings.json").unlink()
    with pytest.raises(ConfigError, match="other settings \\(optim\\)"):
        make_run(corpus, folder, num_steps=4, optim={"lr": 0.5}).resume()
    assert make_run(corpus, folder, num_steps=4).resume() == 2
    loop = folder / "checkpoints" / "step-00000002" / "loop.json"
    document = json.loads(loop.read_text())
    document["facts"].pop("corpus")  # as older checkpoints
    loop.write_text(json.dumps(document))
    assert make_run(corpus, folder, num_steps=4).resume() == 2
    shutil.rmtree(folder / "checkpoints")  # as after a fine-tuning that has ended
    make_run(corpus, folder, num_steps=4, optim={"lr": 0.5}).check_settings()


def test_a_run_cannot_end_before_it_is(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=4).events())
    with pytest.raises(ConfigError, match="is at step 4 already: it cannot end at 3"):
        make_run(corpus, folder, num_steps=3).resume()


def test_other_settings_and_damaged_state_are_refused(corpus: Corpus, folder: Path) -> None:
    list(make_run(corpus, folder, num_steps=2).events())
    with pytest.raises(ConfigError, match="other settings \\(optim\\)"):
        make_run(corpus, folder, optim={"lr": 0.5}).resume()
    longer = make_run(corpus, folder, num_steps=3)
    assert longer.resume() == 2
    path = step_folders(folder / "checkpoints")[-1] / "state.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointError, match="damaged"):
        make_run(corpus, folder, num_steps=2).resume()


def test_a_rank_that_is_lost_is_one_line_and_other_errors_are_not_touched() -> None:
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer\nmore")
    line = r"^rank 3 lost touch with another rank.*closed by peer more\. The same command"
    with pytest.raises(RunError, match=line), naming_lost_ranks(Ranks(3, 4)):
        raise lost
    with pytest.raises(RunError, match="rank 0 lost touch"), naming_lost_ranks(Ranks(0, 2)):
        raise DistBackendError("timeout")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), naming_lost_ranks(Ranks(0, 2)):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_tokens_become_steps() -> None:
    settings = with_tokens(make_settings(), 100_000)
    assert settings.num_steps == round(100_000 / (8 * 32 * 0.97))
    with pytest.raises(ConfigError, match="at least one token"):
        with_tokens(make_settings(), -5)


@pytest.mark.parametrize("bad", [{"every": -1}, {"lengths": [-3]}, {"lengths": []}, {"rows": 0}])
def test_evaluations_that_cannot_be_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_settings(evaluation=bad)


def test_sixteen_bits_that_the_processor_cannot_multiply_are_refused_not_died_of(
    corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmlm.runtime.can_multiply", lambda _name: False)
    with pytest.raises(ConfigError, match="Use fp32"):
        make_run(corpus, folder, precision="bf16")


def test_each_rank_of_a_machine_takes_its_own_gpu() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert [own_device(cuda, Ranks(8 + i, 16, i)) for i in range(8)] == [torch.device("cuda", i) for i in range(8)]
    assert own_device(torch.device("cuda:2"), Ranks(1, 2, 1)).index == 2  # as told
    assert own_device(cpu, Ranks(1, 2, 1)) == cpu
