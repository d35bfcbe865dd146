"""A training run that takes seconds, in processes that start in milliseconds; used by T1 to T8.

Runs the command line itself, in a child of a fork server that has imported everything already. Before the command
starts, a hook may patch functions of the process; the hook reports through a pipe.
"""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tests.corpus.texts import as_text, make_documents

from cloze.checkpoint import TrainingState
from cloze.cli import main
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.errors import CheckpointError
from cloze.locks import is_ours
from cloze.text import Tokenizer, learn_pieces
from cloze.train.pretraining import pretrain
from cloze.train.run import Run
from cloze.train.settings import LoopSettings, PretrainSettings

Hook = Callable[[Connection], None]
_LONGEST = 300.0  # timeout of one process in seconds
_CONTEXT = multiprocessing.get_context("forkserver")
# The last modules are imported lazily by the optimizer, plotting and distributed training.
_CONTEXT.set_forkserver_preload(
    [
        "torture.training",
        "cloze.cli.pretraining",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "matplotlib.figure",
    ]
)


def make_corpus(folder: Path, documents: int = 60) -> Path:
    """Prepare synthetic documents, a fifth of them held out; an epoch with batches of four has about a dozen steps."""
    texts = make_documents(documents)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(as_text(texts), encoding="utf-8")
    pieces = learn_pieces([sentence for document in texts for sentence in document], 150)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "vocabulary")
    return prepare([folder / "text.txt"], folder / "vocabulary", folder / "data", settings=PrepareSettings(0.2))


def command(data: Path, out: Path, steps: int, *more: str, save_every: int = 1, evaluate_every: int = 0) -> list[str]:
    """Return the arguments after ``cloze``: the smallest model with frequent checkpoints."""
    words = ["pretrain", str(data), "--out", str(out), "--preset", "tiny", "--batch", "4", "--length", "24"]
    words += ["--steps", str(steps), "--rate", "1e-3", "--save-every", str(save_every)]
    words += ["--evaluate-every", str(evaluate_every)]
    return [*words, "--precision", "fp32", "--threads", "1", *more]


@dataclass
class ChildProcess:
    """A running process, and the messages of its hook."""

    process: BaseProcess
    log: Path
    _pipe: Connection
    messages: list[Any] = field(default_factory=list)

    def listen(self, seconds: float) -> bool:
        """Receive the next message; return False after the timeout, or if there can be no more messages."""
        try:
            if self._pipe.poll(seconds):
                self.messages.append(self._pipe.recv())
                return True
        except (EOFError, OSError):
            pass
        return False

    def end(self, longest: float = _LONGEST) -> int:
        """Receive all messages, wait, and return the exit code: the command's, or minus the signal that killed it."""
        deadline = time.monotonic() + longest
        while self.process.is_alive() and time.monotonic() < deadline:
            self.listen(0.05)
        while self.listen(0):
            pass
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._pipe.close()
        code = self.process.exitcode
        self.process.close()
        return -1 if code is None else code

    @property
    def output(self) -> str:
        """Everything that was printed."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""

    @property
    def last_line(self) -> str:
        """The last line that was printed."""
        return (self.output.strip().splitlines() or ["nothing"])[-1]


def start_command(words: Sequence[str], log: Path, hook: Hook | None = None) -> ChildProcess:
    """Start a command in a separate process, with its output in the file ``log``."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    log.unlink(missing_ok=True)
    process = _CONTEXT.Process(target=_child_main, args=(list(words), log, theirs, hook), daemon=True)
    process.start()
    theirs.close()  # so that the pipe closes when the process ends
    return ChildProcess(process, log, ours)


def run_command(words: Sequence[str], log: Path, hook: Hook | None = None) -> tuple[int, ChildProcess]:
    """Run a command to its end; return its exit code and the finished process."""
    child = start_command(words, log, hook)
    return child.end(), child


def _child_main(words: list[str], log: Path, pipe: Connection, hook: Hook | None) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    loop = PretrainSettings.loop

    def log_every_step(settings: PretrainSettings) -> LoopSettings:
        return replace(loop(settings), log_every=1)

    patch.object(PretrainSettings, "loop", log_every_step).start()
    patch.object(pretrain, "measure_peak", lambda _: 1.0).start()  # not under test, and takes a sixth of a second
    if hook is not None:
        hook(pipe)
    main(words)


@dataclass(frozen=True)
class Result:
    """The result of a finished run: its weights, and the losses of every step."""

    weights: str
    losses: list[dict[str, float]]


# Metrics that depend on time and therefore differ between runs.
_CLOCKS = {"seconds", "tokens_per_second", "share_of_peak"}


def result(out: Path) -> Result:
    """Read a finished run."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [{name: value for name, value in row.items() if name not in _CLOCKS} for row in rows]
    return Result(sha256((out / "model" / "model.safetensors").read_bytes()).hexdigest(), losses)


def differences(found: Result, expected: Result, place: str) -> list[str]:
    """Return the differences between two runs."""
    changes = [] if found.weights == expected.weights else [f"{place}: weights differ from the uninterrupted run"]
    return changes + ([] if found.losses == expected.losses else [f"{place}: losses differ from the uninterrupted run"])


class Listener:
    """A progress listener that stores its messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Ignore progress."""

    def say(self, message: str) -> None:
        """Store a message."""
        self.messages.append(message)


def newest(out: Path) -> tuple[TrainingState | None, list[str]]:
    """Return the checkpoint that a run would resume from, and the messages about damaged ones."""
    listener = Listener()
    try:
        return Run(out).store.newest(listener), listener.messages
    except CheckpointError as error:
        return None, [str(error)]


def one_before(out: Path, step: int) -> tuple[TrainingState | None, list[str]]:
    """Return the same for the run without its newest checkpoint, which was saved at this step."""
    with TemporaryDirectory() as name:
        checkpoints = Run(out).store.folder
        left = shutil.ignore_patterns(f"*step-{step:08d}*")
        if checkpoints.is_dir():
            shutil.copytree(checkpoints, Path(name) / checkpoints.name, ignore=left)
        return newest(Path(name))


def leftovers(folder: Path) -> list[str]:
    """Return files left behind by unfinished work."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in {".tmp", ".old"} or is_ours(path)
    )
