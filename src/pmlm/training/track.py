"""Events of a run for TensorBoard; an extra, beside metrics.jsonl, which is always written."""

from pathlib import Path

from pmlm.errors import ConfigError
from pmlm.training.run import Evaluation, Event
from pmlm.training.trainer import StepReport


class BoardWriter:
    """Writes scalars under `folder`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard is not installed: pip install 'pmlm[track]'") from None
        self.writer = SummaryWriter(str(folder))

    def write(self, event: Event) -> None:
        if isinstance(event, StepReport):
            values = {"loss": event.loss, "grad_norm": event.grad_norm, "lr": event.lr, "tokens": event.tokens}
            for name, value in values.items():
                self.writer.add_scalar(f"train/{name}", value, event.step)
        elif isinstance(event, Evaluation):
            for visibility, figures in event.bits_per_byte.items():
                for length, value in figures.items():
                    self.writer.add_scalar(f"heldout/{visibility}/{length}", value, event.step)

    def close(self) -> None:
        self.writer.close()
