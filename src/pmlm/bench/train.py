"""Training speed beside Hugging Face's Trainer with BertForMaskedLM, alternating in one process.

Both train the same size on the same random ids. Each contender runs a few steps per round, round after round, so that
whatever else the machine does hits all of them alike; the first step of each turn is not counted. The share of the
matmul peak counts the arithmetic that our step really executes against the best large product measured in the same run.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pmlm.batch import Batch
from pmlm.errors import ConfigError
from pmlm.model import ModelConfig, build_model
from pmlm.model.config import Positions
from pmlm.objectives import BERT, U_PMLM, Member, Mixture, Objective, prepare_mixture
from pmlm.runtime import RowRandom, generator, matmul_peak, tune_allocator
from pmlm.training.distributed import Ranks
from pmlm.training.job import PredictionTask, Task
from pmlm.training.optim import OptimSettings
from pmlm.training.plan import flops_per_token
from pmlm.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    num_layers: int = 6
    width: int = 256
    num_heads: int = 4
    vocab_size: int = 8192
    rows: int = 32
    length: int = 128
    dropout: float = 0.0
    rounds: int = 5
    steps: int = 3
    """Counted steps of each contender per round."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, fewest in (("rows", 1), ("rounds", 1), ("steps", 1), ("length", 2), ("vocab_size", 6)):
            if getattr(self, name) < fewest:
                raise ConfigError(f"{name} must be at least {fewest}, got {getattr(self, name)}")
        self.config("absolute")  # says at once what cannot be, for all contenders

    def config(self, positions: Positions) -> ModelConfig:
        """Our network of this size; ids 0 to 4 stand for special tokens."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
            width=self.width,
            num_heads=self.num_heads,
            ff_width=4 * self.width,
            max_length=self.length,
            relative_clip=self.length - 1,
            positions=positions,
            dropout=self.dropout,
            mask_id=4,
            forbidden_ids=(0, 1, 2, 3, 4),
        )


class _RandomJob:
    """The same random rows at each step, masked anew."""

    def __init__(self, settings: BenchSettings, objective: Objective, config: ModelConfig) -> None:
        self.settings, self.config = settings, config
        self.mixture = Mixture(members=(Member(objective=objective),))
        shape = (settings.rows, settings.length)
        ids = torch.randint(5, settings.vocab_size, shape, generator=generator(settings.seed, "bench"))
        self.batch = Batch(ids, torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.long))

    def tasks(self, step: int, ranks: Ranks) -> list[Task]:
        del ranks
        random = RowRandom.whole(self.settings.seed, step, self.settings.rows)
        prepared = prepare_mixture(self.batch, self.mixture, 0.0, random, self.config)
        return [PredictionTask(m, p, torch.device("cpu")) for m, p in enumerate(prepared) if p is not None]

    def shares(self, step: int) -> list[float]:
        del step
        return [1.0]

    def tokens(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


Turn = Callable[[], list[float]]
"""Seconds of each counted step."""


def our_turn(settings: BenchSettings, objective: Objective, positions: Positions) -> tuple[Turn, float]:
    """A contender of ours, and the arithmetic of one of its steps."""
    config = settings.config(positions)
    job = _RandomJob(settings, objective, config)
    trainer = Trainer(build_model(config, generator(settings.seed)), job, OptimSettings(), num_steps=10**9)
    reports = trainer.run()

    def turn() -> list[float]:
        tune_allocator()
        return [next(reports).seconds for _ in range(settings.steps + 1)][1:]

    return turn, flops_per_token(config, objective, settings.length) * settings.rows * settings.length


def hugging_face_turn(settings: BenchSettings, *, tuned: bool) -> Turn:
    """Hugging Face's Trainer, as it comes or with our allocator settings."""
    try:
        import transformers
    except ImportError:
        raise ConfigError("this comparison needs transformers: pip install 'pmlm[bench]'") from None
    transformers.logging.set_verbosity_error()
    config = transformers.BertConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.width,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        intermediate_size=4 * settings.width,
        max_position_embeddings=settings.length,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
    )
    model = transformers.BertForMaskedLM(config)
    rng = generator(settings.seed, "hf")
    rows = [_masked_row(settings, rng) for _ in range(settings.rows * (settings.steps + 1))]
    clock = _StepClock(transformers.TrainerCallback)
    folder = tempfile.mkdtemp(prefix="pmlm-bench-")

    def turn() -> list[float]:
        tune_allocator(keep=tuned)
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=settings.steps + 1,
            per_device_train_batch_size=settings.rows,
            learning_rate=1e-3,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=settings.seed,
        )
        clock.seconds.clear()
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[clock.callback])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return list(clock.seconds)[1:]

    return turn


class _StepClock:
    """Times the steps of a Trainer from the end of one to the end of the next."""

    def __init__(self, base: type) -> None:
        seconds: list[float] = []
        began = [0.0]

        def on_train_begin(*_args: Any, **_kwargs: Any) -> None:
            began[0] = time.perf_counter()

        def on_step_end(*_args: Any, **_kwargs: Any) -> None:
            now = time.perf_counter()
            seconds.append(now - began[0])
            began[0] = now

        self.seconds = seconds
        self.callback = type("Clock", (base,), {"on_train_begin": on_train_begin, "on_step_end": on_step_end})()


def _masked_row(settings: BenchSettings, rng: torch.Generator) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, settings.vocab_size, (settings.length,), generator=rng)
    hidden = torch.rand(settings.length, generator=rng) < 0.15
    return {
        "input_ids": torch.where(hidden, 4, ids),
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(hidden, ids, -100),
    }


def bench_training(settings: BenchSettings, progress: Callable[[int], None]) -> dict[str, Any]:
    """Tokens per second of every contender, their ratio to Hugging Face's, and ours' share of the matmul peak."""
    contenders: dict[str, Turn] = {"Hugging Face BERT": hugging_face_turn(settings, tuned=False)}
    contenders["Hugging Face BERT, allocator tuned"] = hugging_face_turn(settings, tuned=True)
    work: dict[str, float] = {}
    all_mask = replace(BERT, masking=replace(BERT.masking, draw="stratified"))
    ours: dict[str, tuple[Objective, Positions]] = {
        "pmlm BERT-A": (all_mask, "absolute"),
        "pmlm u-PMLM-A": (U_PMLM, "absolute"),
        "pmlm u-PMLM-R": (U_PMLM, "relative"),
        "pmlm u-PMLM, rotary": (U_PMLM, "rotary"),
    }
    for name, (objective, positions) in ours.items():
        contenders[name], work[name] = our_turn(settings, objective, positions)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    peaks: list[float] = []
    for _ in range(settings.rounds):
        for name, turn in contenders.items():
            seconds[name] += turn()
            progress(1)
        peaks.append(matmul_peak())
    return _report(settings, seconds, work, max(peaks))


def _report(
    settings: BenchSettings, seconds: dict[str, list[float]], work: dict[str, float], peak: float
) -> dict[str, Any]:
    median = {name: statistics.median(values) for name, values in seconds.items()}
    base = median["Hugging Face BERT"]
    rows = [
        {
            "name": name,
            "tokens_per_second": settings.rows * settings.length / median[name],
            "ratio": base / median[name],
            "peak_share": work[name] / median[name] / peak if name in work else None,
            "seconds": values,
        }
        for name, values in seconds.items()
    ]
    return {
        "settings": {field: getattr(settings, field) for field in settings.__dataclass_fields__},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matmul_peak_gflops": peak / 1e9,
        "contenders": rows,
    }
