"""Files processed in parts: resumed, rejected, interrupted, with constant memory."""

import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.errors import ClozeError, DataError
from cloze.locks import is_ours
from cloze.progress import Interrupted, Silent
from cloze.resumable import ResumableJob, UnchangedFile, file_identity

PARTS = [["a", "b"], ["c", "d"], ["e"]]


class Work:
    """A job that writes its parts in capitals and records them."""

    def __init__(self, fail_at: str = "", work: str = "one") -> None:
        self.written: list[list[str]] = []
        self.fail_at = fail_at
        self.job = ResumableJob("rows", len, self.write, self.join, {"kind": work})

    def write(self, part: list[str], path: Path) -> None:
        if self.fail_at and self.fail_at in part:
            os.kill(os.getpid(), signal.SIGTERM)
        self.written.append(part)
        path.write_text("".join(part).upper(), encoding="utf-8")

    def join(self, parts: list[Path], path: Path) -> None:
        path.write_text("".join(part.read_text(encoding="utf-8") for part in parts), encoding="utf-8")

    def run(self, output: Path, parts: list[list[str]] = PARTS, *, fresh: bool = False) -> int:
        return self.job.run(iter(parts), 5, output, Silent(), fresh=fresh)


def test_parts_become_one_file(tmp_path: Path) -> None:
    assert Work().run(tmp_path / "out.txt") == 5
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "ABCDE"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_one_part_is_written_directly(tmp_path: Path) -> None:
    work = Work()
    assert work.run(tmp_path / "out.txt", PARTS[:1]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^the input has no rows; give at least one$"):
        Work().run(tmp_path / "out.txt", [])


def test_a_stopped_job_is_resumed(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    message = r"^stopped after 2 rows, which are kept in .*out\.txt\.parts; re-run the command to resume$"
    with pytest.raises(Interrupted, match=message) as stop:
        Work(fail_at="c").run(output)
    assert stop.value.exit_code == 143
    assert not output.exists()
    again = Work()
    assert again.run(output) == 5
    assert again.written == PARTS[1:]  # the first part existed already
    assert output.read_text(encoding="utf-8") == "ABCDE"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_other_work_is_refused_unless_fresh(tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with pytest.raises(Interrupted):
        Work(fail_at="c").run(output)
    message = (
        r"out\.txt\.parts: belongs to a job with other settings \(kind was 'one', is 'two'\); "
        "pass --fresh to start over, or choose another --output$"
    )
    with pytest.raises(DataError, match=message):
        Work(work="two").run(output)
    anew = Work(work="two")
    assert anew.run(output, fresh=True) == 5
    assert anew.written == PARTS


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    output = tmp_path / "file" / "out.txt"
    with pytest.raises(ClozeError, match=r"cannot be written .*; free some space or choose another location$"):
        Work().run(output)


def test_memory_does_not_grow(tmp_path: Path) -> None:
    def parts(count: int) -> Iterator[list[str]]:
        for number in range(count):
            yield [f"{number} " + "x" * 1000] * 100

    def peak(count: int) -> int:
        def write(part: list[str], path: Path) -> None:
            path.write_text("".join(part), encoding="utf-8")

        job = ResumableJob[list[str]]("rows", len, write, lambda *_: None, {})
        tracemalloc.start()
        job.run(parts(count), None, tmp_path / f"{count}.txt", Silent(), fresh=True)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(5)
    assert peak(100) < 1.2 * peak(10)


def test_parts_without_a_record_are_ignored(tmp_path: Path) -> None:
    """Parts without a record, left by a job that was killed while deleting them, are not used."""
    output = tmp_path / "out.txt"
    with pytest.raises(Interrupted):
        Work(fail_at="e").run(output)
    (tmp_path / "out.txt.parts" / "work.json").unlink()
    work = Work(work="two")
    assert work.run(output, [["x", "y"], ["z"]]) == 3
    assert work.written == [["x", "y"], ["z"]]
    assert output.read_text(encoding="utf-8") == "XYZ"
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_the_record_is_deleted_after_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, folder = tmp_path / "out.txt", tmp_path / "out.txt.parts"
    unlink, deleted = Path.unlink, list[str]()

    def note(path: Path, missing_ok: bool = False) -> None:
        if path.parent == folder and not is_ours(path):
            deleted.append(path.name)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    Work().run(output)
    assert deleted[-1] == "work.json"
    assert sorted(deleted[:-1]) == ["000000.txt", "000001.txt", "000002.txt"]


@pytest.mark.parametrize("fresh", [False, True])
def test_somebodys_folder_is_not_taken_for_parts(fresh: bool, tmp_path: Path) -> None:
    folder = tmp_path / "out.txt.parts"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(DataError, match=r"out\.txt\.parts: contains 'thesis.txt', which cloze did not write"):
        Work().run(tmp_path / "out.txt", fresh=fresh)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"out\.txt\.parts: is not a folder of unfinished work"):
        Work().run(tmp_path / "out.txt", fresh=fresh)
    assert (tmp_path / "elsewhere" / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("one", encoding="utf-8")
    before, state = file_identity(path), path.stat()
    os.utime(path)
    assert file_identity(path) == before
    path.write_text("two", encoding="utf-8")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert file_identity(path) != before


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("one", encoding="utf-8")
    unchanged = UnchangedFile(path)
    unchanged.check()
    path.write_text("three", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows.csv: has changed while it was read; run the command again with --fresh"):
        unchanged.check()
    os.mkfifo(tmp_path / "pipe")
    UnchangedFile(tmp_path / "pipe").check()
