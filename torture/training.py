"""A training of seconds, in processes that start in milliseconds: what T1 to T8 do their worst to.

The command line itself is run, in a child of a server process that has imported everything already. Before it starts, a
hook may put something between it and its functions; what a hook has to tell comes through a pipe.
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
_LONGEST = 300.0  # seconds for one process
_CONTEXT = multiprocessing.get_context("forkserver")
# The last ones are what an optimizer, a picture and a team import when they are first needed.
_CONTEXT.set_forkserver_preload(
    [
        "torture.training",
        "cloze.cli.corpus",
        "cloze.cli.pretraining",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "matplotlib.figure",
    ]
)


def make_corpus(folder: Path, documents: int = 60) -> Path:
    """Prepare made-up documents, a fifth of them held out; an epoch of batches of four has about a dozen steps."""
    texts = make_documents(documents)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(as_text(texts), encoding="utf-8")
    pieces = learn_pieces([sentence for document in texts for sentence in document], 150)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "vocabulary")
    return prepare([folder / "text.txt"], folder / "vocabulary", folder / "data", settings=PrepareSettings(0.2))


def command(data: Path, out: Path, steps: int, *more: str, save_every: int = 1, evaluate_every: int = 0) -> list[str]:
    """What would be typed after ``cloze``: the smallest model, and checkpoints often."""
    words = ["pretrain", str(data), "--out", str(out), "--preset", "tiny", "--batch", "4", "--length", "24"]
    words += ["--steps", str(steps), "--rate", "1e-3", "--save-every", str(save_every)]
    words += ["--evaluate-every", str(evaluate_every)]
    return [*words, "--precision", "fp32", "--threads", "1", *more]


@dataclass
class Life:
    """One process under way, and what its hook has told."""

    process: BaseProcess
    said: Path
    _pipe: Connection
    told: list[Any] = field(default_factory=list)

    def listen(self, seconds: float) -> bool:
        """Take in the next thing told, if it comes in time; False also when nothing can come any more."""
        try:
            if self._pipe.poll(seconds):
                self.told.append(self._pipe.recv())
                return True
        except (EOFError, OSError):
            pass
        return False

    def end(self, longest: float = _LONGEST) -> int:
        """Hear everything, wait, and return the exit code: that of the command, or minus the signal that killed it."""
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
    def words(self) -> str:
        """Everything that was printed."""
        return self.said.read_text(encoding="utf-8", errors="replace") if self.said.is_file() else ""

    @property
    def last_words(self) -> str:
        """The last line that was printed."""
        return (self.words.strip().splitlines() or ["nothing"])[-1]


def begin(words: Sequence[str], said: Path, hook: Hook | None = None) -> Life:
    """Start a command, in a process of its own; what it prints goes to the file ``said``."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    said.unlink(missing_ok=True)
    process = _CONTEXT.Process(target=_live, args=(list(words), said, theirs, hook), daemon=True)
    process.start()
    theirs.close()  # so that its end is the end of the pipe
    return Life(process, said, ours)


def live(words: Sequence[str], said: Path, hook: Hook | None = None) -> tuple[int, Life]:
    """Run a command to its end; its exit code, and what is left of it."""
    life = begin(words, said, hook)
    return life.end(), life


def _live(words: list[str], said: Path, pipe: Connection, hook: Hook | None) -> None:
    with said.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    loop = PretrainSettings.loop

    def log_every_step(settings: PretrainSettings) -> LoopSettings:
        return replace(loop(settings), log_every=1)

    patch.object(PretrainSettings, "loop", log_every_step).start()
    patch.object(pretrain, "measure_peak", lambda _: 1.0).start()  # a sixth of a second for nothing that is tried here
    if hook is not None:
        hook(pipe)
    main(words)


@dataclass(frozen=True)
class Result:
    """What a finished run has come to: its weights, and the losses of every step."""

    weights: str
    losses: list[dict[str, float]]


# What is never the same twice.
_CLOCKS = {"seconds", "tokens_per_second", "share_of_peak"}


def result(out: Path) -> Result:
    """Read a finished run."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [{name: value for name, value in row.items() if name not in _CLOCKS} for row in rows]
    return Result(sha256((out / "model" / "model.safetensors").read_bytes()).hexdigest(), losses)


def differences(found: Result, expected: Result, place: str) -> list[str]:
    """Say in what a run is not the other."""
    told = [] if found.weights == expected.weights else [f"{place}: other weights than in peace"]
    return told + ([] if found.losses == expected.losses else [f"{place}: other losses than in peace"])


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """How far something is does not matter here."""

    def say(self, message: str) -> None:
        """Remember a message."""
        self.said.append(message)


def newest(out: Path) -> tuple[TrainingState | None, list[str]]:
    """The checkpoint that a run would go on from, and what is said about damaged ones."""
    listener = Listener()
    try:
        return Run(out).store.newest(listener), listener.said
    except CheckpointError as error:
        return None, [str(error)]


def one_before(out: Path, step: int) -> tuple[TrainingState | None, list[str]]:
    """The same of a run whose newest checkpoint, of this step, is gone."""
    with TemporaryDirectory() as name:
        checkpoints = Run(out).store.folder
        left = shutil.ignore_patterns(f"*step-{step:08d}*")
        if checkpoints.is_dir():
            shutil.copytree(checkpoints, Path(name) / checkpoints.name, ignore=left)
        return newest(Path(name))


def leftovers(folder: Path) -> list[str]:
    """What unfinished work has left behind."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in {".tmp", ".old"} or is_ours(path)
    )
