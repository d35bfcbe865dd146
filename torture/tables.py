"""T13: malformed tables as they occur in practice, and text without line breaks.

Each file is read in a separate process, as fine-tuning or preparation reads it. Errors must be reported in one line
that names the line of the file; unusual but valid files (byte order mark, CRLF) must be accepted. Memory must not grow
with the length of a line: it is compared with that of a process that reads two good rows.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from torture.campaign import Outcome

LABELS = ("sea", "land")
READ = """
import sys
from pathlib import Path
from cloze.errors import DataError
from cloze.tasks.rows import Source
from cloze.tasks.registry import read_task
train, dev = map(Path, sys.argv[1:])
try:
    data = read_task(Source("classify", train, dev))
except DataError as error:
    print(error)
else:
    print("read", len(data.train), len(data.dev))
"""
PREPARE = """
import sys
from pathlib import Path
from cloze.corpus.preparation.prepare import prepare
from cloze.text import SPECIAL, Tokenizer
text, out = map(Path, sys.argv[1:])
words = ["the", "ship", "went", "down", "with", "all", "men", "."]
Tokenizer.from_vocabulary([*SPECIAL, *words], lowercase=True).save(out / "vocab")
prepare([text], out / "vocab", out / "data")
print("read")
"""


@dataclass(frozen=True)
class TableSettings:
    """The length of a long line, and the memory that it may take in addition to that for two short lines."""

    long_line: int = 100 * 2**20
    most_more: int = 120 * 2**20


@dataclass(frozen=True)
class Case:
    """A file and the expected message: a pattern in which LINE stands for the file name and line number."""

    name: str
    ending: str
    rows: bytes
    told: str
    in_dev: bool = False


def csv_cases(long: int) -> Iterator[Case]:
    """Yield malformed and unusual CSV files."""
    good = b"text,label\nthe ship went down,sea\n"
    yield Case("two rows", ".csv", good + b"the men,land\n", "read 2 2")
    yield Case(
        "mark and CRLF", ".csv", b"\xef\xbb\xbf" + good.replace(b"\n", b"\r\n") + b"the men,land\r\n", "read 2 2"
    )
    yield Case("NUL", ".csv", good + b"the\0men,land\n", "read 2 2|LINE3: .*")
    yield Case("too few cells", ".csv", good + b"the men\n", "LINE3: 1 cells, but there are 2 columns .*")
    yield Case("bad UTF-8", ".csv", good + b"the \xffmen,land\n", "LINE3: .*UTF-8.*")
    yield Case("empty text", ".csv", good + b" ,land\n", "LINE3: 'text' is empty.*")
    yield Case("open quote", ".csv", good + b'"the men,land\n', "LINE3: a quote opens in this row.*")
    yield Case("the same column twice", ".csv", b"text,text\nthe ship,sea\n", "LINE1: .*'text'.*")
    yield Case("unknown label", ".csv", good + b"the men,air\n", "LINE3: .*'air'.*", in_dev=True)
    yield Case("a long line", ".csv", good + b"a" * long + b",land\n", "LINE3: this line is longer than .*")


def json_cases(long: int) -> Iterator[Case]:
    """Yield malformed and unusual JSONL files."""
    good = b'{"text": "the ship went down", "label": "sea"}\n'
    other = b'{"text": "the men", "label": "land"}\n'
    yield Case("mark and CRLF", ".jsonl", b"\xef\xbb\xbf" + (good + other).replace(b"\n", b"\r\n"), "read 2 2")
    yield Case("NUL", ".jsonl", good + other.replace(b"the men", b"the\\u0000men"), "read 2 2|LINE2: .*")
    yield Case("a missing column", ".jsonl", good + b'{"text": "the men"}\n', "LINE2: .*'label'.*")
    yield Case("bad UTF-8", ".jsonl", good + other.replace(b"the", b"\xff"), "LINE2: .*UTF-8.*")
    yield Case("half an object", ".jsonl", good + b'{"text": "the men", \n', "LINE2: not JSON .*")
    yield Case("a list", ".jsonl", good + b"[1, 2]\n", "LINE2: .* is not an object.*")
    yield Case("deep nesting", ".jsonl", good + b"[" * 100_000 + b"\n", "LINE2: .*")
    yield Case("unknown label", ".jsonl", good + other.replace(b"land", b"air"), "LINE2: .*'air'.*", in_dev=True)
    long_row = other.replace(b"the men", b"a" * long)
    yield Case("a long line", ".jsonl", good + long_row, "LINE2: this line is longer than .*")


def run(settings: TableSettings, progress: Progress) -> Outcome:
    """Read every file, and check message and memory."""
    cases = [*csv_cases(settings.long_line), *json_cases(settings.long_line)]
    failures, most = list[str](), 0
    with TemporaryDirectory() as scratch:
        usual, _ = read_table(cases[0], Path(scratch))
        for number, case in enumerate(cases, start=1):
            memory, failure = read_table(case, Path(scratch))
            failures += [failure] if failure else []
            most = max(most, memory - usual)
            progress.advance("T13: files", number, len(cases) + 2)
        few, many = (prepare_line(length, Path(scratch)) for length in (1000, settings.long_line))
        failures += [failure for _, failure in (few, many) if failure]
        prepared = many[0] - few[0]
    for what, more in (("rows", most), ("text", prepared)):
        if more > settings.most_more:
            failures.append(
                f"{what}: {more >> 20} MB more than for short lines; {settings.most_more >> 20} were allowed"
            )
    figures: dict[str, str | int | float] = {
        "files": len(cases) + 1,
        "longest line, MB": settings.long_line >> 20,
        "most memory beyond short lines, MB": max(most, 0) >> 20,
        "of preparing, MB": max(prepared, 0) >> 20,
    }
    return Outcome(not failures, figures, failures)


def read_table(case: Case, folder: Path) -> tuple[int, str | None]:
    """Return the memory that reading took in bytes, and what was wrong with the message."""
    good = folder / "good.jsonl"
    rows = [{"text": f"the {label}", "label": label} for label in LABELS]
    good.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    path = folder / f"rows{case.ending}"
    path.write_bytes(case.rows)
    given = (good, path) if case.in_dev else (path, path)
    memory, said = measured(READ, given)
    expected = "|".join(
        re.sub("LINE(\\d+)", lambda found: f"{re.escape(str(path))}:{found[1]}", part) for part in case.told.split("|")
    )
    right = re.fullmatch(expected, said)
    return memory, None if right else f"{case.name} ({case.ending}): {said[-300:]!r}; expected {case.told}"


def prepare_line(length: int, folder: Path) -> tuple[int, str | None]:
    """Return the memory that preparing a document with one line of this length took, and what was wrong."""
    sentence = "the ship went down with all the men . "
    text, out = folder / "text.txt", folder / f"prepared-{length}"
    text.write_text("the men .\n\n" + sentence * (length // len(sentence) + 1), encoding="utf-8")
    memory, said = measured(PREPARE, (text, out))
    return memory, None if said == "read" else f"a line of {length} characters: {said[-300:]!r}"


def measured(program: str, given: tuple[Path, ...]) -> tuple[int, str]:
    """Return the peak resident memory of a program in bytes, and what it printed."""
    words = [sys.executable, "-c", program, *map(str, given)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        assert child.stdout is not None
        said = child.stdout.read().decode("utf-8", errors="replace").strip()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return 1024 * usage.ru_maxrss, said
