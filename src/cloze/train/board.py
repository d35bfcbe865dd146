"""Figures for TensorBoard, for those who ask: an extra that pre-training does without."""

from collections.abc import Mapping
from pathlib import Path

from cloze.errors import ConfigError

FOLDER = "tensorboard"


class Board:
    """Writes every figure of a run as a curve."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs TensorBoard; install it with: pip install 'cloze[tensorboard]'"
            ) from error
        # What was written after the checkpoint that a run goes on from comes twice, with equal values.
        self._writer = SummaryWriter(str(run / FOLDER))

    def tell(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            group = "held out" if name.startswith("held_out_") else "training"
            self._writer.add_scalar(f"{group}/{name.removeprefix('held_out_')}", value, step)
        self._writer.flush()
