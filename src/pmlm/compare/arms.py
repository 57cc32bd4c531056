"""The models that are compared. They differ in objective and positions, and in nothing else.

In all of them half of the heads begin at a neighbour (the scale's `near_start`): without it masked models of a laptop's
budget learn little more than how frequent tokens are (docs/log.md). All see as many tokens, but for the one that is
there to be compared at equal arithmetic. What goes beyond the paper (priors, BERT's corruption, equal arithmetic) is
compared with relative positions, the paper's better variant.
"""

from dataclasses import dataclass, replace

from pmlm.masking import Prior
from pmlm.model.config import Positions
from pmlm.objectives import APLM, BERT, GPT, U_PMLM, XLNET, Member, Mixture, Objective


@dataclass(frozen=True)
class Arm:
    title: str
    positions: Positions
    objectives: tuple[Objective, ...]
    work_of: str | None = None
    """Trained with as much arithmetic as that model takes for its tokens, instead of with as many tokens."""
    predict_end: bool = False
    """A left-to-right model says where a text ends; the others are told."""

    @property
    def mixture(self) -> Mixture:
        return Mixture(members=tuple(Member(objective=o) for o in self.objectives))


def _masked(objective: Objective, **masking: object) -> Objective:
    return replace(objective, masking=replace(objective.masking, **masking))  # type: ignore[arg-type]


RELEASED = replace(U_PMLM, weighting="token-mean")
"""u-PMLM with the loss of the authors' release and of all other models: the mean over the hidden tokens of a batch."""

ARMS: dict[str, Arm] = {
    "bert-a": Arm("BERT", "absolute", (BERT,)),
    "bert-r": Arm("BERT-R", "relative", (BERT,)),
    "gpt-a": Arm("GPT", "absolute", (GPT,), predict_end=True),
    "u-pmlm-a": Arm("u-PMLM-A", "absolute", (RELEASED,)),
    "u-pmlm-r": Arm("u-PMLM-R", "relative", (RELEASED,)),
    "xlnet": Arm("XLNet", "transformer-xl", (XLNET,)),
    "aplm-a": Arm("APLM-A", "absolute", (APLM,)),
    "aplm-r": Arm("APLM-R", "relative", (APLM,)),
    "aplm-r-equal-work": Arm("APLM-R, u-PMLM-R's arithmetic", "relative", (APLM,), work_of="u-pmlm-r"),
    "both-r": Arm("u-PMLM + APLM, R", "relative", (RELEASED, APLM)),
    "bert-r-80-10-10": Arm("BERT-R, 80-10-10", "relative", (_masked(BERT, corruption="80-10-10"),)),
    "prior-half": Arm("u-PMLM-R, prior uniform [0, 0.5]", "relative", (_masked(RELEASED, prior=Prior(high=0.5)),)),
    "prior-beta": Arm(
        "u-PMLM-R, prior Beta(2, 2)", "relative", (_masked(RELEASED, prior=Prior(kind="beta", a=2.0, b=2.0)),)
    ),
}
