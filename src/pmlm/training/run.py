"""A training run from settings to an exported model: builds everything, logs, evaluates, saves, resumes.

The run's folder holds settings.json, metrics.jsonl, checkpoints/ (to go on from) and model/ (to use). It is written by
the first rank alone; the others only compute.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pmlm.config import from_dict, to_dict
from pmlm.corpus.framing import Row
from pmlm.corpus.rows import RowStream, heldout_rows
from pmlm.corpus.shards import Corpus
from pmlm.errors import ConfigError, RunError
from pmlm.evaluation import Scorer
from pmlm.lm import LM
from pmlm.model import LanguageModel, Visibility, build_model
from pmlm.runtime import generator, training_dtype, tune_allocator
from pmlm.training.adapt import take_weights
from pmlm.training.distributed import Ranks, spread_model, sum_over_ranks
from pmlm.training.job import Pretraining
from pmlm.training.resume import keep_latest, load_state, save_state, step_folders
from pmlm.training.settings import TrainSettings, model_config
from pmlm.training.trainer import StepReport, Trainer

CHECKPOINTS, MODEL, METRICS, SETTINGS = "checkpoints", "model", "metrics.jsonl", "settings.json"


@dataclass(frozen=True)
class Evaluation:
    """Held-out bits per byte after a step: the order-averaged bound by visibility and window length."""

    step: int
    bits_per_byte: dict[str, dict[int, float]]

    @property
    def headline(self) -> float:
        """The mean over visibilities at the longest windows: what `best` means."""
        longest = [figures[max(figures)] for figures in self.bits_per_byte.values()]
        return sum(longest) / len(longest)


@dataclass(frozen=True)
class Saved:
    path: Path


Event = StepReport | Evaluation | Saved


class Run:
    """One training run; iterate over `events()`."""

    def __init__(
        self,
        settings: TrainSettings,
        corpus: Corpus,
        folder: Path,
        *,
        device: torch.device,
        ranks: Ranks | None = None,
        init_from: LanguageModel | None = None,
    ) -> None:
        self.settings, self.corpus, self.folder, self.device = settings, corpus, folder, device
        self.ranks = ranks or Ranks()
        tune_allocator()
        if settings.batch_rows < self.ranks.world:
            raise ConfigError(f"batch_rows {settings.batch_rows} is less than the number of ranks {self.ranks.world}")
        config = model_config(settings, corpus.tokenizer)
        self.model = build_model(config, generator(settings.seed, "init"))
        if init_from is not None:
            take_weights(self.model, init_from)
        self.model.to(device)
        stream = RowStream(corpus, settings.rows, settings.seed)
        self.job = Pretraining(
            stream,
            settings.objective,
            self.model.config,
            seed=settings.seed,
            batch_rows=settings.batch_rows,
            micro_rows=settings.micro_rows,
            num_steps=settings.num_steps,
            device=device,
        )
        self.trainer = Trainer(
            spread_model(self.model, self.ranks, settings.parallel, device),
            self.job,
            settings.optim,
            num_steps=settings.num_steps,
            seed=settings.seed,
            ranks=self.ranks,
            autocast=training_dtype(settings.precision, device),
            device=device,
        )
        self.best: tuple[float, str] | None = None
        self._heldout: dict[int, list[Row]] | None = None

    def resume(self) -> int:
        """Go on from the latest checkpoint, if there is one; returns the step."""
        found = step_folders(self.folder / CHECKPOINTS)
        if found:
            self._check_settings()
            facts = load_state(found[-1], self.trainer)
            best = facts.get("best")
            self.best = None if best is None else (best[0], best[1])
            self._cut_metrics(self.trainer.step)
        return self.trainer.step

    def events(self, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Train to the end, or until `should_stop`; saves before it stops."""
        settings = self.settings
        self._write_settings()
        for report in self.trainer.run():
            self._log({"kind": "step", **asdict(report)})
            yield report
            done = report.step == settings.num_steps
            stopped = self._anyone(should_stop())
            due = settings.evaluation.every and report.step % settings.evaluation.every == 0
            if due or done:
                yield self._evaluate()
            if report.step % settings.saving.every == 0 or done or stopped:
                yield self._save()
            if stopped and not done:
                return

    def _evaluate(self) -> Evaluation:
        model = self._plain_model()
        figures: dict[str, dict[int, float]] = {}
        for visibility in self.model.config.visibilities:
            figures[visibility] = {
                length: self._bits_per_byte(model, rows, visibility) for length, rows in self._heldout_rows().items()
            }
        result = Evaluation(self.trainer.step, figures)
        self._log({"kind": "evaluation", "step": result.step, "bits_per_byte": figures, "headline": result.headline})
        if self.best is None or result.headline < self.best[0]:
            self.best = (result.headline, f"step-{result.step:08}")
            if self.ranks.is_main:
                self._export(model)
        return result

    def _bits_per_byte(self, model: LanguageModel, rows: list[Row], visibility: Visibility) -> float:
        """Each rank measures its part of the rows; sums are exchanged."""
        model.eval()
        mine = rows[self.ranks.rank :: self.ranks.world]
        figure = Scorer(model, self.corpus.tokenizer, visibility, seed=0).bound(mine, lambda _done: None)
        model.train()
        sums = sum_over_ranks(torch.tensor([figure.nll, figure.num_bytes], dtype=torch.float64), self.ranks)
        return float(sums[0] / sums[1]) / math.log(2)

    def _heldout_rows(self) -> dict[int, list[Row]]:
        if self._heldout is None:
            wanted = self.settings.evaluation
            lengths = [n for n in wanted.lengths if n <= self.settings.rows.length] or [self.settings.rows.length]
            self._heldout = {n: heldout_rows(self.corpus, n, wanted.rows) for n in lengths}
        return self._heldout

    def _plain_model(self) -> LanguageModel:
        """The whole model on this rank, with the averaged weights where an average is kept."""
        average = self.trainer.average
        if average is None and self.settings.parallel == "ddp":
            return self.model
        weights = average.weights if average is not None else dict(self.trainer.core.named_parameters())
        plain = LanguageModel(self.model.config).to(self.device)
        full = {name: getattr(w, "full_tensor", lambda w=w: w)() for name, w in weights.items()}
        plain.load_state_dict(full)
        return plain

    def _export(self, model: nn.Module) -> None:
        assert isinstance(model, LanguageModel)
        assert self.best is not None
        about = {
            "name": self.settings.name,
            "trained_on": ", ".join(s["name"] for s in self.corpus.manifest["recipe"]["sources"]),
            "objective": ", ".join(m.objective.kind for m in self.settings.objective.members),
            "tokens_seen": self.job.tokens(),
            "steps": self.trainer.step,
            "heldout_bits_per_byte": round(self.best[0], 4),
        }
        card = f"# {self.settings.name}\n\n{self.settings.about}\n\n```json\n{json.dumps(about, indent=2)}\n```\n"
        LM(model, self.corpus.tokenizer, about, None).save(self.folder / MODEL, card=card)

    def _save(self) -> Saved:
        folder = self.folder / CHECKPOINTS
        facts = {"settings": to_dict(self.settings), "best": self.best}
        path = save_state(folder, self.trainer, facts)
        if self.ranks.is_main:
            keep_latest(folder, self.settings.saving.keep, self.best[1] if self.best else None)
        return Saved(path)

    def _anyone(self, flag: bool) -> bool:
        return bool(sum_over_ranks(torch.tensor(float(flag)), self.ranks) > 0)

    def _write_settings(self) -> None:
        if self.ranks.is_main:
            self.folder.mkdir(parents=True, exist_ok=True)
            document = {"settings": to_dict(self.settings), "corpus": self.corpus.manifest["recipe"]}
            (self.folder / SETTINGS).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _check_settings(self) -> None:
        """A run goes on under its own settings; only how long, how often and how it is split may change."""
        path = self.folder / SETTINGS
        if not path.is_file():
            return
        saved = json.loads(path.read_text(encoding="utf-8"))
        free = {"num_steps", "evaluation", "saving", "micro_rows", "parallel", "about", "name", "precision"}
        then = from_dict(TrainSettings, saved["settings"])  # settings that came later have their defaults
        before, now = ({k: v for k, v in to_dict(s).items() if k not in free} for s in (then, self.settings))
        changed = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        if changed:
            raise ConfigError(
                f"{self.folder} was started with other settings ({', '.join(changed)}): "
                "give the same, or another folder."
            )
        if saved["corpus"]["tokenizer"] != self.corpus.tokenizer.fingerprint:
            raise ConfigError(f"{self.folder} was started on a corpus with another vocabulary")

    def _log(self, record: dict[str, Any]) -> None:
        if not self.ranks.is_main:
            return
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as handle:
                handle.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {self.folder / METRICS}: {error.strerror}") from None

    def _cut_metrics(self, step: int) -> None:
        """Drop what a killed run logged after the checkpoint that we go on from."""
        path = self.folder / METRICS
        if not self.ranks.is_main or not path.is_file():
            return
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        part = path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        part.replace(path)


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line).get("step", 0))
    except json.JSONDecodeError:
        return math.inf  # a line cut off by a kill


def with_tokens(settings: TrainSettings, tokens: int) -> TrainSettings:
    """The same settings for about so many training tokens."""
    per_step = settings.batch_rows * settings.rows.length * 0.97  # markers and room left by packing
    return replace(settings, num_steps=max(1, round(tokens / per_step)))
