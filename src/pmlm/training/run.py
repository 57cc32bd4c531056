"""A pretraining run from settings to an exported model: a corpus, a mixture of objectives, held-out bits per byte."""

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pmlm.config import from_dict, to_dict
from pmlm.corpus.framing import Row
from pmlm.corpus.rows import RowStream, check_heldout, heldout_rows
from pmlm.corpus.shards import Corpus
from pmlm.errors import ConfigError
from pmlm.evaluation import Scorer
from pmlm.lm import LM
from pmlm.model import LanguageModel, Visibility, build_model
from pmlm.runtime import generator, training_dtype, tune_allocator
from pmlm.training.adapt import heldout_in_all, origin_of, start_of, take_weights
from pmlm.training.distributed import Ranks, spread_model, sum_over_ranks
from pmlm.training.job import Pretraining
from pmlm.training.loop import CHECKPOINTS, MODEL, Pace, RunLoop, Saved, differences
from pmlm.training.plan import mixture_flops
from pmlm.training.settings import NOT_LEARNED, TrainSettings, model_config
from pmlm.training.trainer import StepReport, Trainer
from pmlm.words import WordTable, count_words

__all__ = ["CHECKPOINTS", "MODEL", "Evaluation", "Event", "Run", "Saved", "with_tokens"]


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

    def record(self) -> dict[str, Any]:
        return {"bits_per_byte": self.bits_per_byte}

    def line(self) -> str:
        parts = [
            f"{visibility} " + " ".join(f"{value:.4f}@{length}" for length, value in figures.items())
            for visibility, figures in self.bits_per_byte.items()
        ]
        return f"step {self.step}  held-out bits/byte: " + "; ".join(parts)


Event = StepReport | Evaluation | Saved


class Run(RunLoop[Evaluation, LanguageModel]):
    """One pretraining run; iterate over `events()`."""

    def __init__(
        self,
        settings: TrainSettings,
        corpus: Corpus,
        folder: Path,
        *,
        device: torch.device,
        ranks: Ranks | None = None,
        init_from: LM | None = None,
    ) -> None:
        self.settings, self.corpus = settings, corpus
        about = {} if init_from is None else init_from.about
        self.origin = {} if init_from is None else origin_of(about)
        self.start = None if init_from is None else start_of(init_from)
        self.heldout_share = heldout_in_all(about, corpus.manifest["recipe"]["settings"]["heldout"])
        ranks = ranks or Ranks()
        check_heldout(corpus)  # now, and not when the first evaluation is due
        tune_allocator()
        if settings.batch_rows < ranks.world:
            raise ConfigError(f"batch_rows {settings.batch_rows} is less than the number of ranks {ranks.world}")
        config = model_config(settings, corpus.tokenizer)
        model = build_model(config, generator(settings.seed, "init"))
        if init_from is not None:
            take_weights(model, init_from.model)
        model.to(device)
        job = Pretraining(
            RowStream(corpus, settings.rows, settings.seed),
            settings.objective,
            model.config,
            seed=settings.seed,
            batch_rows=settings.batch_rows,
            micro_rows=settings.micro_rows,
            num_steps=settings.num_steps,
            device=device,
        )
        trainer = Trainer(
            spread_model(model, ranks, settings.parallel, device),
            job,
            settings.optim,
            num_steps=settings.num_steps,
            seed=settings.seed,
            ranks=ranks,
            autocast=training_dtype(settings.precision, device),
            device=device,
        )
        pace = Pace(
            num_steps=settings.num_steps,
            evaluate_every=settings.evaluation.every,
            save_every=settings.saving.every,
            keep=settings.saving.keep,
            export=settings.saving.export,
        )
        super().__init__(settings.name, folder, model, trainer, pace)
        self._heldout: dict[int, list[Row]] | None = None

    def evaluate(self, model: LanguageModel) -> Evaluation:
        figures: dict[str, dict[int, float]] = {}
        for visibility in self.model.config.visibilities:
            figures[visibility] = {
                length: self._bits_per_byte(model, rows, visibility) for length, rows in self._heldout_rows().items()
            }
        return Evaluation(self.trainer.step, figures)

    def _bits_per_byte(self, model: LanguageModel, rows: list[Row], visibility: Visibility) -> float:
        """Each rank measures its part of the rows; sums are exchanged."""
        model.eval()
        own = [0.0, 0.0]
        if self.ranks.rank < len(rows):  # there may be fewer rows than ranks
            mine = slice(self.ranks.rank, None, self.ranks.world)
            figure = Scorer(model, self.corpus.tokenizer, visibility, seed=0).bound(rows, mine=mine)
            own = [figure.nll, figure.num_bytes]
        model.train()
        sums = sum_over_ranks(torch.tensor(own, dtype=torch.float64), self.ranks)
        return float(sums[0] / sums[1]) / math.log(2)

    def _heldout_rows(self) -> dict[int, list[Row]]:
        if self._heldout is None:
            wanted = self.settings.evaluation
            lengths = [n for n in wanted.lengths if n <= self.settings.rows.length] or [self.settings.rows.length]
            self._heldout = {n: heldout_rows(self.corpus, n, wanted.rows) for n in lengths}
        return self._heldout

    def blank_model(self) -> LanguageModel:
        return LanguageModel(self.model.config)

    def export(self, model: LanguageModel, measured: Evaluation) -> None:
        about = {
            "name": self.settings.name,
            "trained_on": ", ".join(s["name"] for s in self.corpus.manifest["recipe"]["sources"]),
            "objective": ", ".join(m.objective.kind for m in self.settings.objective.members),
            "tokens_seen": self.trainer.job.tokens(),
            "steps": self.trainer.step,
            **self.origin,
            "heldout_share": self.heldout_share,
            "heldout_bits_per_byte": round(measured.headline, 4),
        }
        card = f"# {self.settings.name}\n\n{self.settings.about}\n\n```json\n{json.dumps(about, indent=2)}\n```\n"
        LM(model, self.corpus.tokenizer, about, None, self._words).save(self.folder / MODEL, card=card)

    @cached_property
    def _words(self) -> WordTable:
        """What the training text says of neighbouring pieces: it goes with the model."""
        return count_words((self.corpus.read(shard)[0] for shard in self.corpus.of("train")), self.corpus.tokenizer)

    def document(self) -> dict[str, Any]:
        return {
            "settings": to_dict(self.settings),
            "corpus": self.corpus.manifest["recipe"],
            "start": self.start,
        }

    def changed_settings(self, saved: dict[str, Any]) -> list[str]:
        recipe = self.corpus.manifest["recipe"]
        if saved["corpus"]["tokenizer"] != self.corpus.tokenizer.fingerprint:
            raise ConfigError(f"{self.folder} was started on a corpus with another vocabulary")
        if any(saved["corpus"][key] != recipe[key] for key in saved["corpus"].keys() & recipe.keys()):
            raise ConfigError(f"{self.folder} was started on another corpus: give that one, or another folder")
        before = to_dict(from_dict(TrainSettings, saved["settings"]))  # what came later has its default
        changed = differences(before, to_dict(self.settings), NOT_LEARNED | {"num_steps"})
        is_known = "start" in saved  # runs of before did not say what they began from
        return changed + ["what it starts from"] * (is_known and saved["start"] != self.start)

    def yardstick(self) -> dict[str, Any]:
        return {"lengths": list(self.settings.evaluation.lengths), "rows": self.settings.evaluation.rows}

    def flops_per_token(self) -> float:
        return mixture_flops(self.model.config, self.settings)


def with_tokens(settings: TrainSettings, tokens: int) -> TrainSettings:
    """The same settings for about so many training tokens."""
    if tokens < 1:
        raise ConfigError(f"a run has at least one token, got {tokens}")
    per_step = settings.batch_rows * settings.rows.length * 0.97  # markers and room left by packing
    return replace(settings, num_steps=max(1, round(tokens / per_step)))
