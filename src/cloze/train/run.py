"""The folder of a training run and the files in it.

run.json        the settings; the same command resumes the run, and a command with other settings is refused
metrics.jsonl   one line per measurement
checkpoints/    the training state, deleted when the run is finished
model/          the model folder, written last
"""

import hashlib
import json
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path
from typing import Any

import torch

from cloze.checkpoint import RUN_MODEL, ModelFolder, StateStore, save_adapter, save_folder
from cloze.errors import ClozeError, ConfigError, format_option
from cloze.files import OUR_JSON_LIMIT, check_replaceable, flush, read_json, replace_json, replaced_file
from cloze.locks import is_ours, only_writer, sweep
from cloze.progress import Progress
from cloze.threads import training_threads
from cloze.train.distributed import ProcessGroup

SETTINGS = "run.json"
METRICS = "metrics.jsonl"
RESULTS = "eval_results.json"
BEST = "best.safetensors"  # the best weights so far, with early stopping
COMPARISON = "comparison"  # a run on some of the rows, from which fine-tuning continues on all rows
TEACHER = "teacher"  # texts and outputs of the teacher, cached for distillation on raw text
CURVES = "curves.png"
_OTHER_OUT = f"choose another {format_option('out')}"
_LONGEST_SHOWN = 100  # characters of a value in a message
# Facts that runs of earlier versions did not record; if they are missing, they are not compared.
_RECORDED_LATER = frozenset(
    {
        "content",
        "teacher",
        "longest_answer",
        "base",
        "corpus_files",
        "domain_files",
        "test_content",
        "few",
        "contrastive",
    }
)
# Not compared: the baseline changes only the report, and the number of threads only the last digits of sums.
_THREADS = "threads"
_NOT_COMPARED = frozenset({"baseline", _THREADS})
_WIDTH, _HEIGHT, _MARGIN = 320, 160, 30  # size of a curve in a notebook, in pixels
# The components of a pre-training loss.
LOSS_COMPONENTS = ("mlm_loss", "lm_loss", "plm_loss", "rtd_loss", "nsp_loss", "sop_loss", "relation_loss", "sbo_loss")
# Prefix, label and line style of held-out losses; those of long sequences form a separate curve.
_HELD_OUT = (("held_out", "held out", "o-"), ("held_out_long", "held out, long", "s--"))

Metrics = Sequence[dict[str, float]]
"""The rows of ``metrics.jsonl``."""


class Run:
    """The folder of one training run.

    Attributes:
        folder: The folder's path.
        store: The checkpoints.
        model_folder: The path of the saved model.
        resume_note: Difference between the command that resumes the run and the one that started it, for messages.
        notes: Warnings about a resumed run, such as a different number of threads.
    """

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        self._lock = ExitStack()
        weakref.finalize(self, self._lock.close)
        self.folder = folder
        self.store = StateStore(folder / "checkpoints")
        self.model_folder = folder / RUN_MODEL
        self.resume_note = ""

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> "Run":
        """Start a run, or open one that was started with the same settings, and lock it against other processes.

        The lock is held until ``close`` is called or the ``with`` block ends.

        Args:
            folder: The folder of the run.
            settings: Everything the result depends on, as JSON values.
            fresh: Delete an existing run first.

        Raises:
            ConfigError: If the folder holds a run with other settings, or something that is not a run.
            ClozeError: If another process has opened it.
        """
        run = cls(folder)
        run._lock.enter_context(only_writer(folder))
        try:
            run._start(json.loads(json.dumps(settings)), fresh=fresh)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def join(cls, folder: Path, settings: Mapping[str, Any]) -> "Run":
        """Open a run that rank 0 has started, without locking it."""
        _refuse_changes(folder, _read_settings(folder), json.loads(json.dumps(settings)))
        return cls(folder)

    def _start(self, settings: dict[str, Any], *, fresh: bool) -> None:
        folder = self.folder
        if (folder / SETTINGS).is_file() and not fresh:
            recorded = _read_settings(folder)
            _refuse_changes(folder, recorded, settings)
            if not self.finished:
                self._fix_threads(recorded.get(_THREADS))
            self.notes += _resume_notes(folder, recorded, settings)
            sweep(folder)
            return
        if not _is_available(folder):
            raise ConfigError(f"{folder}: exists but is not a run; {_OTHER_OUT}")
        _refuse_to_delete_base(folder, settings.get("model"))
        check_replaceable(folder, "folder")
        try:
            if self.store.folder.is_dir():
                with self.store.held():
                    _delete_contents(folder)
            else:
                _delete_contents(folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._fix_threads()
            replace_json(folder / SETTINGS, {**settings, _THREADS: torch.get_num_threads()})
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror}); {_OTHER_OUT}") from error
        self.resume_note = f", without {format_option('fresh', True)}," if fresh else ""

    def _fix_threads(self, recorded: int | None = None) -> None:
        """Use the recorded number of threads, or the fastest number on this machine, until the run is closed."""
        note = self._lock.enter_context(training_threads(recorded))
        self.notes += [note] if note else []

    def close(self) -> None:
        """Release the lock, so that other processes can open the run."""
        self._lock.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def finished(self) -> bool:
        """Whether the model has been written, which happens last."""
        return self.model_folder.is_dir()

    def report_finished(self, progress: Progress) -> bool:
        """Return whether the run is finished; if so, report it and delete the files that only training needs."""
        if self.finished:
            self.clear()  # files remain if the process was killed after it wrote the model
            progress.say(f"{self.folder}: already finished; use {format_option('fresh', True)} to start over")
        else:
            for note in self.notes:
                progress.say(note)
        return self.finished

    def finish(self, contents: ModelFolder) -> None:
        """Write the curves and, last, the model or its adapter; a run with a model is finished."""
        draw_curves(self.metrics(), self.folder / CURVES)
        contents.model.cpu()
        (save_folder if contents.adapter is None else save_adapter)(contents, self.model_folder)
        self.clear()

    def clear(self) -> None:
        """Delete the files that only training needs; errors are ignored, since a later call can delete them."""
        with suppress(OSError):
            (self.folder / BEST).unlink(missing_ok=True)
        for name in (COMPARISON, TEACHER):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.store.clear()

    def log(self, step: int, **metrics: float) -> None:
        """Append a measurement to the metrics."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **metrics}) + "\n")
        except OSError as error:
            raise ClozeError(
                f"{path}: cannot be written ({error.strerror}); free some space and run the same command to resume"
            ) from error

    def metrics(self) -> list[dict[str, float]]:
        """Return all measurements; a line that a power cut left incomplete is skipped."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def rewind(self, step: int, *, evaluation_due: bool = False) -> None:
        """Drop the measurements after a step; with ``evaluation_due`` also the evaluation at the step itself."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        # Training measurements have a time, evaluations do not.
        kept = [row for row in kept if not evaluation_due or row["step"] < step or "seconds" in row]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        with replaced_file(self.folder / METRICS) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def measured(self) -> tuple[int, str]:
        """Return the size and the SHA-256 of the metrics file, flushed to disk, for a checkpoint to record."""
        path = self.folder / METRICS
        if not path.is_file():
            return 0, hashlib.sha256().hexdigest()
        try:
            flush(path)
        except OSError as error:
            raise ClozeError(f"{path}: cannot be written ({error.strerror}); run the same command to resume") from error
        text = path.read_bytes()
        return len(text), hashlib.sha256(text).hexdigest()

    def check_measured(self, recorded: Sequence[Any] | None) -> None:
        """Check that the metrics file starts with what a checkpoint recorded: early stopping depends on it."""
        if recorded is None:  # no checkpoint, or one of an earlier version
            return
        size, digest = recorded
        path = self.folder / METRICS
        text = path.read_bytes()[:size] if path.is_file() else b""
        if hashlib.sha256(text).hexdigest() != digest:
            raise ConfigError(
                f"{path}: has changed since the last checkpoint; restore the file, or start over with "
                f"{format_option('fresh', True)}"
            )

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final scores."""
        replace_json(self.folder / RESULTS, dict(results))

    def write_advice(self, advice: Sequence[str], progress: Progress) -> None:
        """Report suggestions for the next run and add them to the final scores."""
        for line in advice:
            progress.say(line)
        if advice:
            self.write_results({**self.results(), "advice": list(advice)})

    def results(self) -> dict[str, Any]:
        """Read the final scores."""
        return read_json(self.folder / RESULTS)


def _is_available(folder: Path) -> bool:
    """Return whether a run may be created here: no folder, a run, or the remains of a run killed at its start."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    # A run that was killed at its start leaves only temporary files.
    return (folder / SETTINGS).is_file() or all(is_ours(path) for path in folder.iterdir())


def _delete_contents(folder: Path) -> None:
    """Delete a run; its settings last, so that an interrupted deletion is still recognized as a run."""
    if not folder.exists():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SETTINGS):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _refuse_to_delete_base(folder: Path, model: str | None) -> None:
    """Refuse to delete the model that the run starts from."""
    if model is not None and Path(model).exists() and Path(model).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder}: holds the model {model}, which the run would delete; {_OTHER_OUT}")


def _read_settings(folder: Path) -> dict[str, Any]:
    return read_json(folder / SETTINGS, ConfigError, OUR_JSON_LIMIT)


def _resume_notes(folder: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    if settings.get("base") is not None and "base" not in recorded:
        yield (
            f"{folder}: started by an earlier version, which did not record the files of {settings.get('model')}; "
            "whether they are the same is not known"
        )
    before, now = recorded.get(_THREADS), torch.get_num_threads()
    if before is not None and before != now:
        yield (
            f"{folder}: started with {before} threads and resumed with {now}: the last digits of the numbers may "
            f"differ; with {before} they do not"
        )


def _refuse_changes(folder: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    changes = list(_changes(recorded, settings))
    if changes:
        raise ConfigError(
            f"{folder}: settings differ from those this run was started with: {'; '.join(changes)}; "
            f"{_OTHER_OUT}, or start over with {format_option('fresh', True)}"
        )


def _changes(recorded: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield one line per difference; nested objects, such as the corpus, are compared entry by entry."""
    for key in sorted(recorded.keys() | settings.keys()):
        before, now = recorded.get(key), settings.get(key)
        if key in _NOT_COMPARED or (key in _RECORDED_LATER and key not in recorded):
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _changes(before, now, f"{prefix}{key}: ")
        elif before != now:
            index, before, now = _first_difference(before, now)
            yield f"{prefix}{key}{index} was {_shortened(before)} and is now {_shortened(now)}"


def _first_difference(before: Any, now: Any) -> tuple[str, Any, Any]:
    """Return the index and values where two lists of equal length, such as corpus files, first differ.

    Other values are returned unchanged, with an empty index.
    """
    if not (isinstance(before, list) and isinstance(now, list) and len(before) == len(now)):
        return "", before, now
    pairs = enumerate(zip(before, now, strict=True))
    number, pair = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    index, before, now = _first_difference(*pair)
    return f"[{number}]{index}", before, now


def _shortened(value: Any) -> str:
    """Return a value's text, truncated for a one-line message: a corpus may have a thousand files with digests."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def open_run(out: Path, recorded: Mapping[str, Any], *, fresh: bool = False, group: ProcessGroup | None = None) -> Run:
    """Open a run in every process of a group: rank 0 creates or resumes it, then the other ranks open it."""
    group = group or ProcessGroup()
    # torchrun restarts processes with the same command: only the first attempt starts over.
    fresh = fresh and not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    run = Run.open(out, recorded, fresh=fresh) if group.is_main else None
    group.barrier()
    return run or Run.join(out, recorded)


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
    """Draw the losses over the steps into a PNG file, held-out losses as dots."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    components = [name for name in LOSS_COMPONENTS if series(metrics, name)[0]]
    # The total is drawn only without components: it would clutter the figure.
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
