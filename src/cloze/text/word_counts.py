"""Count words, the first step of learning a vocabulary, in memory that does not grow with the text.

    texts  -> blocks          of about 250,000 characters, each ending at a word end
    blocks -> count tables    ``WordCounter`` has two tables. The first counts whitespace-separated runs, most of which
                              recur. When it is full, its runs are split into BERT's words, which are added to the
                              second table. When the second table is full, it is sorted and emitted.
    tables -> ``WordCounts``  ``SortedTables`` stores them in anonymous temporary files, which always disappear with
                              the process, and merges them by adding counts

Several worker processes may count. The counts are exact and do not depend on the division into blocks or on the
assignment of blocks to workers.
"""

import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import IO

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.errors import ClozeError
from cloze.progress import Progress
from cloze.text.boundaries import IDEOGRAPHS, MAX_WINDOW, replace_surrogates, windows
from cloze.workers import Report, WorkerPool, serve

# Longer words are [UNK] to the tokenizer, so pieces learned from them would never be used.
LONGEST_WORD = 100
# Maximum entries of the two tables of a counter, about 150 bytes each.
MOST_RUNS = 50_000
MOST_WORDS = 100_000
# Runs may be long, so they are also split into words after this many characters.
MOST_CHARACTERS = 16_000_000
# Tables merged at once; each is an open file.
MOST_TABLES = 32
# Maximum number of distinct words for learning, about 300 bytes each; far more than a vocabulary has entries.
MOST_DIFFERENT = 1_000_000
# Characters per block. A block is split into a list of strings of about 60 bytes each.
BLOCK = 250_000
# Counting fewer blocks takes less time than starting worker processes.
FEWEST_BLOCKS = 16
# Lone surrogates must be preserved on the way to a worker; the counter replaces them.
ENCODING = ("utf-8", "surrogatepass")
STAGE = "counting words (bytes)"
PROGRAM = (
    "import sys; from cloze.text.word_counts import serve_counts; serve_counts(*map(bool, map(int, sys.argv[1:])))"
)

# All overlong words are counted as the empty word.
_TOO_LONG = ""

_ASCII_WORDS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_IDEOGRAPHS = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in IDEOGRAPHS)}]+")
# Characters that are whitespace in Python but deleted by the normalizer.
_NO_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]+")

_BASIC = BertPreTokenizer()
# Key: (lowercase, strip_accents).
_NORMALIZERS = {
    (lowercase, strip): BertNormalizer(lowercase=lowercase, strip_accents=strip)
    for lowercase in (True, False)
    for strip in (True, False)
}


def basic_words(text: str, lowercase: bool, strip_accents: bool | None = None) -> list[str]:
    """Split a text like BERT's basic tokenizer: normalize it, then split at whitespace, punctuation and ideographs.

    Args:
        text: The text.
        lowercase: Whether to lowercase it.
        strip_accents: Whether to strip combining marks; None means the same as ``lowercase``.
    """
    strip = lowercase if strip_accents is None else strip_accents
    text, normalizer = replace_surrogates(text), _NORMALIZERS[lowercase, strip]
    parts = (text[start:end] for start, end, _ in windows(text, MAX_WINDOW, chinese=True))
    return [word for part in parts for word, _ in _BASIC.pre_tokenize_str(normalizer.normalize_str(part))]


class WordCounter:
    """Counts the words of blocks and emits full tables as sorted lines of a word, a tab and its count."""

    def __init__(self, lowercase: bool, strip_accents: bool | None = None) -> None:
        self.lowercase, self.strip_accents = lowercase, strip_accents
        self.runs: Counter[str] = Counter()
        self.words: Counter[str] = Counter()
        self.characters = 0

    def add(self, block: str) -> bytes:
        """Count a block that ends at a word end; return the table of words if it is full, otherwise empty bytes."""
        self.characters += len(block)
        if not block.isprintable():
            block = _NO_SPACES.sub("", block)
        # Chinese has no spaces, so hardly any run would recur. Count its characters, which are words for BERT.
        if not block.isascii() and (ideographs := _IDEOGRAPHS.findall(block)):
            self.runs.update("".join(ideographs))
            block = _IDEOGRAPHS.sub(" ", block)
        self.runs.update(block.split())
        if len(self.runs) > MOST_RUNS or self.characters > MOST_CHARACTERS:
            self._count_words()
        return self._take_table() if len(self.words) > MOST_WORDS else b""

    def finish(self) -> bytes:
        """Return the table of all words that have not been emitted yet."""
        self._count_words()
        return self._take_table()

    def _count_words(self) -> None:
        for run, count in self.runs.items():
            for word in self._split(run):
                self.words[word if len(word) <= LONGEST_WORD else _TOO_LONG] += count
        self.runs.clear()
        self.characters = 0

    def _split(self, run: str) -> list[str]:
        if run.isascii() and run.isprintable():  # the same result as below, many times faster
            run = run.lower() if self.lowercase else run
            return [run] if run.isalnum() else _ASCII_WORDS.findall(run)
        return basic_words(run, self.lowercase, self.strip_accents)

    def _take_table(self) -> bytes:
        table = "".join(f"{word}\t{count}\n" for word, count in sorted(self.words.items())).encode()
        self.words.clear()
        return table


@dataclass(frozen=True)
class WordCounts:
    """Distinct words, sorted, with their counts; stored as lines, which take a tenth of the memory of a dict."""

    lines: bytes
    words: int
    """Number of word occurrences in the text."""
    different: int
    """Number of distinct words before the rarest were dropped; all overlong words together are one."""
    kept: int
    """Number of distinct words in ``lines``."""
    least: int
    """Smallest count among the kept words."""
    too_long: int
    """Number of occurrences of words of over 100 characters."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        start = 0
        while start < len(self.lines):
            end = self.lines.index(b"\n", start)
            word, count = self.lines[start:end].split(b"\t")
            yield word.decode(), int(count)
            start = end + 1


class SortedTables:
    """Count tables in temporary files. When a level has many tables, they are merged into one of the next level."""

    def __init__(self) -> None:
        self._levels: list[list[IO[bytes]]] = []

    def __enter__(self) -> "SortedTables":
        return self

    def __exit__(self, *_: object) -> None:
        for level in self._levels:
            _close(level)

    def add(self, table: bytes) -> None:
        """Add a table emitted by a counter."""
        if table:
            with _room_on_disk():
                file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
                self._keep(file, 0)
                file.write(table)

    def choose(self, most: int = MOST_DIFFERENT) -> WordCounts:
        """Add up all tables and return at most ``most`` words, the most frequent ones.

        Words with equal counts are all kept or all dropped, unless dropping them would leave fewer than half of
        ``most``; then the alphabetically first are kept.
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
    """Merge sorted tables into one, and close them."""
    merged = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
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
    """Yield words and counts. UTF-8 bytes sort like the strings they encode."""
    file.seek(0)
    for line in file:
        word, _, count = line.partition(b"\t")
        yield word, int(count)


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        with suppress(OSError):  # unwritten data is no longer needed
            file.close()


def _least_count(numbers: Counter[int], most: int) -> tuple[int, int]:
    """Return the smallest count that is kept, and the number of words to keep with exactly that count.

    ``numbers`` maps a count to the number of distinct words with this count.
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
            f"{tempfile.gettempdir()}: temporary word counts cannot be written there "
            f"({error.strerror or error}); free some space or set TMPDIR to another folder"
        ) from error


def count_words(
    texts: Iterable[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    workers: int,
    total: int | None,
    progress: Progress,
) -> WordCounts:
    """Count the words of texts, as split by BERT's basic tokenizer.

    Args:
        texts: Texts of any length; a word never continues in the next text.
        lowercase: Whether to lowercase words.
        strip_accents: Whether to strip accents; None means the same as ``lowercase``.
        workers: Number of processes; with 1, or for a short text, this process counts.
        total: Bytes of all texts, if known, for progress reports.
        progress: Receives progress reports in bytes.
    """
    strip = lowercase if strip_accents is None else strip_accents
    with SortedTables() as tables:
        blocks = _reported(_blocks(texts), total, progress)
        first = list(islice(blocks, FEWEST_BLOCKS))
        if workers == 1 or len(first) < FEWEST_BLOCKS:
            counter = WordCounter(lowercase, strip)
            for block in chain(first, blocks):
                tables.add(counter.add(block.decode(*ENCODING)))
            tables.add(counter.finish())
        else:
            flags = [str(int(flag)) for flag in (lowercase, strip)]
            with WorkerPool(PROGRAM, workers, _stop, arguments=flags) as pool:
                for completed in pool.run(chain(first, blocks)):
                    tables.add(completed.result)
                for table in pool.finish():
                    tables.add(table)
        return tables.choose()


def _blocks(texts: Iterable[str]) -> Iterator[bytes]:
    """Join texts into blocks of about the same size; long texts are split at word ends."""
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
    return (text[start:end] for start, end, _ in windows(text, MAX_WINDOW, chinese=True))


def _reported(blocks: Iterable[bytes], total: int | None, progress: Progress) -> Iterator[bytes]:
    """Yield the blocks and report their bytes as they are consumed."""
    done = 0
    for block in blocks:
        yield block
        done += len(block) + 1
        # The total itself is reported only once, at the end.
        progress.advance(STAGE, done if total is None else min(done, total - 1), total)
    if total is not None:
        progress.advance(STAGE, total, total)


class _CountingRunner:
    """The runner in a worker process: takes blocks and returns count tables. Counts accumulate over blocks."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        self._counter = WordCounter(lowercase, strip_accents)

    def run(self, task: bytes, report: Report) -> bytes:  # noqa: ARG002 (_reported reports progress)
        return self._counter.add(task.decode(*ENCODING))

    def finish(self) -> bytes:
        return self._counter.finish()

    def describe(self, task: bytes) -> str:
        return f"counting words in a block of {len(task):,} bytes"

    def close(self) -> None:
        pass


def serve_counts(lowercase: bool, strip_accents: bool) -> None:
    """Run a worker process that counts words."""
    serve(_CountingRunner(lowercase, strip_accents))


def _stop(index: int | None, deaths: int, exit_code: int) -> None:  # noqa: ARG001 (the pool's signature)
    # Repeating the block is not enough: the counts of earlier blocks were lost with the process.
    raise ClozeError(
        f"a process that counts words ended early (exit code {exit_code}), perhaps for lack of memory; "
        "try again with fewer --workers"
    )
