"""Second thoughts: re-hide some of what was written and write it again, with the exact log-likelihood before and after.

- *mask-predict*: in each pass the least certain tokens are hidden together and rewritten; their number falls from pass
  to pass.
- *gibbs*: in each pass every written token, one after the other in a random order, is hidden and drawn again from its
  conditional given all the others.

Certainty is the log-probability of a token given all the others. What was given stays, and the constraints of the
first writing hold in every pass.

Shapes: N written tokens, L slots, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch

from pmlm.corpus.framing import Row, row_batch
from pmlm.errors import ConfigError, OrderError
from pmlm.generation.canvas import Canvas, canvas_text
from pmlm.likelihood import MAX_SLOTS, hidden_logp, order_logp, order_ranks
from pmlm.model import Slots, Visibility
from pmlm.results import Filled, Refined
from pmlm.runtime import generator
from pmlm.writer import Writer, WriteSettings

Method = Literal["mask-predict", "gibbs"]


def check_refinement(method: str, passes: int) -> None:
    if method not in get_args(Method):
        raise ConfigError(f"unknown refinement {method!r}. Known: {', '.join(get_args(Method))}.")
    if passes < 1:
        raise ConfigError(f"passes must be at least 1, got {passes}")


def refine(
    writer: Writer, filled: Filled, settings: WriteSettings, *, method: Method, passes: int, seed: int
) -> Refined:
    """Rewrite a text `passes` times; the settings are those it was written with."""
    check_refinement(method, passes)
    if settings.visibility == "causal":
        raise OrderError("a left-to-right model cannot rewrite what stands before other text")
    canvas = writer.canvas_of(filled)
    ids = list(filled.ids)
    written = [i + 1 for i in sorted(filled.order)]
    before = _nll(writer, canvas.row, ids, written, settings.visibility)
    for number in range(passes if written else 0):  # words that must appear may have filled everything
        rng = generator(seed, f"refine-{method}", number)
        if method == "gibbs":
            for pick in torch.randperm(len(written), generator=rng).tolist():
                ids = _rewrite(writer, canvas, ids, [written[pick]], settings, rng)
        else:
            count = math.ceil(len(written) * (passes - number) / (passes + 1))
            certainty_N = _certainty(writer, canvas.row, ids, written, settings.visibility)
            worst = [written[i] for i in certainty_N.argsort(stable=True)[:count].tolist()]
            ids = _rewrite(writer, canvas, ids, sorted(worst), settings, rng)
    return Refined(
        text=canvas_text(canvas, ids, writer.tokenizer),
        tokens=[writer.tokenizer.show(i) for i in ids[1:-1]],
        changed=[slot - 1 for slot in written if ids[slot] != filled.ids[slot]],
        nll_before=before,
        nll_after=_nll(writer, canvas.row, ids, written, settings.visibility),
        seed=seed,
        visibility=settings.visibility,
    )


def _rewrite(
    writer: Writer, canvas: Canvas, ids: list[int], slots: Sequence[int], settings: WriteSettings, rng: torch.Generator
) -> list[int]:
    """The same text with some slots written anew, under the same rules; as it was, where they leave no way."""
    hidden = set(slots)
    row = replace(canvas.row, ids=tuple(ids), maskable=tuple(s in hidden for s in range(len(ids))))
    order = settings.order if settings.order.kind != "list" else replace(settings.order, kind="random", positions=())
    speed = replace(settings.speed, particles=None)  # they are for a first writing, from the beginning
    turns = writer.turns([replace(canvas, row=row)], [rng], replace(settings, order=order, written=(), speed=speed))
    found = {reveal.slot: reveal.token for turn in turns for reveal in turn}
    return [found.get(slot, i) for slot, i in enumerate(ids)] if len(found) == len(slots) else list(ids)


def _certainty(writer: Writer, row: Row, ids: list[int], slots: Sequence[int], visibility: Visibility) -> torch.Tensor:
    """[N] the log-probability of each token given all the others."""
    step = max(1, MAX_SLOTS // len(ids))
    parts = []
    for some in (slots[start : start + step] for start in range(0, len(slots), step)):
        rows = [replace(row, ids=tuple(ids), maskable=tuple(s == slot for s in range(len(ids)))) for slot in some]
        batch = row_batch(rows, writer.tokenizer)
        at = Slots(torch.arange(len(some)), torch.tensor(some))
        with torch.no_grad():
            rank_BL = torch.zeros_like(batch.ids_BL)
            logp_NV = hidden_logp(writer.model, batch, batch.maskable_BL, rank_BL, visibility, at)
        parts.append(logp_NV.gather(1, torch.tensor([[ids[slot]] for slot in some]))[:, 0])
    return torch.cat(parts)


def _nll(writer: Writer, row: Row, ids: list[int], slots: Sequence[int], visibility: Visibility) -> float:
    """Exact, from left to right, of what was written given what was given."""
    batch = row_batch([replace(row, ids=tuple(ids))], writer.tokenizer)
    rank_BL = order_ranks(batch, [list(slots)])
    return -float(order_logp(writer.model, batch, rank_BL, visibility).sum())
