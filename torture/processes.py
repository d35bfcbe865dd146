"""Run tasks that may kill their process.

The standard library's process pools fail or hang when one process dies. Here each process has its own pipe, so the
task at which a process died is known; the process is replaced, and a task that hangs is killed.
"""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Death:
    """The result of a task whose process has died."""

    reason: str


@dataclass
class _Worker(Generic[Task]):
    process: BaseProcess
    pipe: Connection
    task: Task
    started: float
    overdue: bool = False


def do_in_processes(
    work: Callable[..., Result], tasks: Iterable[Task], shared: tuple[Any, ...], *, processes: int, longest: float
) -> Iterator[tuple[Task, Result | Death]]:
    """Yield ``work(task, *shared)`` for every task as it finishes; ``longest`` is the timeout per task in seconds."""
    waiting = deque(tasks)
    idle: list[tuple[BaseProcess, Connection]] = []
    busy: list[_Worker[Task]] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                process, pipe = idle.pop() if idle else _start(work, shared)
                busy.append(_Worker(process, pipe, waiting.popleft(), time.monotonic()))
                pipe.send(busy[-1].task)
            wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in [worker for worker in busy if worker.pipe.poll()]:
                busy.remove(worker)
                try:
                    result: Result | Death = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    result = _bury(worker, longest)
                else:
                    idle.append((worker.process, worker.pipe))
                yield worker.task, result
            for worker in busy:
                if time.monotonic() - worker.started > longest:
                    worker.overdue = True
                    worker.process.kill()
    finally:
        for process, pipe in [*idle, *((worker.process, worker.pipe) for worker in busy)]:
            process.kill()
            process.join()
            pipe.close()


def _start(work: Callable[..., Any], shared: tuple[Any, ...]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")  # a fork would inherit the threads of the native tokenizer
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work, shared), daemon=True)
    process.start()
    theirs.close()  # so that the pipe closes when the process ends
    return process, ours


def _serve(pipe: Connection, work: Callable[..., Any], shared: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles interrupts
    # The processes already share the cores. The variable takes effect when the native tokenizer is first used.
    os.environ["RAYON_NUM_THREADS"] = "1"
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(work(task, *shared))


def _bury(worker: _Worker[Any], longest: float) -> Death:
    worker.process.join()
    worker.pipe.close()
    if worker.overdue:
        return Death(f"not done after {longest:.0f} s")
    return Death(f"the process died with exit code {worker.process.exitcode}")
