"""Small exact stand-ins: models whose conditionals are known, and tiny networks and batches."""

import itertools

import torch
from torch import Tensor, nn

from pmlm.batch import Batch, make_batch
from pmlm.model import Inputs, LanguageModel, ModelConfig, Slots, build_model
from pmlm.runtime import generator

MASK = 0


class TableModel(nn.Module):
    """Exact conditionals of a joint table over `length` tokens with ids 1 … vocab - 1; id 0 is the mask.

    It reads who sees whom from the inputs, as a network does: a token that is not visible is summed out.
    """

    device = torch.device("cpu")

    def __init__(self, vocab: int, length: int, seed: int = 0, *, causal: bool = False) -> None:
        super().__init__()
        self.config = ModelConfig(
            vocab_size=vocab, num_layers=1, width=2, num_heads=1, mask_id=MASK, forbidden_ids=(MASK,)
        )
        self.causal = causal
        weights = torch.rand(*([vocab] * length), generator=generator(seed, "table"), dtype=torch.float64) ** 2
        for axis in range(length):
            weights.index_fill_(axis, torch.tensor([MASK]), 0.0)
        self.joint = weights / weights.sum()

    def log_joint(self, ids: list[int]) -> float:
        return float(self.joint[tuple(ids)].log())

    def forward(self, inputs: Inputs, at: Slots) -> Tensor:
        if not len(at):
            return torch.zeros(0, self.config.vocab_size)
        return torch.stack(
            [self._conditional(inputs, b, s) for b, s in zip(at.rows_M.tolist(), at.slots_M.tolist(), strict=True)]
        )

    def _conditional(self, inputs: Inputs, row: int, slot: int) -> Tensor:
        ids, positions = inputs.ids_BL[row], inputs.positions_BL[row % len(inputs.positions_BL)]
        length = self.joint.dim()
        table = self.joint
        target = slot if self.causal else int(positions[slot])
        for k in range(len(ids)):
            sees = inputs.visible_BQK is None or bool(inputs.visible_BQK[row % len(inputs.visible_BQK), slot, k])
            if sees and int(ids[k]) != MASK:
                place = k - 1 if self.causal else int(positions[k])
                keep = torch.zeros(table.shape[place], dtype=torch.float64)
                keep[ids[k]] = 1
                table = table * keep.view([-1 if axis == place else 1 for axis in range(length)])
        marginal = table.sum(dim=[axis for axis in range(length) if axis != target]) if length > 1 else table
        return (marginal / marginal.sum()).log().float()


class UniformModel(nn.Module):
    """Every allowed id is as likely as any other. It may pretend to be on another device."""

    def __init__(self, vocab: int, device: str = "cpu") -> None:
        super().__init__()
        self.device = torch.device(device)
        self.config = ModelConfig(
            vocab_size=vocab, num_layers=1, width=2, num_heads=1, mask_id=MASK, forbidden_ids=(MASK,)
        )

    def forward(self, inputs: Inputs, at: Slots) -> Tensor:
        tensors = (inputs.ids_BL, inputs.positions_BL, inputs.visible_BQK, at.rows_M, at.slots_M)
        assert all(tensor is None or tensor.device == self.device for tensor in tensors)
        logits = torch.zeros(len(at), self.config.vocab_size)
        logits[:, MASK] = -torch.inf
        return logits


def tiny_config(**changes: object) -> ModelConfig:
    settings: dict[str, object] = {
        "vocab_size": 11, "num_layers": 2, "width": 32, "num_heads": 4, "ff_width": 48, "max_length": 24,
        "relative_clip": 5, "dropout": 0.0, "init_std": 0.25, "mask_id": MASK, "forbidden_ids": (MASK, 1, 2),
        "visibilities": ("bidirectional", "order-causal"),
    }  # fmt: skip
    return ModelConfig(**(settings | changes))  # type: ignore[arg-type]


def tiny_model(seed: int = 0, **changes: object) -> LanguageModel:
    """A random network, sharp enough that its conditionals differ."""
    return build_model(tiny_config(**changes), generator(seed, "tiny")).eval()


def bare_batch(*rows: list[int], length: int | None = None) -> Batch:
    """Rows without markers, everything maskable, padded with 0."""
    return make_batch(rows, [[True] * len(row) for row in rows], pad_id=MASK, length=length)


def framed_batch(*rows: list[int], length: int | None = None) -> Batch:
    """Rows between a start marker (1) and an end marker (2)."""
    framed = [[1, *row, 2] for row in rows]
    return make_batch(framed, [[False, *([True] * len(row)), False] for row in rows], pad_id=MASK, length=length)


def random_rows(num: int, length: int, seed: int = 0, vocab: int = 11) -> list[list[int]]:
    return torch.randint(3, vocab, (num, length), generator=generator(seed, "rows")).tolist()


def all_masks(length: int) -> list[Tensor]:
    return [torch.tensor(flags) for flags in itertools.product([False, True], repeat=length)]
