"""How `pmlm train --plan` shows what a run will cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pmlm.cli.common import print_json

if TYPE_CHECKING:
    from pmlm.training.settings import TrainSettings


def show_plan(settings: TrainSettings, ranks: int, tflops: float | None, json: bool) -> None:
    from dataclasses import fields

    from pmlm.model import ModelConfig, ModelShape
    from pmlm.training.plan import PAPER_GPUS, PAPER_HOURS, make_plan

    shape = {f.name: getattr(settings.model, f.name) for f in fields(ModelShape)}
    config = ModelConfig(**shape, vocab_size=settings.vocab_size)
    plan = make_plan(settings, config, ranks=ranks, tflops=tflops)
    if json:
        print_json({"preset": settings.name, "ranks": ranks, **asdict(plan)})
        return
    print(f"{settings.name}: {plan.parameters:,} parameters, vocabulary {settings.vocab_size:,}")
    print(f"  {plan.flops_per_token / 1e6:,.0f} MFLOP per token, forward and backward; {plan.tokens:,} tokens")
    print(f"  about {plan.gigabytes_per_rank:.2f} GB per rank, {ranks} ranks ({settings.parallel})")
    print(f"  {plan.days:.2f} days at a sustained {plan.tflops_per_rank:.2f} TFLOP/s per rank (--tflops sets it)")
    paper = f"the paper's {PAPER_HOURS} hours on {PAPER_GPUS} V100 mean {plan.paper_tflops:.1f} TFLOP/s per GPU"
    print(f"  for comparison: {paper}, counted the same way")
