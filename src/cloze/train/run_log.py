"""Training metrics: averaged between log lines, written to TensorBoard, drawn as curves."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError
from cloze.files import replaced_file

TENSORBOARD_FOLDER = "tensorboard"
# The components of a pre-training loss.
LOSS_COMPONENTS = ("mlm_loss", "nsp_loss", "sop_loss", "sbo_loss")
# Prefix, label and line style of held-out losses; those of long sequences are a curve of their own.
_HELD_OUT = (("held_out", "held out", "o-"), ("held_out_long", "held out, long", "s--"))

Metrics = Sequence[dict[str, float]]
"""The rows of ``metrics.jsonl``."""


class MetricsTracker:
    """Averages metrics between log lines, and measures the throughput."""

    def __init__(self, flops_per_token: float = 0.0, peak_flops: float = 0.0) -> None:
        """``peak_flops``: what a large matrix product reaches, in operations per second; 0 if not measured."""
        self._peak_share_per_speed = flops_per_token / peak_flops if peak_flops else 0.0
        self._tokens_seen = 0
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0
        self._tokens = 0
        self._start = time.monotonic()

    def add(self, metrics: Mapping[str, float], tokens: int) -> None:
        """Add one step."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1
        self._tokens += tokens
        self._tokens_seen += tokens

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold, so that the next mean is that of an uninterrupted run."""
        return {"sums": self._sums, "count": self._count, "seen": self._tokens_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what ``state_dict`` returned; the clock starts anew."""
        self._sums, self._count, self._tokens_seen = dict(state["sums"]), state["count"], state["seen"]

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush, and reset them."""
        metrics = self.current()
        self._reset()
        return metrics

    def current(self) -> dict[str, float]:
        """Return the means since the last flush; without the metrics of steps if all of them were rejected."""
        metrics = {name: total / self._count for name, total in self._sums.items()}
        tokens_per_second = self._tokens / max(1e-9, time.monotonic() - self._start)
        metrics["tokens_per_second"] = tokens_per_second
        if self._peak_share_per_speed:
            metrics["share_of_peak"] = tokens_per_second * self._peak_share_per_speed
        metrics["tokens_seen"] = self._tokens_seen
        return metrics


class TensorBoardLogger:
    """Writes the metrics of a run for TensorBoard, an optional extra."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs TensorBoard; install it with: pip install 'cloze-bert[tensorboard]'"
            ) from error
        # A resumed run writes what came after its checkpoint a second time, with equal values.
        self._writer = SummaryWriter(str(run / TENSORBOARD_FOLDER))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curve of each metric."""
        for name, value in metrics.items():
            group = "held out" if name.startswith("held_out_") else "training"
            self._writer.add_scalar(f"{group}/{name.removeprefix('held_out_')}", value, step)
        self._writer.flush()


def series(metrics: Metrics, name: str) -> tuple[list[float], list[float]]:
    """Return the steps and the values of one metric."""
    rows = [row for row in metrics if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]


def draw_curves(metrics: Metrics, path: Path) -> None:
    """Draw the losses over the steps, held-out ones as dots, into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    components = [name for name in LOSS_COMPONENTS if series(metrics, name)[0]]
    # Their sum is drawn only where there are no components: it would clutter the picture.
    for name in components or ["loss"]:
        (line,) = axes.plot(*series(metrics, name), label=name.replace("_", " "), linewidth=1, alpha=0.7)
        for prefix, label, style in _HELD_OUT:
            steps, values = series(metrics, f"{prefix}_{name}")
            if steps:
                axes.plot(steps, values, style, color=line.get_color(), label=f"{name.replace('_', ' ')}, {label}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png")
