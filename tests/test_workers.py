"""The worker pool: order, repeated tasks, errors with their positions, and clean shutdown."""

import pytest

from cloze.errors import ClozeError, DataError
from cloze.workers import WorkerPool

PROGRAM = """
import os, sys
from pathlib import Path
from cloze.errors import DataError
from cloze.workers import serve
class Runner:
    seen = 0
    def run(self, task, report):
        self.seen += 1
        report(2**18)
        if task == b"bad":
            raise DataError("file:3: bad row")
        if task == b"defect":
            raise TypeError("oops")
        mark = Path(sys.argv[1])
        if task == b"deadly" and not mark.exists():
            mark.touch()
            os._exit(7)
        return task.upper()
    def finish(self):
        return b"%d" % self.seen
    def describe(self, task):
        return f"task {task.decode()}"
    def close(self):
        pass
serve(Runner())
"""


def stop(index: int | None, deaths: int, exit_code: int) -> None:
    raise ClozeError(f"task {index}, death {deaths}, exit code {exit_code}")


def test_results_carry_the_index_of_their_task(tmp_path: object) -> None:
    tasks = [b"a", b"b", b"c", b"d", b"e"]
    reported = list[int]()
    with WorkerPool(PROGRAM, 2, stop, report=reported.append, arguments=[f"{tmp_path}/mark"]) as pool:
        completed = sorted(pool.run(iter(tasks)))
        finished = list(pool.finish())
    assert [(index, result) for index, result, _ in completed] == [(i, task.upper()) for i, task in enumerate(tasks)]
    assert sum(map(int, finished)) == len(tasks)
    assert reported == [2**18] * len(tasks)


def test_task_of_a_dead_worker_is_repeated_and_its_progress_reset(tmp_path: object) -> None:
    deaths, reported = list[tuple[int | None, int, int]](), list[int]()
    with WorkerPool(
        PROGRAM,
        1,
        lambda index, died, code: deaths.append((index, died, code)),
        report=reported.append,
        arguments=[f"{tmp_path}/mark"],
    ) as pool:
        completed = list(pool.run([b"a", b"deadly", b"b"]))
    assert [index for index, _, _ in completed] == [0, 1, 2]
    assert deaths == [(1, 1, 7)]
    assert reported.count(-(2**18)) == 1
    assert sum(reported) == 3 * 2**18


def test_caller_may_stop_when_a_worker_dies(tmp_path: object) -> None:
    with (
        WorkerPool(PROGRAM, 2, stop, arguments=[f"{tmp_path}/mark"]) as pool,
        pytest.raises(ClozeError, match="task 0, death 1, exit code 7"),
    ):
        list(pool.run([b"deadly"]))


def test_errors_arrive_with_type_and_place(tmp_path: object) -> None:
    for task, kind, message in (
        (b"bad", DataError, "^file:3: bad row$"),
        (b"defect", RuntimeError, "^task defect: TypeError: oops$"),
    ):
        with (
            WorkerPool(PROGRAM, 1, stop, arguments=[f"{tmp_path}/mark"]) as pool,
            pytest.raises(kind, match=message),
        ):
            list(pool.run([task]))
