"""Writing replaces the target atomically and touches nothing else; only one process writes to a target at a time."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cloze import locks
from cloze.cli.outputs import check_file, check_folder
from cloze.errors import ClozeError, ConfigError
from cloze.files import replaced_file, replaced_folder, scratch_folder, write_json
from cloze.locks import command_locks, hold_target, is_ours, only_writer, sweep, target_name

BUSY = "another process is writing to {}; wait for it to end, or choose another location$"
# Another process that holds a target until its standard input ends; it may write first, and be killed by that.
HOLDER = """
import os, signal, sys
from pathlib import Path
from cloze.files import replaced_file, replaced_folder
from cloze.locks import only_writer
target, how = Path(sys.argv[1]), sys.argv[2]
writing = {"hold": only_writer, "file": replaced_file, "folder": replaced_folder, "between": replaced_folder}[how]
rename = Path.rename
def renamed_once(path, place):
    rename(path, place)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "between":
    Path.rename = renamed_once
with writing(target) as temporary:
    if how == "file":
        temporary.write_text("half")
    print("ready", flush=True)
    if how != "between":
        sys.stdin.read()
"""


@contextmanager
def another_process(target: Path, how: str = "hold") -> Iterator["subprocess.Popen[str]"]:
    words = [sys.executable, "-c", HOLDER, str(target), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def write_file(path: Path) -> None:
    with replaced_file(path) as temporary:
        temporary.write_text("new", encoding="utf-8")


def write_folder(path: Path) -> None:
    with replaced_folder(path) as temporary:
        (temporary / "a.txt").write_text("new", encoding="utf-8")


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work", encoding="utf-8")


WRITERS = [pytest.param(write_file, id="file"), pytest.param(write_folder, id="folder")]
Writer = Callable[[Path], None]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", ["out.tmp", "out.old", ".out.replaced", ".out.tmp", "out.bak"])
def test_neighbours_are_neither_deleted_nor_followed(name: str, write: Writer, tmp_path: Path) -> None:
    make_folder(tmp_path / name)
    write(tmp_path / "out")
    write(tmp_path / "out")
    assert (tmp_path / name / "thesis.txt").read_text(encoding="utf-8") == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "out"])


@pytest.mark.parametrize("write", WRITERS)
def test_links_with_names_of_temporary_files_are_not_followed(write: Writer, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("years of work", encoding="utf-8")
    (tmp_path / "out.tmp").symlink_to(precious)
    write(tmp_path / "out")
    assert precious.read_text(encoding="utf-8") == "years of work"
    assert (tmp_path / "out.tmp").readlink() == precious


def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for write, name in ((write_file, "file"), (write_folder, "folder")):
        target, link = tmp_path / "far" / name, tmp_path / name
        link.symlink_to(target)
        for _ in range(2):  # first to a new path, then over existing output
            write(link)
            assert link.readlink() == target
            assert target.is_dir() == (name == "folder")
    assert sorted(path.name for path in (tmp_path / "far").iterdir()) == ["file", "folder"]


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # socket paths must be short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(here)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (bind, "a socket"),
        (lambda path: path.symlink_to(path), "a symbolic link that leads nowhere"),
    ],
)
def test_targets_of_another_kind_are_refused(
    make: Callable[[Path], None], kind: str, write: Writer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    make(out)
    before = os.lstat(out)
    with pytest.raises(ConfigError, match=rf"out: is {kind}, but a (file|folder) must be written; choose another"):
        write(out)
    assert os.path.samestat(os.lstat(out), before)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_is_not_replaced_by_a_folder_nor_the_other_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("years of work", encoding="utf-8")
    make_folder(tmp_path / "folder")
    with pytest.raises(ConfigError, match="file: is a file, but a folder must be written"):
        write_folder(tmp_path / "file")
    with pytest.raises(ConfigError, match="folder: is a folder, but a file must be written"):
        write_file(tmp_path / "folder")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "years of work"
    assert (tmp_path / "folder" / "thesis.txt").is_file()


def test_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/null: is a device, but a file must be written"):
        write_file(Path("/dev/null"))
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)


def test_write_protected_targets_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o444)
    (tmp_path / "folder").mkdir(mode=0o555)
    for write, name in ((write_file, "file"), (write_folder, "folder")):
        with pytest.raises(ConfigError, match=f"{name}: is write-protected; make it writable, or choose another"):
            write(tmp_path / name)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_follow_the_umask_or_the_replaced_file(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_file(tmp_path / "file")
        write_folder(tmp_path / "folder")
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder", "folder/a.txt")]
        assert modes == [0o666 & ~mask, 0o777 & ~mask, 0o666 & ~mask]
        (tmp_path / "file").chmod(0o640)
        (tmp_path / "folder").chmod(0o750)
        write_file(tmp_path / "file")
        write_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")] == [0o640, 0o750]


# One writer


@pytest.mark.parametrize("write", WRITERS)
def test_a_second_process_is_refused(write: Writer, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    (tmp_path / "link").symlink_to(out)
    with another_process(out):
        for name in (out, tmp_path / "link"):
            with pytest.raises(ClozeError, match=BUSY.format(name.name)):
                write(name)
        assert not out.exists()
    write(out)  # the lock ended with the process
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_targets_are_reentrant_per_thread(tmp_path: Path) -> None:
    refused: list[ClozeError] = []

    def other() -> None:
        with pytest.raises(ClozeError, match=BUSY.format("out")) as caught:
            write_file(tmp_path / "out")
        refused.append(caught.value)

    with only_writer(tmp_path / "out"), only_writer(tmp_path / "out"):
        write_file(tmp_path / "out")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_target_can_be_released_while_another_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releasing a target while another is taken works, as when the garbage collector closes a forgotten run."""

    def take_another() -> None:
        first, hold = ExitStack(), locks._hold
        first.enter_context(only_writer(tmp_path / "first"))

        def release_and_hold(place: Path, target: Path) -> locks._Held:
            first.close()
            return hold(place, target)

        with monkeypatch.context() as patch:
            patch.setattr(locks, "_hold", release_and_hold)
            with only_writer(tmp_path / "second"):
                assert locks._held.keys() == {tmp_path / "second"}

    taker = threading.Thread(target=take_another, daemon=True)
    taker.start()
    taker.join(20)
    assert not taker.is_alive()
    assert not locks._held.keys() & {tmp_path / "first", tmp_path / "second"}


@pytest.mark.parametrize("how", ["file", "folder"])
def test_files_of_a_killed_writer_are_deleted_by_the_next(how: str, tmp_path: Path) -> None:
    with another_process(tmp_path / "out", how) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = [path for path in tmp_path.iterdir() if target_name(path) == "out"]
    assert len(left) == 1
    make_folder(tmp_path / ".out.0123456789abcdef.tmp")  # a similar name that is not one of our temporary files
    (write_file if how == "file" else write_folder)(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.0123456789abcdef.tmp", "out"]


def test_temporary_files_of_a_running_writer_are_kept(tmp_path: Path) -> None:
    with another_process(tmp_path / "one", "file"):
        write_file(tmp_path / "two")
        sweep(tmp_path)
        assert {target_name(path) for path in tmp_path.iterdir()} >= {"one"}


def test_a_writer_killed_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    write_folder(tmp_path / "out")
    (tmp_path / "out" / "old.txt").touch()
    with another_process(tmp_path / "out", "between") as process:
        process.wait()
    assert not (tmp_path / "out").exists()
    with pytest.raises(RuntimeError), replaced_folder(tmp_path / "out"):
        raise RuntimeError("the next one fails as well")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt", "old.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_lock_file_of_another_kind_is_refused_and_a_full_one_kept(tmp_path: Path) -> None:
    (tmp_path / ".out.cloze-lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClozeError, match="out: cannot be written"):
        write_file(tmp_path / "out")
    assert not (tmp_path / "elsewhere").exists()
    os.mkfifo(tmp_path / ".pipe.cloze-lock")
    with pytest.raises(ClozeError, match="pipe: cannot be written"):
        write_file(tmp_path / "pipe")
    (tmp_path / ".mine.cloze-lock").write_text("somebody's", encoding="utf-8")
    write_file(tmp_path / "mine")
    assert (tmp_path / ".mine.cloze-lock").read_text(encoding="utf-8") == "somebody's"


def test_long_names_have_room_for_temporaries(tmp_path: Path) -> None:
    name = "x" * 255
    write_file(tmp_path / name)
    write_folder(tmp_path / ("ä" * 127))
    assert len(list(tmp_path.iterdir())) == 2


def test_folders_created_for_nothing_are_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replaced_file(tmp_path / "a" / "b" / "out"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with scratch_folder(tmp_path / "a" / "out") as folder:
        write_json(folder / "x.json", {})
        assert is_ours(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_command_holds_its_outputs_to_its_end(tmp_path: Path) -> None:
    check_folder(tmp_path / "out")  # outside a command, the function only checks
    with another_process(tmp_path / "out"), command_locks(), pytest.raises(ClozeError, match=BUSY.format("out")):
        check_folder(tmp_path / "out")
    with another_process(tmp_path / "x.csv"), command_locks(), pytest.raises(ClozeError, match=BUSY.format("x.csv")):
        check_file(tmp_path / "x.csv")
    with command_locks():
        check_folder(tmp_path / "out")
        assert (tmp_path / ".out.cloze-lock").is_file()
    assert not (tmp_path / ".out.cloze-lock").exists()


def test_of_the_processes_of_torchrun_the_first_holds_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with another_process(tmp_path / "out"), command_locks():
        hold_target(tmp_path / "out")
