"""T32: an index that is killed by SIGKILL while it is built or extended loses nothing.

``cloze index`` builds an index in parts and adds documents to it, and is killed at random times, half of them while it
writes the last files. After every kill, the index must not exist yet, or be complete in its old or new version. The
same command is repeated until it succeeds. In the end, all files must be byte-identical to those of uninterrupted
commands, and nothing may be left behind.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.errors import ClozeError
from cloze.predict.search.index import open_index
from cloze.progress import Progress
from torture.campaign import Outcome
from torture.commands import Inputs, SmallParts, contents
from torture.training import start_command

_MOST_FAILURES = 10
_MOST_COMMANDS = 400
# Share of the kills that come late, while parts are joined and the manifest is replaced.
_LATE = 0.5
_EXACT = ("--precision", "fp32", "--threads", "1")


@dataclass(frozen=True)
class IndexSettings:
    """The number of kills."""

    kills: int = 50
    seed: int = 0


def run(settings: IndexSettings, progress: Progress) -> Outcome:
    """Build and extend indexes until enough commands were killed."""
    with TemporaryDirectory() as name:
        trials = _IndexTrials(Path(name).resolve(), settings, progress)
        while trials.kills < settings.kills and not trials.failures and trials.commands < _MOST_COMMANDS:
            trials.build_and_add()
        if trials.kills < settings.kills:
            trials.failures.append(f"{trials.kills} kills in {trials.commands} commands; {settings.kills} are required")
        figures: dict[str, str | int | float] = {
            "kills": trials.kills,
            "while building": trials.kills - trials.while_adding,
            "while adding": trials.while_adding,
            "commands": trials.commands,
            "indexes": trials.indexes,
            "lost or broken": trials.lost,
            "different files": trials.different,
        }
        return Outcome(not trials.failures, figures, trials.failures[:_MOST_FAILURES])


class _IndexTrials:
    """Consecutive indexes, each built and extended by commands that are killed."""

    def __init__(self, scratch: Path, settings: IndexSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch, settings, progress
        self._draw = random.Random(settings.seed)
        self._inputs = Inputs(scratch)
        self._more = scratch / "more.csv"
        rows = [f"added-{number},the added row number {number}" for number in range(20)]
        self._more.write_text("\n".join(["id,text", *rows]) + "\n", encoding="utf-8")
        self.kills = self.while_adding = self.commands = self.indexes = self.lost = self.different = 0
        self.failures: list[str] = []
        reference, self._seconds = scratch / "reference" / "index", {}
        self._expected = {}
        for adding in (False, True):
            start = time.monotonic()
            self._inputs.must(self._words(reference, adding=adding))
            self._seconds[adding] = time.monotonic() - start
            self._expected[adding] = contents(reference)

    def _words(self, out: Path, *, adding: bool) -> list[str]:
        if adding:
            return ["index", str(self._more), "--out", str(out), "--add"]
        return ["index", str(self._inputs.rows), "--out", str(out), "--model", str(self._inputs.model), *_EXACT]

    def build_and_add(self) -> None:
        """Build an index and add documents to it, killing both commands repeatedly."""
        out = self._scratch / f"trial-{self.indexes}" / "index"
        for adding in (False, True):
            while not self._try(out, adding=adding) and not self.failures:
                self._check_version(out, adding=adding)
            if self.failures:
                return
            found, expected = contents(out), self._expected[adding]
            changed = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            self.different += len(changed)
            self.failures += [f"{out.parent.name}: {name} differs" for name in changed]
            others = [path.name for path in out.parent.iterdir() if path not in (out, out.parent / "said")]
            self.failures += [f"{out.parent.name}: {name} was left behind" for name in others]
        self.indexes += 1

    def _try(self, out: Path, *, adding: bool) -> bool:
        """Run a command, killing it at a random time; return whether it succeeded."""
        self.commands += 1
        out.parent.mkdir(parents=True, exist_ok=True)
        child = start_command(self._words(out, adding=adding), out.parent / "said", SmallParts())
        if self.kills < self._settings.kills:
            least = self._seconds[adding] * (0.5 if self._draw.random() < _LATE else 0)
            time.sleep(self._draw.uniform(least, self._seconds[adding]))
            child.process.kill()
        code = child.end()
        if code == -9:
            self.kills += 1
            self.while_adding += adding
            self._progress.advance("T32: kills", self.kills, self._settings.kills)
        elif code != 0:
            self.failures.append(f"exit code {code}: {child.last_line}")
        return code == 0

    def _check_version(self, out: Path, *, adding: bool) -> None:
        """Check that the index is absent, or complete in a version that a command has made."""
        if not out.exists() and not adding:
            return
        try:
            size = len(open_index(out))
        except ClozeError as error:
            self.lost += 1
            self.failures.append(f"{out.parent.name}: {error}")
            return
        rows = len(self._inputs.rows.read_text(encoding="utf-8").splitlines()) - 1
        if size not in (rows, rows + 20 if adding else rows):
            self.lost += 1
            self.failures.append(f"{out.parent.name}: {size} documents; expected {rows} or {rows + 20}")
