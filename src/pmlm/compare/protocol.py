"""One protocol for all models: the settings of each one's pretraining and fine-tuning."""

from dataclasses import replace

from pmlm.compare.arms import ARMS
from pmlm.compare.settings import CompareSettings
from pmlm.training.run import with_tokens
from pmlm.training.settings import TrainSettings


def arm_settings(settings: CompareSettings, name: str, seed: int) -> TrainSettings:
    """The pretraining of one model."""
    arm, shared = ARMS[name], settings.train
    run = replace(
        shared,
        name=f"{name}-seed-{seed}",
        about=f"{arm.title}, {settings.scale} comparison",
        seed=seed,
        model=replace(shared.model, positions=arm.positions),
        objective=arm.mixture,
        rows=replace(shared.rows, predict_end=arm.predict_end),
    )
    return with_tokens(run, settings.tokens)


def tune_settings(
    settings: CompareSettings, name: str, seed: int, corpus: str, packing: str = "packed", row_tokens: float = 0.0
) -> TrainSettings:
    """The fine-tuning of one model on a corpus.

    `packing` other than packed: sentences in rows of their own, which hold `row_tokens` content tokens on average.
    """
    before = arm_settings(settings, name, seed)
    rows = before.rows
    if packing != "packed":
        rows = replace(
            rows,
            length=settings.measure.sentence_context,
            packing=packing,  # type: ignore[arg-type]
            predict_end=rows.predict_end or packing == "padding-predicted",
            short_share=0.0,
        )
    run = replace(
        before, name=f"{name}-seed-{seed}-{corpus}-{packing}", optim=settings.tune, rows=rows,
        evaluation=replace(before.evaluation, every=0),
    )  # fmt: skip
    if packing == "packed":
        return with_tokens(run, settings.tune_tokens)
    return replace(run, num_steps=max(1, round(settings.tune_tokens / (run.batch_rows * row_tokens))))
