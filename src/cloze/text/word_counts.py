"""How often each word occurs in any amount of text, in memory that does not grow with it.

The first step of learning a vocabulary. Text comes in blocks. A ``WordCounter`` counts what stands between
spaces, of which most recurs, makes words of it when that table is full, and gives its table of words away,
sorted, when that one is full too. ``SortedTables`` keeps such tables in files without a name, which vanish
with the process however it ends, and adds them up by merging. The counts are exact, and the same in
whatever blocks and by however many counters the text was read.
"""

import heapq
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import IO

from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.errors import ClozeError
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
