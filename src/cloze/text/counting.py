"""Texts -> word counts, with as many processes as are asked for.

Texts are put together to blocks. One process counts them here; several are fed a block each as they come free,
over a socket, and answer with the tables that they give away. What is added up does not depend on who counted
what. The processes are started afresh, never forked, since the tokenizer's engine may hold threads; and not by
``multiprocessing``, which would run an unguarded script of the caller a second time in each of them.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from cloze.errors import ClozeError
from cloze.progress import Progress
from cloze.text.characters import LONGEST_READ, windows
from cloze.text.word_counts import SortedTables, WordCounter, WordCounts

# Characters that are counted at once: they are split into a list of strings, of some 60 bytes each.
BLOCK = 250_000
# A text of fewer blocks is counted before a process would have started.
FEWEST_BLOCKS = 16
# Lone surrogates pass; the counter sees to them.
ENCODING = ("utf-8", "surrogatepass")
STAGE = "counting words (bytes)"
PROGRAM = "import sys; from cloze.text.counting import serve; serve(lowercase=sys.argv[1] == 'lowercase')"


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
