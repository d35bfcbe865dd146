"""What the bar and ``metrics.jsonl`` say: means since the last reading, tokens a second, the share of the peak.

Figures for TensorBoard, for those who ask: an extra that pre-training does without.

``metrics.jsonl`` -> a picture.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError
from cloze.files import replaced_file


class Meter:
    """Sums until somebody reads them."""

    def __init__(self, flops_a_token: float = 0.0, peak: float = 0.0) -> None:
        """``peak`` is what the machine's matrix product reaches, in operations a second; 0 where nobody measured."""
        self._share_of_one = flops_a_token / peak if peak else 0.0
        self._seen = 0
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0
        self._tokens = 0
        self._start = time.monotonic()

    def add(self, figures: Mapping[str, float], tokens: int) -> None:
        """Count one step."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1
        self._tokens += tokens
        self._seen += tokens

    def figures(self) -> dict[str, Any]:
        """What a checkpoint remembers, so that the next mean is that of an uninterrupted run."""
        return {"sums": self._sums, "count": self._count, "seen": self._seen}

    def restore(self, figures: Mapping[str, Any]) -> None:
        """Go on from such figures; the clock starts anew."""
        self._sums, self._count, self._seen = dict(figures["sums"]), figures["count"], figures["seen"]

    def read(self) -> dict[str, float]:
        """The figures since the last reading, and begin anew."""
        figures = self.look()
        self._clear()
        return figures

    def look(self) -> dict[str, float]:
        """The figures since the last reading so far; a stretch in which every step was left out has no means."""
        figures = {name: total / self._count for name, total in self._sums.items()}
        speed = self._tokens / max(1e-9, time.monotonic() - self._start)
        figures["tokens_per_second"] = speed
        if self._share_of_one:
            figures["share_of_peak"] = speed * self._share_of_one
        figures["tokens_seen"] = self._seen
        return figures


FOLDER = "tensorboard"


class Board:
    """Writes every figure of a run as a curve."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs TensorBoard; install it with: pip install 'cloze-bert[tensorboard]'"
            ) from error
        # What was written after the checkpoint that a run goes on from comes twice, with equal values.
        self._writer = SummaryWriter(str(run / FOLDER))

    def tell(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in figures.items():
            group = "held out" if name.startswith("held_out_") else "training"
            self._writer.add_scalar(f"{group}/{name.removeprefix('held_out_')}", value, step)
        self._writer.flush()


Metrics = Sequence[dict[str, float]]


# Of a loss that has some.
PARTS = ("mlm_loss", "nsp_loss", "sop_loss", "sbo_loss")
# How held-out losses are named, told and drawn: those of long sequences are other numbers, not later ones.
_HELD_OUT = (("held_out", "held out", "o-"), ("held_out_long", "held out, long", "s--"))


def series(metrics: Metrics, name: str) -> tuple[list[float], list[float]]:
    """The steps and the values of one figure."""
    rows = [row for row in metrics if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]


def draw_curves(metrics: Metrics, path: Path) -> None:
    """Draw the losses over the steps, held-out ones as dots, into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    parts = [name for name in PARTS if series(metrics, name)[0]]
    # With the parts there, their sum would only crowd the picture.
    for name in parts or ["loss"]:
        (line,) = axes.plot(*series(metrics, name), label=name.replace("_", " "), linewidth=1, alpha=0.7)
        for group, told, dots in _HELD_OUT:
            steps, values = series(metrics, f"{group}_{name}")
            if steps:
                axes.plot(steps, values, dots, color=line.get_color(), label=f"{name.replace('_', ' ')}, {told}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png")
