"""The folder of a training run, and what is logged into it.

run.json        the settings; the same command resumes the run, another one is refused
metrics.jsonl   one line per measurement
checkpoints/    the state of the training, until it is finished
model/          the model folder, written last
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from cloze.checkpoint import RUN_MODEL, ModelFolder, StateStore, save_adapter, save_folder
from cloze.errors import ClozeError, ConfigError
from cloze.files import OUR_JSON_LIMIT, read_json, replace_json, replaced_file
from cloze.progress import Progress
from cloze.train.distributed import ProcessGroup

SETTINGS = "run.json"
METRICS = "metrics.jsonl"
RESULTS = "eval_results.json"
BEST = "best.safetensors"  # the best weights so far, with early stopping
CURVES = "curves.png"
_LONGEST_SHOWN = 100  # characters of a value in a message
# Facts that runs of earlier versions did not record; where they are missing, they are not compared.
_RECORDED_LATER = frozenset({"content", "teacher", "longest_answer", "few", "contrastive"})
_INCOMPLETE_SETTINGS = f"{SETTINGS}.tmp"  # all that a run killed at its start leaves
TENSORBOARD_FOLDER = "tensorboard"
_WIDTH, _HEIGHT, _MARGIN = 320, 160, 30  # of a curve in a notebook, in pixels
# The components of a pre-training loss.
LOSS_COMPONENTS = ("mlm_loss", "nsp_loss", "sop_loss", "sbo_loss")
# Prefix, label and line style of held-out losses; those of long sequences are a curve of their own.
_HELD_OUT = (("held_out", "held out", "o-"), ("held_out_long", "held out, long", "s--"))

Metrics = Sequence[dict[str, float]]
"""The rows of ``metrics.jsonl``."""


class Run:
    """The folder of one training.

    Attributes:
        folder: The folder itself.
        store: The checkpoints.
        model_folder: Where the model is saved at the end.
        resume_note: How the command that resumes the run differs from the one that started it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = StateStore(folder / "checkpoints")
        self.model_folder = folder / RUN_MODEL
        self.resume_note = ""

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> "Run":
        """Start a run, or open one that was started with the same settings.

        Args:
            folder: The folder of the run.
            settings: Everything the result depends on, as JSON values.
            fresh: Delete a run that is there.

        Raises:
            ConfigError: If the folder holds a run with other settings, or something else.
        """
        settings = json.loads(json.dumps(settings))
        if (folder / SETTINGS).is_file() and not fresh:
            _refuse_changes(folder, read_json(folder / SETTINGS, ConfigError, OUR_JSON_LIMIT), settings)
            return cls(folder)
        if not _is_available(folder):
            raise ConfigError(f"{folder}: exists and holds no run; choose another --out")
        _refuse_to_delete_base(folder, settings.get("model"))
        run = cls(folder)
        try:
            if run.store.folder.is_dir():
                with run.store.held():
                    _delete_contents(folder)
            else:
                _delete_contents(folder)
            folder.mkdir(parents=True, exist_ok=True)
            replace_json(folder / SETTINGS, settings)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error
        run.resume_note = ", without --fresh," if fresh else ""
        return run

    @property
    def finished(self) -> bool:
        """Whether the model has been written."""
        return self.model_folder.is_dir()

    def report_finished(self, progress: Progress) -> bool:
        """Return whether the run is finished; if so, report it and delete what only training needs."""
        if self.finished:
            self.clear()  # something is left if the process was killed after it wrote the model
            progress.say(f"{self.folder}: finished already; use --fresh to start over")
        return self.finished

    def finish(self, contents: ModelFolder) -> None:
        """Write the curves and, last, the model or its adapter, whose presence marks the run as finished."""
        draw_curves(self.metrics(), self.folder / CURVES)
        contents.model.cpu()
        (save_folder if contents.adapter is None else save_adapter)(contents, self.model_folder)
        self.clear()

    def clear(self) -> None:
        """Delete what only training needs; on failure nothing is lost, and the same command tries again."""
        with suppress(OSError):
            (self.folder / BEST).unlink(missing_ok=True)
        self.store.clear()

    def log(self, step: int, **metrics: float) -> None:
        """Append a measurement."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
        except OSError as error:
            raise ClozeError(
                f"{path}: cannot be written ({error.strerror}); free some space, and the same command goes on"
            ) from error

    def metrics(self) -> list[dict[str, float]]:
        """Return all measurements; a line that a power cut left incomplete is skipped."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def rewind(self, step: int, *, evaluation_due: bool = False) -> None:
        """Drop the measurements after a step, and the evaluation at the step if it is due again."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        # Rows of the training itself have a time, rows of evaluations do not.
        kept = [row for row in kept if not evaluation_due or row["step"] < step or "seconds" in row]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        with replaced_file(self.folder / METRICS) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final scores."""
        replace_json(self.folder / RESULTS, dict(results))

    def write_advice(self, advice: Sequence[str], progress: Progress) -> None:
        """Report what to try next, and add it to the final scores; nothing if there is nothing to say."""
        for line in advice:
            progress.say(line)
        if advice:
            self.write_results({**self.results(), "advice": list(advice)})

    def results(self) -> dict[str, Any]:
        """Read the final scores."""
        return read_json(self.folder / RESULTS)


def _is_available(folder: Path) -> bool:
    """Return whether a run may be created here: no folder, a run, or the remains of one killed at its start."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    return (folder / SETTINGS).is_file() or {path.name for path in folder.iterdir()} <= {_INCOMPLETE_SETTINGS}


def _delete_contents(folder: Path) -> None:
    """Delete a run; its settings last, so that it is still recognized as a run if this is interrupted."""
    if not folder.exists():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SETTINGS):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _refuse_to_delete_base(folder: Path, model: str | None) -> None:
    """Refuse to delete the model from which the run is to start."""
    if model is not None and Path(model).exists() and Path(model).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder}: holds the model {model}, which the run would delete; choose another --out")


def _refuse_changes(folder: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    changes = list(_changes(recorded, settings))
    if changes:
        raise ConfigError(
            f"{folder}: settings differ from those this run was started with: {'; '.join(changes)}; "
            "choose another --out, or start over with --fresh"
        )


def _changes(recorded: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield one line per difference; of nested objects, such as the corpus, only the entries that differ."""
    for key in sorted(recorded.keys() | settings.keys()):
        before, now = recorded.get(key), settings.get(key)
        if key in _RECORDED_LATER and key not in recorded:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _changes(before, now, f"{prefix}{key}: ")
        elif before != now:
            index, before, now = _first_difference(before, now)
            yield f"{prefix}{key}{index} was {_shortened(before)} and is now {_shortened(now)}"


def _first_difference(before: Any, now: Any) -> tuple[str, Any, Any]:
    """Return where two lists of the same length first differ, such as the files of a corpus; other values whole."""
    if not (isinstance(before, list) and isinstance(now, list) and len(before) == len(now)):
        return "", before, now
    pairs = enumerate(zip(before, now, strict=True))
    number, pair = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    index, before, now = _first_difference(*pair)
    return f"[{number}]{index}", before, now


def _shortened(value: Any) -> str:
    """Return a value for a message of one line: a corpus may have a thousand files, each with its fingerprint."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def open_run(out: Path, recorded: Mapping[str, Any], *, fresh: bool = False, group: ProcessGroup | None = None) -> Run:
    """Open a run in every process of a group: the main process creates the folder, then the others open it."""
    group = group or ProcessGroup()
    # torchrun restarts processes with the same command: only its first attempt starts over.
    fresh = fresh and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    run = Run.open(out, recorded, fresh=fresh) if group.is_main else None
    group.barrier()
    return run or Run.open(out, recorded)


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


def svg_curve(name: str, steps: Sequence[float], values: Sequence[float], colour: str) -> str:
    """Return a small SVG chart for notebooks, with the first and last step and the range of the values."""
    if not steps:
        return ""
    least, most = min(values), max(values)
    span, length = (most - least) or 1.0, (steps[-1] - steps[0]) or 1.0
    xs = [_MARGIN + (_WIDTH - 2 * _MARGIN) * (step - steps[0]) / length for step in steps]
    ys = [_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - least) / span for value in values]
    points = [(f"{x:.1f}", f"{y:.1f}") for x, y in zip(xs, ys, strict=True)]
    line = " ".join(",".join(point) for point in points)
    dots = "".join(f"<circle cx='{x}' cy='{y}' r='2' fill='{colour}'/>" for x, y in points)
    bottom = _HEIGHT - 10
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' font-size='11' fill='currentColor'>"
        f"<text x='{_MARGIN}' y='14'>{escape(name)}: {values[-1]:.4f} ({least:.3f} to {most:.3f})</text>"
        f"<polyline points='{line}' fill='none' stroke='{colour}'/>{dots}"
        f"<text x='{_MARGIN}' y='{bottom}'>step {steps[0]:g}</text>"
        f"<text x='{_WIDTH - _MARGIN}' y='{bottom}' text-anchor='end'>{steps[-1]:g}</text></svg>"
    )


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
