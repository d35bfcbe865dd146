"""How often each word occurs in any amount of text, in memory that does not grow with it.

The first step of learning a vocabulary. Text comes in blocks. A ``WordCounter`` counts what stands between
spaces, of which most recurs, makes words of it when that table is full, and gives its table of words away,
sorted, when that one is full too. ``SortedTables`` keeps such tables in files without a name, which vanish
with the process however it ends, and adds them up by merging. The counts are exact, and the same in
whatever blocks and by however many counters the text was read.

Texts -> word counts, with as many processes as are asked for.

Texts are put together to blocks. One process counts them here; several are fed a block each as they come free,
over a socket, and answer with the tables that they give away. What is added up does not depend on who counted
what. The processes are started afresh, never forked, since the tokenizer's engine may hold threads; and not by
``multiprocessing``, which would run an unguarded script of the caller a second time in each of them.
"""

import heapq
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby, islice
from multiprocessing.connection import Connection, Pipe, wait
from operator import itemgetter
from pathlib import Path
from typing import IO

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.errors import ClozeError
from cloze.progress import Progress
from cloze.text.characters import IDEOGRAPHS, LONGEST_READ, replace_surrogates, windows

# A longer word is [UNK] to the tokenizer, and nothing that could be learned from it would ever be used.
LONGEST_WORD = 100
# What stands between spaces, and words: some 150 bytes each in a table.
MOST_RUNS = 50_000
MOST_WORDS = 100_000
# However few, runs are made into words after so many characters: they may be long.
MOST_CHARACTERS = 16_000_000
# Tables that are merged together, each an open file.
MOST_TABLES = 32
# What goes on to merging, which takes some 300 bytes for each: far more than a vocabulary has room for.
MOST_DIFFERENT = 1_000_000

# Words that are too long are counted under the word that there is not.
_TOO_LONG = ""

_ASCII_WORDS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_IDEOGRAPHS = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in IDEOGRAPHS)}]+")
# Spaces to Python, but deleted by the normaliser.
_NO_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]+")

_BASIC = BertPreTokenizer()
_NORMALIZERS = {lowercase: BertNormalizer(lowercase=lowercase) for lowercase in (True, False)}


def basic_words(text: str, lowercase: bool) -> list[str]:
    """Split a text as BERT's basic tokenizer does: normalised, at spaces, around punctuation and ideographs."""
    text, normalizer = replace_surrogates(text), _NORMALIZERS[lowercase]
    parts = (text[start:end] for start, end, _ in windows(text, LONGEST_READ, chinese=True))
    return [word for part in parts for word, _ in _BASIC.pre_tokenize_str(normalizer.normalize_str(part))]


class WordCounter:
    """Counts the words of blocks of text; a full table is given away as sorted lines of a word, a tab, its count."""

    def __init__(self, lowercase: bool) -> None:
        self.lowercase = lowercase
        self.runs: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.characters = 0

    def add(self, block: str) -> bytes:
        """Count a block, which ends where a word does; return a table if one is full, else nothing."""
        self.characters += len(block)
        if not block.isprintable():
            block = _NO_SPACES.sub("", block)
        # Chinese has no spaces: between those that there are, hardly anything recurs.
        if not block.isascii() and (ideographs := _IDEOGRAPHS.findall(block)):
            self.runs.update("".join(ideographs))
            block = _IDEOGRAPHS.sub(" ", block)
        self.runs.update(block.split())
        if len(self.runs) > MOST_RUNS or self.characters > MOST_CHARACTERS:
            self._count_words()
        return self._take_table() if len(self.words) > MOST_WORDS else b""

    def finish(self) -> bytes:
        """Return the table of what has not been given away."""
        self._count_words()
        return self._take_table()

    def _count_words(self) -> None:
        for run, count in self.runs.items():
            for word in self._split(run):
                self.words[word if len(word) <= LONGEST_WORD else _TOO_LONG] += count
        self.runs.clear()
        self.characters = 0

    def _split(self, run: str) -> list[str]:
        if run.isascii() and run.isprintable():  # the same as below, many times as fast
            run = run.lower() if self.lowercase else run
            return [run] if run.isalnum() else _ASCII_WORDS.findall(run)
        return basic_words(run, self.lowercase)

    def _take_table(self) -> bytes:
        table = "".join(f"{word}\t{count}\n" for word, count in sorted(self.words.items())).encode()
        self.words.clear()
        return table


@dataclass(frozen=True)
class WordCounts:
    """Different words in their own order, with their counts; kept as lines, a tenth of what a dict would take."""

    lines: bytes
    words: int
    """All words of the text, each as often as it occurs."""
    different: int
    """Different ones among them, before the rarest were left out; those that are too long are not told apart."""
    kept: int
    """Different ones that are here."""
    least: int
    """The fewest times that a word which is here occurs."""
    too_long: int
    """Words of over 100 characters, each as often as it occurs."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        start = 0
        while start < len(self.lines):
            end = self.lines.index(b"\n", start)
            word, count = self.lines[start:end].split(b"\t")
            yield word.decode(), int(count)
            start = end + 1


class SortedTables:
    """Tables of counts in temporary files, merged as they get many; those of one level are of like size."""

    def __init__(self) -> None:
        self._levels: list[list[IO[bytes]]] = []

    def __enter__(self) -> "SortedTables":
        return self

    def __exit__(self, *_: object) -> None:
        for level in self._levels:
            _close(level)

    def add(self, table: bytes) -> None:
        """Keep a table that a counter gave away."""
        if table:
            with _room_on_disk():
                file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the tables are)
                self._keep(file, 0)
                file.write(table)

    def choose(self, most: int = MOST_DIFFERENT) -> WordCounts:
        """Add up all tables and return the ``most`` frequent words.

        Words of one count are all in or all out. Only where that would leave half of the room empty are the
        first of them taken, in the words' own order.
        """
        with _room_on_disk():
            self._levels = [[_merge([file for level in self._levels for file in level])]]
            merged = self._levels[0][0]
            numbers = Counter(count for word, count in _read(merged) if word)
            least, room = _least_count(numbers, most)
            lines, kept, words, too_long = bytearray(), 0, 0, 0
            for word, count in _read(merged):
                words += count
                if not word:
                    too_long = count
                elif count > least or (count == least and room > 0):
                    lines += b"%b\t%d\n" % (word, count)
                    kept += 1
                    room -= count == least
        return WordCounts(bytes(lines), words, numbers.total(), kept, least, too_long)

    def _keep(self, file: IO[bytes], number: int) -> None:
        if number == len(self._levels):
            self._levels.append([])
        if len(self._levels[number]) == MOST_TABLES:
            merged = _merge(self._levels[number])
            self._levels[number] = []
            self._keep(merged, number + 1)
        self._levels[number].append(file)


def _merge(files: list[IO[bytes]]) -> IO[bytes]:
    """Add up sorted tables into one, and close them."""
    merged = tempfile.TemporaryFile()  # noqa: SIM115 (the caller keeps it)
    try:
        for word, entries in groupby(heapq.merge(*map(_read, files)), itemgetter(0)):
            merged.write(b"%b\t%d\n" % (word, sum(count for _, count in entries)))
    except BaseException:
        merged.close()
        raise
    finally:
        _close(files)
    return merged


def _read(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield words and counts. Their bytes have the order of the words themselves: UTF-8 keeps it."""
    file.seek(0)
    for line in file:
        word, _, count = line.partition(b"\t")
        yield word, int(count)


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        with suppress(OSError):  # what is left to write is no longer wanted
            file.close()


def _least_count(numbers: Counter[int], most: int) -> tuple[int, int]:
    """Return the count from which on words are kept, and room for how many of just that count there is.

    ``numbers`` tells how many different words have each count.
    """
    kept = least = 0
    for count in sorted(numbers, reverse=True):
        if kept + numbers[count] > most:
            return (least, numbers[least]) if kept >= most / 2 else (count, most - kept)
        kept, least = kept + numbers[count], count
    return least, numbers[least]


@contextmanager
def _room_on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClozeError(
            f"{tempfile.gettempdir()}: word counts cannot be kept there while the text is read "
            f"({error.strerror or error}); free some space or set TMPDIR to another folder"
        ) from error


# Characters that are counted at once: they are split into a list of strings, of some 60 bytes each.
BLOCK = 250_000
# A text of fewer blocks is counted before a process would have started.
FEWEST_BLOCKS = 16
# Lone surrogates pass; the counter sees to them.
ENCODING = ("utf-8", "surrogatepass")
STAGE = "counting words (bytes)"
PROGRAM = "import sys; from cloze.text.word_counts import serve; serve(lowercase=sys.argv[1] == 'lowercase')"


def usable_cores() -> int:
    """How many cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_words(
    texts: Iterable[str], *, lowercase: bool, workers: int, total: int | None, progress: Progress
) -> WordCounts:
    """Count the basic tokenizer's words in texts, which are ``total`` bytes together if that is known."""
    with SortedTables() as tables:
        blocks = _told(_blocks(texts), total, progress)
        first = list(islice(blocks, FEWEST_BLOCKS))
        if workers == 1 or len(first) < FEWEST_BLOCKS:
            counter = WordCounter(lowercase)
            for block in chain(first, blocks):
                tables.add(counter.add(block.decode(*ENCODING)))
            tables.add(counter.finish())
        else:
            with _Processes(workers, lowercase) as processes:
                for table in processes.count(chain(first, blocks)):
                    tables.add(table)
        return tables.choose()


def _blocks(texts: Iterable[str]) -> Iterator[bytes]:
    """Put texts together to blocks of about the same size, the long ones in parts that end where words do."""
    pending: list[str] = []
    characters = 0
    for text in texts:
        parts = (text,) if len(text) <= BLOCK else _parts(text)
        for part in parts:
            pending.append(part)
            characters += len(part) + 1
            if characters >= BLOCK:
                yield "\n".join(pending).encode(*ENCODING)
                pending, characters = [], 0
    if pending:
        yield "\n".join(pending).encode(*ENCODING)


def _parts(text: str) -> Iterator[str]:
    return (text[start:end] for start, end, _ in windows(text, LONGEST_READ, chinese=True))


def _told(blocks: Iterable[bytes], total: int | None, progress: Progress) -> Iterator[bytes]:
    done = 0
    for block in blocks:
        yield block
        done += len(block) + 1
        # Not the whole before the end, which is told once.
        progress.advance(STAGE, done if total is None else min(done, total - 1), total)
    if total is not None:
        progress.advance(STAGE, total, total)


class _Processes:
    """Processes that count, each at the other end of a connection; all of them are gone when the block ends."""

    def __init__(self, number: int, lowercase: bool) -> None:
        self._stack = ExitStack()
        self._processes: dict[Connection, subprocess.Popen[bytes]] = {}
        try:
            for _ in range(number):
                self._start("lowercase" if lowercase else "cased")
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, case: str) -> None:
        ours, theirs = Pipe()
        self._stack.callback(ours.close)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, case],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
                process_group=0,  # Ctrl-C is for us to hear; they go when we go
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._processes[ours] = process

    def count(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Have the blocks counted, each by whoever is free, and yield the tables."""
        idle = list(self._processes)
        busy = set[Connection]()
        for block in blocks:
            while not idle:
                for connection in self._ready(busy):
                    yield self._receive(connection)
                    busy.remove(connection)
                    idle.append(connection)
            connection = idle.pop()
            self._send(connection, block)
            busy.add(connection)
        for connection in self._processes:
            if connection in busy:
                yield self._receive(connection)
            self._send(connection, b"")
        for connection in self._processes:
            yield self._receive(connection)

    def _ready(self, busy: set[Connection]) -> list[Connection]:
        return [connection for connection in wait(busy) if isinstance(connection, Connection)]

    def _send(self, connection: Connection, block: bytes) -> None:
        try:
            connection.send_bytes(block)
        except OSError:
            raise self._ended(connection) from None

    def _receive(self, connection: Connection) -> bytes:
        try:
            return connection.recv_bytes()
        except (EOFError, OSError):
            raise self._ended(connection) from None

    def _ended(self, connection: Connection) -> ClozeError:
        try:
            code: int | str = self._processes[connection].wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = "unknown"
        return ClozeError(
            f"a process that counts words ended early (exit code {code}), perhaps for lack of memory; "
            "try again with fewer --workers"
        )


def serve(lowercase: bool) -> None:
    """Be such a process: count the blocks that standard input brings, until an empty one comes or nobody is there."""
    counter = WordCounter(lowercase)
    with Connection(os.dup(0)) as connection:
        try:
            while block := connection.recv_bytes():
                connection.send_bytes(counter.add(block.decode(*ENCODING)))
            connection.send_bytes(counter.finish())
        except (EOFError, OSError):
            return  # nobody is left to count for
