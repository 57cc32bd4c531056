"""How `pmlm train --plan` shows what a run will cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pmlm.cli.common import print_json

if TYPE_CHECKING:
    from pmlm.training.settings import TrainSettings


def show_plan(settings: TrainSettings, vocab_size: int, ranks: int | None, tflops: float | None, json: bool) -> None:
    """Without `ranks` and `tflops`: on this machine, where that has no GPU, else on one of the paper's."""
    from dataclasses import fields

    from pmlm.model import ModelConfig, ModelShape
    from pmlm.runtime import matmul_peak, pick_device
    from pmlm.training.plan import PAPER_GPUS, PAPER_HOURS, SUSTAINED, make_plan

    shape = {f.name: getattr(settings.model, f.name) for f in fields(ModelShape)}
    config = ModelConfig(**shape, vocab_size=vocab_size)
    is_here = ranks is None and tflops is None and pick_device().type == "cpu"
    if is_here:
        tflops = SUSTAINED * matmul_peak() / 1e12
    ranks = ranks or 1
    plan = make_plan(settings, config, ranks=ranks, tflops=tflops)
    if json:
        print_json({"preset": settings.name, "ranks": ranks, **asdict(plan)})
        return
    print(f"{settings.name}: {plan.parameters:,} parameters, vocabulary {vocab_size:,}")
    print(f"  {plan.flops_per_token / 1e6:,.0f} MFLOP per token, forward and backward; {plan.tokens:,} tokens")
    print(f"  about {plan.gigabytes_per_rank:.2f} GB per rank, {ranks} rank{'s' * (ranks > 1)} ({settings.parallel})")
    whose = f"{SUSTAINED:.0%} of this machine's best product" if is_here else "--tflops sets it"
    print(f"  {_time(plan.days)} at a sustained {plan.tflops_per_rank:.3g} TFLOP/s per rank ({whose})")
    paper = f"the paper's {PAPER_HOURS} hours on {PAPER_GPUS} V100 mean {plan.paper_tflops:.1f} TFLOP/s per GPU"
    print(f"  for comparison: {paper}, counted the same way")


def _time(days: float) -> str:
    if days >= 2:
        return f"{days:.1f} days"
    return f"{24 * days:.1f} hours" if days >= 1 / 12 else f"{1440 * days:.0f} minutes"
