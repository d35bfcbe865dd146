"""Tasks of preparation, done by as many processes as are asked for.

Each process is at the other end of a socket: it is given a task as it comes free, tells how far it is, and answers.
One that dies, for lack of memory or killed by somebody, is replaced, and its task given to another; a task that
outlives no process stops the work. Processes are started afresh, never forked, as in ``text.counting`` and for the
same reasons.
"""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from cloze.corpus.documents import named_errors
from cloze.corpus.parts import survey
from cloze.corpus.preparation.make_shard import ShardMaker
from cloze.corpus.shards import file_digest
from cloze.errors import ClozeError, ConfigError, DataError

PROGRAM = "from cloze.corpus.preparation.workers import serve; serve()"
# How often a task may cost a process its life.
MOST_DEATHS = 3
# Bytes of text after which a process tells of itself.
_TOLD_EVERY = 2**18
_KINDS = {kind.__name__: kind for kind in (ClozeError, ConfigError, DataError)}

Task = dict[str, Any]
Answer = Any
Told = Callable[[int], None]


class TaskDoer:
    """Does tasks one after the other; what is the same for the next one is kept."""

    def __init__(self) -> None:
        self._makers: dict[str, ShardMaker] = {}

    def do(self, task: Task, told: Told) -> Answer:
        """Do one task: ``do`` names it."""
        match task["do"]:
            case "fingerprint":
                path = Path(task["path"])
                with named_errors(path):
                    return file_digest(path)
            case "survey":
                return survey(Path(task["path"]), task["file"], task["column"], task["size_of_part"], told)
            case "hash":
                return self._maker(task["folder"]).hash(task["part"], told)
            case "shard":
                return self._maker(task["folder"]).make(task["part"], told)
        raise AssertionError(task)

    def close(self) -> None:
        """Release the files."""
        for maker in self._makers.values():
            maker.close()

    def _maker(self, folder: str) -> ShardMaker:
        if folder not in self._makers:
            self._makers[folder] = ShardMaker(Path(folder))
        return self._makers[folder]


def do_tasks(
    tasks: Sequence[Task], workers: int, told: Told, said: Callable[[str], None]
) -> Iterator[tuple[Task, Answer]]:
    """Do tasks, and yield each with its answer as they are done; ``told`` hears of bytes, ``said`` of deaths."""
    if workers == 1 or len(tasks) == 1:
        with closing(TaskDoer()) as doer:
            for task in tasks:
                meter = _Meter(told)
                answer = doer.do(task, meter)
                meter.complete(task)
                yield task, answer
        return
    with _Processes(min(workers, len(tasks)), said) as processes:
        yield from processes.do(tasks, told)


class _Meter:
    """Passes on how far a task is: in the end exactly its size, if it has one, and nothing if it fails."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._sum = 0

    def __call__(self, count: int) -> None:
        self._sum += count
        self._told(count)

    def complete(self, task: Task) -> None:
        self._told(task.get("size", self._sum) - self._sum)

    def take_back(self) -> None:
        self._told(-self._sum)


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    meter: _Meter
    task: Task | None = None


class _Processes:
    """Processes that do tasks; all of them are gone when the block ends."""

    def __init__(self, number: int, said: Callable[[str], None]) -> None:
        self._number = number
        self._said = said
        self._workers: list[_Worker] = []

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.wait()

    def do(self, tasks: Sequence[Task], told: Told) -> Iterator[tuple[Task, Answer]]:
        waiting = deque(tasks)
        deaths: dict[int, int] = {}
        while waiting or any(worker.task is not None for worker in self._workers):
            self._give(waiting, told)
            for worker in self._heard():
                try:
                    message = json.loads(worker.connection.recv_bytes())
                except (EOFError, OSError):
                    if (task := self._bury(worker, deaths)) is not None:
                        waiting.appendleft(task)
                    continue
                if "bytes" in message:
                    worker.meter(message["bytes"])
                    continue
                task, worker.task = worker.task, None
                assert task is not None
                yield task, _answer(message)
                worker.meter.complete(task)

    def _give(self, waiting: deque[Task], told: Told) -> None:
        while waiting:
            worker = next((worker for worker in self._workers if worker.task is None), None)
            if worker is None:
                if len(self._workers) == self._number:
                    return
                worker = self._start(told)
            worker.task, worker.meter = waiting.popleft(), _Meter(told)
            try:
                worker.connection.send_bytes(json.dumps(worker.task).encode())
            except OSError:
                return  # it has died: whoever listens to it will find out

    def _start(self, told: Told) -> _Worker:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                process_group=0,  # Ctrl-C is for us to hear; they go when we go
            )
        self._workers.append(_Worker(process, ours, _Meter(told)))
        return self._workers[-1]

    def _heard(self) -> list[_Worker]:
        ready = wait([worker.connection for worker in self._workers])
        return [worker for worker in self._workers if worker.connection in ready]

    def _bury(self, worker: _Worker, deaths: dict[int, int]) -> Task | None:
        """Take leave of a process; return its task, which is to be done again."""
        worker.connection.close()
        worker.process.kill()
        code = worker.process.wait()
        self._workers.remove(worker)
        worker.meter.take_back()
        if worker.task is None:
            return None
        count = deaths[id(worker.task)] = deaths.get(id(worker.task), 0) + 1
        what = describe(worker.task)
        if count == MOST_DEATHS:
            raise ClozeError(
                f"{what}: {count} processes have ended at it, the last with exit code {code}, perhaps for lack of "
                "memory; the finished shards are kept: the same command goes on, with fewer --workers if need be"
            )
        self._said(f"{what}: its process has ended (exit code {code}); another one makes it again")
        return worker.task


def _answer(message: dict[str, Any]) -> Answer:
    if "error" in message:
        kind, text = message["error"]
        raise _KINDS[kind](text)
    if "defect" in message:
        raise RuntimeError(message["defect"])
    return message["answer"]


def describe(task: Task) -> str:
    """A task in words."""
    if "part" in task:
        return f"shard {task['part']:05d}" if task["do"] == "shard" else f"the hashes of shard {task['part']:05d}"
    return f"reading {task['path']}"


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        # The cores are shared by processes already.
        "RAYON_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class _Teller:
    """Passes bytes on, many at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending = 0

    def __call__(self, count: int) -> None:
        self._pending += count
        if self._pending >= _TOLD_EVERY:
            self._connection.send_bytes(json.dumps({"bytes": self._pending}).encode())
            self._pending = 0


def serve() -> None:
    """Be such a process: do the tasks that standard input brings, until nobody is there."""
    with Connection(os.dup(0)) as connection, closing(TaskDoer()) as doer:
        try:
            while True:
                task = json.loads(connection.recv_bytes())
                try:
                    message: dict[str, Any] = {"answer": doer.do(task, _Teller(connection))}
                except ClozeError as error:
                    kind = next(name for name in reversed(_KINDS) if isinstance(error, _KINDS[name]))
                    message = {"error": [kind, str(error)]}
                except Exception as error:
                    message = {"defect": f"{describe(task)}: {type(error).__name__}: {error}"}
                connection.send_bytes(json.dumps(message).encode())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # nobody is left to work for
