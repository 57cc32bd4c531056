"""One protocol for all models: the settings of each one's pretraining and fine-tuning."""

from dataclasses import replace
from typing import NamedTuple

from pmlm.compare.arms import ARMS
from pmlm.compare.records import Record
from pmlm.compare.settings import CompareSettings
from pmlm.config import from_dict
from pmlm.training.plan import work_per_token
from pmlm.training.run import with_tokens
from pmlm.training.settings import TrainSettings

TUNE_SAVES = 5
"""How often a fine-tuning is saved, at least: it is short."""


class RowTokens(NamedTuple):
    """Content tokens of a row of sentences, on average."""

    packed: float
    own: float
    """Of a row that holds one sentence."""


def arm_settings(settings: CompareSettings, name: str, seed: int) -> TrainSettings:
    """The pretraining of one model."""
    arm, shared = ARMS[name], settings.train
    run = replace(
        shared,
        name=f"{name}-seed-{seed}",
        about=f"{arm.title}, {settings.scale} comparison",
        seed=seed,
        vocab_size=settings.vocab_size,
        model=replace(shared.model, positions=arm.positions),
        objective=arm.mixture,
        rows=replace(shared.rows, predict_end=arm.predict_end),
    )
    tokens = settings.tokens
    if arm.work_of is not None:
        tokens = round(tokens * work_per_token(arm_settings(settings, arm.work_of, seed)) / work_per_token(run))
    return with_tokens(run, tokens)


def tune_settings(
    settings: CompareSettings,
    name: str,
    seed: int,
    corpus: str,
    packing: str = "packed",
    tokens: RowTokens | None = None,
) -> TrainSettings:
    """The fine-tuning of one model on a corpus.

    `packing` other than packed: sentences in rows of their own. By `tokens`, a step has so many of them that all ways
    of packing see as many tokens in as many steps.
    """
    before = arm_settings(settings, name, seed)
    whole = replace(before.rows, short_share=0.0) if corpus == "lm1b" else before.rows  # sentences are short already
    run = replace(
        before, name=f"{name}-seed-{seed}-{corpus}-{packing}", optim=settings.tune, rows=whole,
        evaluation=replace(before.evaluation, every=0),
    )  # fmt: skip
    run = with_tokens(run, settings.tune_tokens)
    run = replace(run, saving=replace(run.saving, every=min(run.saving.every, -(-run.num_steps // TUNE_SAVES))))
    if packing == "packed":
        return run
    rows = replace(
        whole,
        length=settings.measure.sentence_context,
        packing=packing,  # type: ignore[arg-type]
        predict_end=whole.predict_end or packing == "padding-predicted",
    )
    assert tokens is not None
    return replace(run, rows=rows, batch_rows=max(1, round(run.batch_rows * tokens.packed / tokens.own)))


def record_work(record: Record) -> float | None:
    """Operations per token of the run that a record is of; None where it does not say its settings."""
    run = record.get("settings", {}).get("run")
    return None if run is None else work_per_token(from_dict(TrainSettings, run))
