"""Many texts side by side, weighed by how they read from left to right together with what was given.

Order-causal conditionals see the words that come, and propose; the same model read as a GPT judges the whole, given
words included. A proposal that does not lead to the next given word makes that word unlikely, and the text that holds
it gives its place to a copy of another one. This is a particle filter (sequential Monte Carlo): its texts follow

    p(blanks | given)  in proportion to  prod_i p(x_i | x_<i),

the left-to-right distribution at the temperature asked for, among the texts that hold what is given and keep the
constraints: exactly in the limit of many particles, and the better the more there are. Filters such as top-p would keep
some of these texts from ever being proposed, so they are refused (pmlm.generation.speed).

Shapes: N particles, L slots, T hidden slots, S slots of a pass, V vocabulary.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pmlm.batch import Batch
from pmlm.generation.decode import Allowed, Canvases, Reveal
from pmlm.generation.sampling import Sampling, draw_tokens
from pmlm.generation.steppers import MOST_NUMBERS, CausalCached, OrderCached
from pmlm.model import LanguageModel, Slots, Visibility


@torch.no_grad()
def decode_particles(
    model: LanguageModel,
    canvas: Batch,
    allowed: Allowed,
    sampling: Sampling,
    rng: torch.Generator,
    visibility: Visibility,
    row: int = 0,
) -> Iterator[list[Reveal]]:
    """Fill one canvas; yields, as `row`'s, what all particles agree on by now, and at the end the rest of one of them.

    `allowed` has a row for each particle.
    It ends early where no particle can go on under the constraints.
    """
    crowd, num = Crowd(model, canvas, allowed, sampling, visibility), len(allowed.role_BL)
    uniforms = partial(torch.rand, generator=rng, dtype=torch.float64)
    slots = canvas.maskable_BL[0].nonzero()[:, 0].tolist()
    told = 0
    for slot in slots:
        crowd.read(slot)
        if crowd.num_effective < num / 2:
            crowd.resample(uniforms(1).item())
        agreed = crowd.num_agreed()
        yield crowd.reveals(crowd.alive()[0], told, agreed, row)
        told = agreed
        crowd.write(slot, uniforms(num))
        if not crowd.alive():
            return
    crowd.read(int((canvas.group_BL[0] >= 0).sum()) - 1)  # as far as the end marker
    yield crowd.reveals(crowd.draw(uniforms(1).item()), told, len(slots), row)


class Crowd:
    """The particles: copies of one canvas that are filled at the same slots, one after the other."""

    def __init__(
        self,
        model: LanguageModel,
        canvas: Batch,
        allowed: Allowed,
        sampling: Sampling,
        visibility: Visibility,
    ) -> None:
        num = len(allowed.role_BL)
        batch = canvas.rows(torch.zeros(num, dtype=torch.long, device=canvas.ids_BL.device))
        self.canvases, self.sampling = Canvases(batch), sampling
        self.allowed = allowed
        model.pack(2 * num, num)
        self.ahead, self.reading = OrderCached(model, batch, visibility), CausalCached(model, batch)
        self.weight_N = torch.zeros(num, dtype=torch.float64)
        """Logarithms."""
        self.next_NV = torch.zeros(num, 0)
        """Of the slot that is due, from what stands left of it."""
        self.fresh: Slots | None = None
        self.slots: list[int] = []
        self.num_passes = 0
        self.logp_NT = torch.zeros(num, 0, dtype=torch.float64)
        self.sampled_NT = torch.zeros(num, 0, dtype=torch.float64)

    def write(self, slot: int, uniform_N: Tensor) -> None:
        """One token each: proposed by what is known to the left and to the right, weighed as it reads from the left."""
        num, device = len(self.weight_N), self.canvases.hidden_BL.device
        at = Slots(torch.arange(num, device=device), torch.full((num,), slot, device=device))
        logp_NV = self.ahead.logp(self.canvases.state(self.fresh), at)
        self.num_passes += 1
        flags_NV = self.allowed.at(at)
        open_N = flags_NV.any(dim=1)
        self.weight_N[~open_N.cpu()] = -math.inf
        flags_NV = flags_NV | ~open_N[:, None]  # one that cannot go on writes anything; it counts no more
        token_N, sampled_N = draw_tokens(logp_NV, flags_NV, self.sampling, uniform_N.to(device))
        self.slots.append(slot)
        self.logp_NT = _beside(self.logp_NT, logp_NV.gather(1, token_N[:, None])[:, 0])
        self.sampled_NT = _beside(self.sampled_NT, sampled_N)
        tokens = token_N.tolist()
        for n in open_N.nonzero()[:, 0].tolist():
            self.allowed.reveal(Reveal(n, slot, tokens[n], 0.0, 0.0, 0))
        self.fresh = self.canvases.write(range(num), [slot] * num, tokens)
        self.weight_N += (self._tempered(self.next_NV).gather(1, token_N[:, None])[:, 0] - sampled_N).double().cpu()

    def read(self, slot: int) -> None:
        """From left to right as far as to predict `slot`; what was given on the way weighs, beside what was written."""
        ids_NL, is_alike = self.canvases.batch.ids_BL, not self.slots
        if is_alike:  # nothing is written yet: one row speaks for all
            ids_NL = ids_NL[:1]
        step = max(1, MOST_NUMBERS // (len(ids_NL) * self.reading.model.config.vocab_size))
        for first in range(self.reading.num_read, slot + 1, step):
            logp_NSV = self.reading.read(ids_NL, min(first + step, slot + 1))
            self.num_passes += 1
            given_NS = ids_NL[:, first:slot][:, : logp_NSV.shape[1]]
            own_NS = self._tempered(logp_NSV[:, : given_NS.shape[1]]).gather(2, given_NS[..., None])[..., 0]
            own_NS = own_NS.masked_fill(own_NS == -math.inf, 0)  # given, and never predicted: it tells no two apart
            self.weight_N += own_NS.sum(1).double().cpu()
        self.next_NV = logp_NSV[:, -1].clone()
        if is_alike:
            num = len(self.weight_N)
            self.reading.take(torch.zeros(num, dtype=torch.long, device=ids_NL.device))
            self.next_NV = self.next_NV.expand(num, -1)

    def _tempered(self, logp: Tensor) -> Tensor:
        return logp if self.sampling.temperature == 1 else (logp / self.sampling.temperature).log_softmax(-1)

    def alive(self) -> list[int]:
        """Those that no constraint has stopped."""
        return [int(n) for n in (self.weight_N > -math.inf).nonzero()]

    @property
    def num_effective(self) -> float:
        """How many equal weights are worth as much."""
        return float((2 * self.weight_N.logsumexp(0) - (2 * self.weight_N).logsumexp(0)).exp())

    def resample(self, uniform: float) -> None:
        """The light ones give way to copies of the heavy ones; as many of each as its weight, to within one."""
        num = len(self.weight_N)
        total_N = self.weight_N.softmax(0).cumsum(0)
        points_N = (torch.arange(num, dtype=torch.float64) + uniform) / num
        chosen_N = torch.searchsorted(total_N, points_N, right=True).clamp(max=self.alive()[-1])
        here_N = chosen_N.to(self.canvases.hidden_BL.device)
        self.canvases.batch.ids_BL[:] = self.canvases.batch.ids_BL[here_N]
        self.ahead.take(here_N)
        self.reading.take(here_N)
        self.allowed.take(chosen_N.tolist())
        self.logp_NT, self.sampled_NT = self.logp_NT[chosen_N], self.sampled_NT[chosen_N]
        self.next_NV = self.next_NV[here_N]
        self.weight_N = torch.zeros_like(self.weight_N)

    def draw(self, uniform: float) -> int:
        """One particle, by weight."""
        total_N = self.weight_N.softmax(0).cumsum(0)
        return min(
            int(torch.searchsorted(total_N, torch.tensor(uniform, dtype=torch.float64), right=True)), self.alive()[-1]
        )

    def num_agreed(self) -> int:
        """How many of the slots written first hold the same in all particles that count."""
        ids_NT = self.canvases.batch.ids_BL[:, self.slots][self.alive()]
        differs_T = (ids_NT != ids_NT[:1]).any(dim=0)
        return int(differs_T.long().argmax()) if bool(differs_T.any()) else len(self.slots)

    def reveals(self, n: int, first: int, last: int, row: int) -> list[Reveal]:
        """What particle `n` wrote at its slots from number `first` up to `last`, told after the passes so far."""
        ids = self.canvases.batch.ids_BL[n].tolist()
        logp, sampled = self.logp_NT[n].tolist(), self.sampled_NT[n].tolist()
        slots = self.slots[first:last]
        return [
            Reveal(row, slot, ids[slot], logp[t], sampled[t], self.num_passes) for t, slot in enumerate(slots, first)
        ]


def _beside(values_NT: Tensor, value_N: Tensor) -> Tensor:
    return torch.cat([values_NT, value_N[:, None].to(values_NT)], dim=1)
