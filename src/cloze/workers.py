"""A pool of worker processes for processing text.

Word counting (``text/word_counts.py``) and corpus preparation (``corpus/preparation``) use it. Tasks and results are
bytes, so the pool is independent of both.

- Each worker is a new interpreter, connected by a socket. It is never forked, because the tokenizer library may have
  running threads, and never started by ``multiprocessing``, which would run an unguarded script of the caller again.
- An idle worker gets the next task, so results arrive in the order in which tasks finish, with the index of the task.
- If a worker dies, the caller decides whether another worker repeats its task or the work stops.
- An error in a task is raised in the caller with the same type and message.
- Workers have their own process groups: Ctrl-C reaches only the caller; leaving the ``with`` block ends all workers.
"""

import json
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import NamedTuple, Protocol

from cloze.errors import ClozeError, ConfigError, DataError

# Units of progress (bytes of text) that a worker accumulates before it sends a message.
_REPORT_EVERY = 2**18
# From general to specific: an error is raised as the last of these types of which it is an instance.
_ERROR_TYPES = {kind.__name__: kind for kind in (ClozeError, ConfigError, DataError)}
# Types of messages from a worker: the first byte of a message.
_RESULT, _PROGRESS, _ERROR, _DEFECT = b"r", b"p", b"e", b"d"

Report = Callable[[int], None]


class TaskRunner(Protocol):
    """Runs the tasks in a worker; it may keep state between tasks."""

    def run(self, task: bytes, report: Report) -> bytes:
        """Run one task; call ``report`` with the amount of work done since the last call."""

    def finish(self) -> bytes:
        """Return a final result after the last task."""

    def describe(self, task: bytes) -> str:
        """Return a description of a task for messages about unexpected errors."""

    def close(self) -> None:
        """Close open files."""


class Completed(NamedTuple):
    """A finished task: its index, its result, and the amount of progress that it reported."""

    task: int
    result: bytes
    progress: int


class OnDeath(Protocol):
    """A callback for dead workers: it returns to repeat the task of the worker, or raises an error to stop the work."""

    def __call__(self, index: int | None, deaths: int, exit_code: int) -> None:
        """Handle the death of a worker at task ``index`` (None: it was idle); ``deaths`` workers died at it so far."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    task: tuple[int, bytes] | None = None
    progress: int = 0


class WorkerPool:
    """Worker processes, started on demand and ended at the end of the ``with`` block.

    Args:
        program: Python source that a worker runs; it must call ``serve``.
        size: Maximum number of processes.
        on_death: Called when a worker dies.
        report: Called with amounts of progress, and with the negated sum for a task that must be repeated.
        arguments: ``sys.argv[1:]`` of the workers.
    """

    def __init__(
        self,
        program: str,
        size: int,
        on_death: OnDeath,
        *,
        report: Report = lambda _: None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._command = [sys.executable, "-P", "-c", program, *arguments]
        self._size = size
        self._on_death = on_death
        self._report = report
        self._workers: list[_Worker] = []
        self._deaths: Counter[int] = Counter()  # by task index

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.wait()

    def run(self, tasks: Iterable[bytes]) -> Iterator[Completed]:
        """Run tasks and yield their results as they finish. Tasks are consumed only when workers are idle."""
        waiting, repeated = enumerate(tasks), deque[tuple[int, bytes]]()
        while True:
            self._assign(waiting, repeated)
            if all(worker.task is None for worker in self._workers):
                return
            for worker in self._ready():
                try:
                    message = worker.connection.recv_bytes()
                except (EOFError, OSError):
                    if (task := self._remove_dead(worker)) is not None:
                        repeated.append(task)
                    continue
                if message[:1] == _PROGRESS:
                    worker.progress += int(message[1:])
                    self._report(int(message[1:]))
                    continue
                task, worker.task = worker.task, None
                assert task is not None
                yield Completed(task[0], _result(message), worker.progress)

    def finish(self) -> Iterator[bytes]:
        """Yield the result of ``TaskRunner.finish`` for each worker that has run a task."""
        for worker in list(self._workers):
            try:
                worker.connection.send_bytes(b"")
            except OSError:
                self._remove_dead(worker)
        for worker in list(self._workers):
            try:
                message = worker.connection.recv_bytes()
            except (EOFError, OSError):
                self._remove_dead(worker)
            else:
                yield _result(message)

    def _assign(self, waiting: Iterator[tuple[int, bytes]], repeated: deque[tuple[int, bytes]]) -> None:
        """Assign tasks to idle workers, and start further workers while there are tasks for them."""
        while True:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None and len(self._workers) == self._size:
                return
            task = repeated.popleft() if repeated else next(waiting, None)
            if task is None:
                return
            worker = worker or self._start()
            worker.task, worker.progress = task, 0
            try:
                worker.connection.send_bytes(task[1])
            except OSError:
                return  # the worker is dead; the next read from it detects this

    def _start(self) -> _Worker:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                process_group=0,
            )
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _ready(self) -> list[_Worker]:
        """Wait until a worker has sent a message or died, and return all such workers."""
        ready = wait([worker.connection for worker in self._workers])
        return [worker for worker in self._workers if worker.connection in ready]

    def _remove_dead(self, worker: _Worker) -> tuple[int, bytes] | None:
        """Remove a dead worker and return the task to repeat, if any."""
        worker.connection.close()
        try:
            exit_code = worker.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it has closed the socket but is still running
            worker.process.kill()
            exit_code = worker.process.wait()
        self._workers.remove(worker)
        self._report(-worker.progress)
        index = None if worker.task is None else worker.task[0]
        if index is not None:
            self._deaths[index] += 1
        self._on_death(index, 0 if index is None else self._deaths[index], exit_code)
        return worker.task


def run_here(runner: TaskRunner, tasks: Iterable[bytes], report: Report = lambda _: None) -> Iterator[Completed]:
    """Run tasks in this process, with the same results as a pool."""
    for index, task in enumerate(tasks):
        reported: list[int] = []

        def count(amount: int, reported: list[int] = reported) -> None:
            reported.append(amount)
            report(amount)

        yield Completed(index, runner.run(task, count), sum(reported))


def serve(runner: TaskRunner) -> None:
    """Run as a worker: process tasks that arrive on standard input until the caller closes the connection."""
    with Connection(os.dup(0)) as connection, closing(runner):
        try:
            while True:
                task = connection.recv_bytes()
                connection.send_bytes(_run(runner, task, connection))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _run(runner: TaskRunner, task: bytes, connection: Connection) -> bytes:
    try:
        return _RESULT + (runner.run(task, _Reporter(connection)) if task else runner.finish())
    except ClozeError as error:
        kind = next(name for name in reversed(_ERROR_TYPES) if isinstance(error, _ERROR_TYPES[name]))
        return _ERROR + json.dumps([kind, str(error)]).encode()
    except Exception as error:
        return _DEFECT + f"{runner.describe(task)}: {type(error).__name__}: {error}".encode()


def _result(message: bytes) -> bytes:
    """Return the result in a message, or raise the error in it."""
    if message[:1] == _ERROR:
        kind, text = json.loads(message[1:])
        raise _ERROR_TYPES[kind](text)
    if message[:1] == _DEFECT:
        raise RuntimeError(message[1:].decode())
    return message[1:]


class _Reporter:
    """Sends progress to the caller, accumulated into few messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending = 0

    def __call__(self, amount: int) -> None:
        self._pending += amount
        if self._pending >= _REPORT_EVERY:
            self._connection.send_bytes(_PROGRESS + b"%d" % self._pending)
            self._pending = 0


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        # The processes already use all cores, so threads inside them would only compete.
        "RAYON_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
