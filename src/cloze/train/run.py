"""A run's folder: what was asked, how far it is, and what came out.

run.json        the settings, so that the same command goes on and another one is refused
metrics.jsonl   one line a measurement
checkpoints/    the state of the training, while it lasts
model/          the model folder, once it is finished

The end of a run: its curves, its model, and nothing left that only training needs.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.checkpoint import RUN_MODEL, ModelFolder, StateStore, save_adapter, save_folder
from cloze.errors import ClozeError, ConfigError
from cloze.files import OUR_JSON_LIMIT, read_json, replace_json, replaced_file
from cloze.progress import Progress
from cloze.train.run_log import draw_curves

SETTINGS = "run.json"
METRICS = "metrics.jsonl"
RESULTS = "eval_results.json"
BEST = "best.safetensors"  # the weights that scored best so far, where somebody waits for better ones
_LONGEST_SHOWN = 100
# Facts that older runs have not written down; what is not known of them is not held against them.
_LATER = frozenset({"content", "teacher", "longest_answer"})
_BEGUN = f"{SETTINGS}.tmp"  # what a run consists of before its settings are written


class Run:
    """The folder of one training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = StateStore(folder / "checkpoints")
        self.model_folder = folder / RUN_MODEL
        self.other_flags = ""  # what the command that goes on has to have otherwise

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> "Run":
        """Start a run, or go on with one whose settings are the same."""
        wanted = json.loads(json.dumps(settings))
        if (folder / SETTINGS).is_file() and not fresh:
            _refuse_changes(folder, read_json(folder / SETTINGS, ConfigError, OUR_JSON_LIMIT), wanted)
            return cls(folder)
        if not _may_take(folder):
            raise ConfigError(f"{folder}: exists and holds no run; choose another --out")
        _refuse_to_lose(folder, wanted.get("model"))
        run = cls(folder)
        try:
            if run.store.folder.is_dir():
                with run.store.held():
                    _empty(folder)
            else:
                _empty(folder)
            folder.mkdir(parents=True, exist_ok=True)
            replace_json(folder / SETTINGS, wanted)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror}); choose another --out") from error
        run.other_flags = ", without --fresh," if fresh else ""
        return run

    @property
    def finished(self) -> bool:
        """Whether the model is there."""
        return self.model_folder.is_dir()

    def done_already(self, progress: Progress) -> bool:
        """Whether there is nothing left to do; then it is said, and what only training needs is cleared away."""
        if self.finished:
            self.clear()  # there is something if the end came between the model and this
            progress.say(f"{self.folder}: finished already; use --fresh to start over")
        return self.finished

    def clear(self) -> None:
        """Delete what only training needs; what cannot be deleted does no harm, and the same command tries again."""
        with suppress(OSError):
            (self.folder / BEST).unlink(missing_ok=True)
        self.store.clear()

    def log(self, step: int, **figures: float) -> None:
        """Add a measurement."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}) + "\n")
        except OSError as error:
            raise ClozeError(
                f"{path}: cannot be written ({error.strerror}); free some space, and the same command goes on"
            ) from error

    def metrics(self) -> list[dict[str, float]]:
        """All measurements so far; a line that a power cut left half-written does not count."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def rewind(self, step: int, *, owed: bool = False) -> None:
        """Drop the measurements after a step: they will be made again; the evaluation at it as well, if it is owed."""
        # What is said of the training itself has a time.
        kept = [row for row in self.metrics() if row["step"] <= step]
        kept = [row for row in kept if not owed or row["step"] < step or "seconds" in row]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        with replaced_file(self.folder / METRICS) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write the final scores."""
        replace_json(self.folder / RESULTS, dict(results))

    def results(self) -> dict[str, Any]:
        """The final scores."""
        return read_json(self.folder / RESULTS)


def _may_take(folder: Path) -> bool:
    """Whether a run may be made here: nothing is there, or a run, or what a run killed at its start has left."""
    if not folder.exists():
        return True
    return folder.is_dir() and ((folder / SETTINGS).is_file() or {path.name for path in folder.iterdir()} <= {_BEGUN})


def _empty(folder: Path) -> None:
    """Delete a run; its settings last, so that it can be told for a run if this is cut off."""
    if not folder.exists():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == SETTINGS):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _refuse_to_lose(folder: Path, model: str | None) -> None:
    """Refuse to delete the very model from which a run is to start."""
    if model is not None and Path(model).exists() and Path(model).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{folder}: holds the model {model}, which the run would delete; choose another --out")


def _refuse_changes(folder: Path, recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    changed = list(_changes(recorded, wanted))
    if changed:
        raise ConfigError(
            f"{folder}: this run was started otherwise: {'; '.join(changed)}; "
            "choose another --out, or start over with --fresh"
        )


def _changes(recorded: Mapping[str, Any], wanted: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Say what differs, in a line each; of a setting that is an object, such as the corpus, only what does."""
    for key in sorted(recorded.keys() | wanted.keys()):
        there, here = recorded.get(key), wanted.get(key)
        if key in _LATER and key not in recorded:
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _changes(there, here, f"{within}{key}: ")
        elif there != here:
            place, there, here = _first_difference(there, here)
            yield f"{within}{key}{place} was {_shown(there)} and is now {_shown(here)}"


def _first_difference(there: Any, here: Any) -> tuple[str, Any, Any]:
    """Of two lists of one length, such as the files of a corpus, where they differ first; all of other values."""
    if not (isinstance(there, list) and isinstance(here, list) and len(there) == len(here)):
        return "", there, here
    pairs = enumerate(zip(there, here, strict=True))
    number, pair = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    place, before, after = _first_difference(*pair)
    return f"[{number}]{place}", before, after


def _shown(value: Any) -> str:
    """A value for a message of one line: a corpus may have a thousand files, each with its fingerprint."""
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def end_run(run: Run, contents: ModelFolder) -> None:
    """Write the curves and, last, the model, or what is attached to it: its presence says that the run is over."""
    draw_curves(run.metrics(), run.folder / "curves.png")
    contents.model.cpu()
    (save_folder if contents.adapter is None else save_adapter)(contents, run.model_folder)
    run.clear()
