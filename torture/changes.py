"""T28: a run is rejected if its model, text, rows or own files change between a kill and the resumption.

Training is killed by SIGKILL right after its first checkpoint. Then one file of its inputs or of the run itself is
changed, and the command is run again. It must end with exit code 2 and one line that names the change. Files that do
not affect the result, such as a model card, may change.
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
from torture.training import command, run_command

_MOST_FAILURES = 10
# Files that do not affect the result.
_HARMLESS = {"README.md", "shard.json"}  # only preparation uses shard.json


@dataclass(frozen=True)
class ChangeSettings:
    """The kinds of training to test (all if empty), and a stride over the files to change."""

    trainings: tuple[str, ...] = ()
    every: int = 1


@dataclass(frozen=True)
class KillAfterSave:
    """Hook: SIGKILL right after the first checkpoint."""

    def __call__(self, pipe: Connection) -> None:
        """Patch the save function to kill the process afterwards."""
        save = StateStore.save

        def killing(store: StateStore, state: TrainingState) -> None:
            save(store, state)
            os.kill(os.getpid(), signal.SIGKILL)

        patch.object(StateStore, "save", killing).start()
        pipe.send("ready")


def run(settings: ChangeSettings, progress: Progress) -> Outcome:
    """Change every file of every kind of training, and check that the change is rejected."""
    with TemporaryDirectory() as name:
        trials = _ChangeTrials(Path(name).resolve(), settings)
        for training in trials.trainings:
            trials.change_everything(training, progress)
        figures: dict[str, str | int | float] = {
            "files changed": trials.changed,
            "rejected by name": trials.refused,
            "fell back": trials.fell_back,
            "harmless": trials.harmless,
            "accepted silently": trials.taken,
        }
        return Outcome(not trials.failures, figures, trials.failures[:_MOST_FAILURES])


class _ChangeTrials:
    """Training runs that were killed once each; inputs are restored after every change."""

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
        """Kill a training run, then run its command again once per file, with that file changed."""
        words, sources = self._commands[training]
        killed = self._scratch / f"killed-{training.replace(' ', '-')}"
        code, child = run_command(self._words(words, killed), self._scratch / "said", KillAfterSave())
        if code != -9:
            self.failures.append(f"{training}: not killed: exit code {code}: {child.last_line}")
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
        """Change one file (in a copy of the run if it belongs to the run), run the command and check its result."""
        out = self._scratch / "resumed" / killed.name
        shutil.rmtree(out.parent, ignore_errors=True)
        shutil.copytree(killed, out)
        victim = out / path.relative_to(killed) if is_own else path
        before, state = victim.read_bytes(), victim.stat()
        _flip(victim)
        words = self._words(self._commands[training][0], out)
        code, child = run_command(words, self._scratch / "said", SmallParts())
        if not is_own:
            victim.write_bytes(before)
            os.utime(victim, ns=(state.st_atime_ns, state.st_mtime_ns))
        self.changed += 1
        place = f"{training}, {path.name} changed"
        said = child.output
        named = path.name in child.last_line or path.parent.name in child.last_line
        if path.name in _HARMLESS or (is_own and path.name == "lock"):
            self.harmless += 1
            if code != 0:
                self.failures.append(
                    f"{place}: rejected although the file does not affect the result: {child.last_line}"
                )
        elif code == 2 and (named or "settings differ" in child.last_line or "not match its manifest" in said):
            self.refused += 1
        elif code == 0 and is_own and "falling back" in said:
            self.fell_back += 1
        else:
            self.taken += code == 0
            self.failures.append(f"{place}: exit code {code}: {child.last_line}")


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file()]


def _flip(path: Path) -> None:
    """Change a file but keep it readable: replace a digit or letter in a text, otherwise one byte."""
    content = bytearray(path.read_bytes())
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        content[-3] ^= 1
    else:
        space = content.find(b" ", len(content) // 2)
        content = content.replace(b"1", b"2", 1) if b"1" in content else content[:space] + b"x" + content[space + 1 :]
    path.write_bytes(bytes(content))
