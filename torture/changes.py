"""T28: a run whose model, text, rows or own files change between a kill and its resumption is refused, naming the file.

A training is killed by SIGKILL right after its first checkpoint. Then one file of what it started from, or of the run
itself, is changed, and the command is given again. It must end with exit code 2 and one line that says what is not as
it was. What has no part in the result, such as a model card, may change.
"""

import os
import shutil
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cloze.checkpoint import StateStore, TrainingState
from cloze.progress import Progress
from torture.campaign import Outcome
from torture.commands import Inputs, SmallParts
from torture.training import command, live

_MOST_FAILURES = 10
# Files that have no part in what is made of a folder.
_HARMLESS = {"README.md", "shard.json"}  # the latter is of use to the preparation alone


@dataclass(frozen=True)
class ChangeSettings:
    """Which trainings; all if none. Of the files of each, every so many is changed."""

    trainings: tuple[str, ...] = ()
    every: int = 1


@dataclass(frozen=True)
class KillAfterSave:
    """The hook: SIGKILL right after the first checkpoint."""

    def __call__(self, pipe: Connection) -> None:
        """Put the kill behind the save."""
        save = StateStore.save

        def killing(store: StateStore, state: TrainingState) -> None:
            save(store, state)
            os.kill(os.getpid(), signal.SIGKILL)

        patch.object(StateStore, "save", killing).start()
        pipe.send("ready")


def run(settings: ChangeSettings, progress: Progress) -> Outcome:
    """Change every file."""
    with TemporaryDirectory() as name:
        bench = _Bench(Path(name).resolve(), settings)
        for training in bench.trainings:
            bench.change_everything(training, progress)
        figures: dict[str, str | int | float] = {
            "files changed": bench.changed,
            "refused by name": bench.refused,
            "fell back": bench.fell_back,
            "harmless": bench.harmless,
            "taken silently": bench.taken,
        }
        return Outcome(not bench.failures, figures, bench.failures[:_MOST_FAILURES])


class _Bench:
    """Trainings, each killed once; what they start from is restored after every change."""

    def __init__(self, scratch: Path, settings: ChangeSettings) -> None:
        self._scratch, self._settings = scratch, settings
        self._inputs = Inputs(scratch)
        inputs = self._inputs
        rows, tuned = str(inputs.rows), scratch / "tuned"
        finetune = [*("--dev", rows, "--model", str(inputs.model), "--epochs", "2", "--batch", "8", "--length", "24")]
        commands: dict[str, tuple[list[str], list[Path]]] = {
            "pretrain": (command(inputs.data, Path("OUT"), 3), [inputs.data]),
            "pretrain further": (
                command(inputs.data, Path("OUT"), 3, "--model", str(inputs.model)),
                [inputs.model],
            ),
            "finetune": (
                ["finetune", "classify", rows, *finetune, "--patience", "5", "--out", "OUT"],
                [inputs.model, inputs.rows],
            ),
            "adapter": (
                ["finetune", "classify", rows, *finetune, "--adapter", "lora", "--out", "OUT"],
                [inputs.model],
            ),
            "similarity": (
                [
                    *("finetune", "similarity", str(inputs.text), "--model", str(inputs.model), "--epochs", "2"),
                    *("--batch", "8", "--length", "24", "--out", "OUT"),
                ],
                [inputs.model],
            ),
            "distill": (
                [
                    *("distill", "classify", rows, "--dev", rows, "--model", str(tuned), "--layers", "1"),
                    *("--epochs", "2", "--batch", "8", "--out", "OUT"),
                ],
                [tuned / "model"],
            ),
        }
        self.trainings = list(settings.trainings or commands)
        if "distill" in self.trainings:
            assert inputs.tuned == tuned, "it is made when it is first needed"
        self._commands = commands
        self.changed = self.refused = self.fell_back = self.harmless = self.taken = 0
        self.failures: list[str] = []

    def change_everything(self, training: str, progress: Progress) -> None:
        """Kill a training, and give its command again with one file changed, for every file."""
        words, sources = self._commands[training]
        killed = self._scratch / f"killed-{training.replace(' ', '-')}"
        code, life = live(self._words(words, killed), self._scratch / "said", KillAfterSave())
        if code != -9:
            self.failures.append(f"{training}: not killed: exit code {code}: {life.last_words}")
            return
        files = [path for source in sources for path in _files(source)]
        own = _files(killed)
        chosen = [*files, *own][:: self._settings.every]
        for number, path in enumerate(chosen):
            self._change(training, path, killed, is_own=path in own)
            progress.advance(f"T28: {training}", number + 1, len(chosen))

    def _words(self, words: list[str], out: Path) -> list[str]:
        return [str(out) if word == "OUT" else word for word in words]

    def _change(self, training: str, path: Path, killed: Path, *, is_own: bool) -> None:
        """Change one file, in a copy of the run if it is its own, and judge what the command does."""
        out = self._scratch / "resumed" / killed.name
        shutil.rmtree(out.parent, ignore_errors=True)
        shutil.copytree(killed, out)
        victim = out / path.relative_to(killed) if is_own else path
        before, state = victim.read_bytes(), victim.stat()
        _flip(victim)
        words = self._words(self._commands[training][0], out)
        code, life = live(words, self._scratch / "said", SmallParts())
        if not is_own:
            victim.write_bytes(before)
            os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))
        self.changed += 1
        place = f"{training}, {path.name} changed"
        said = life.words
        named = path.name in life.last_words or path.parent.name in life.last_words
        if path.name in _HARMLESS or (is_own and path.name == "lock"):
            self.harmless += 1
            if code != 0:
                self.failures.append(f"{place}: refused though it does not matter: {life.last_words}")
        elif code == 2 and (named or "settings differ" in life.last_words or "not match its manifest" in said):
            self.refused += 1
        elif code == 0 and is_own and "falling back" in said:
            self.fell_back += 1
        else:
            self.taken += code == 0
            self.failures.append(f"{place}: exit code {code}: {life.last_words}")


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file()]


def _flip(path: Path) -> None:
    """Change a file by as little as keeps it readable: in a text another digit or letter, else another byte."""
    content = bytearray(path.read_bytes())
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        content[-3] ^= 1
    else:
        space = content.find(b" ", len(content) // 2)
        content = content.replace(b"1", b"2", 1) if b"1" in content else content[:space] + b"x" + content[space + 1 :]
    path.write_bytes(bytes(content))
