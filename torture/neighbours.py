"""T26: files next to an output, or at its path, are neither deleted nor followed; modes respect the umask.

Each command writes next to a user's files, folders and links that have names typical of temporary files, and onto
targets that are links, devices, pipes, sockets, write-protected or owned by other users. Everything except the
output must stay unchanged: content, mode and owner.
"""

import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.commands import Inputs, SmallParts, contents, litter, state_of
from torture.training import run_command

_MOST_FAILURES = 10
_OTHER_USER = 12345
_BESIDE = ("{}.tmp", "{}.old", "{}.bak", ".{}.replaced", ".{}.tmp", "{}.parts", "{}.partial", "{}.documents.txt")
_UMASKS = (0o022, 0o077, 0o027)


@dataclass(frozen=True)
class NeighbourSettings:
    """The commands to test; all if empty."""

    commands: tuple[str, ...] = ()


def run(settings: NeighbourSettings, progress: Progress) -> Outcome:
    """Write next to every kind of file, onto every kind of target, and under every umask."""
    with TemporaryDirectory() as name:
        trials = _OutputTrials(Path(name).resolve(), settings)
        cases = [case for command in trials.commands for case in trials.cases(command)]
        for number, case in enumerate(cases):
            case()
            progress.advance("T26: cases", number + 1, len(cases))
        figures: dict[str, str | int | float] = {
            "cases": len(cases),
            "refused": trials.refused,
            "changed or followed": trials.changed,
            "files with checked modes": trials.modes,
        }
        return Outcome(not trials.failures, figures, trials.failures[:_MOST_FAILURES])


class _OutputTrials:
    """Commands that write next to existing files."""

    def __init__(self, scratch: Path, settings: NeighbourSettings) -> None:
        self._scratch, self._number = scratch, 0
        self._inputs = Inputs(scratch)
        every = self._inputs.commands()
        self.commands = {name: every[name] for name in settings.commands or every}
        self.refused = self.changed = self.modes = 0
        self.failures: list[str] = []

    def cases(self, name: str) -> Iterator[Callable[[], None]]:
        """Yield every case for a command."""
        for kind, make in _NEIGHBOURS.items():
            yield lambda kind=kind, make=make: self._beside(name, _BESIDE, kind, make)  # type: ignore[misc]
        for kind, place in _TARGETS.items():
            yield lambda kind=kind, place=place: self._onto(name, kind, place)  # type: ignore[misc]
        if os.geteuid() == 0:
            yield lambda: self._owned(name)
        for mask in _UMASKS:
            yield lambda mask=mask: self._under(name, mask)  # type: ignore[misc]

    def _out(self, name: str) -> Path:
        self._number += 1
        folder = self._scratch / f"case-{self._number}"
        folder.mkdir()
        return folder / f"out{self.commands[name][0]}"

    def _write(self, name: str, out: Path, place: str, umask: int | None = None) -> int:
        code, child = run_command(self.commands[name][1](out, 0), self._scratch / "said", SmallParts(umask))
        complaints = [line for line in child.output.splitlines() if "error" in line.lower() or "Traceback" in line]
        if code not in (0, 2) or (code == 2 and len(complaints) != 1):
            self.failures.append(f"{place}: exit code {code}: {child.last_line}")
        self.refused += code == 2
        return code

    def _beside(self, name: str, patterns: Sequence[str], kind: str, make: Callable[[Path, Path], None]) -> None:
        """Write next to neighbours of all names at once; if the command refuses, try each neighbour separately."""
        out = self._out(name)
        neighbours = [out.with_name(pattern.format(out.name)) for pattern in patterns]
        for number, neighbour in enumerate(neighbours):
            make(neighbour, out.with_name(f"precious-{number}"))
        paths = sorted(out.parent.iterdir())
        before = [state_of(path) for path in paths]
        place = f"{name} beside {kind} {', '.join(neighbour.name for neighbour in neighbours)}"
        codes = []
        for _ in range(2):  # a new output, then one that replaces it
            codes.append(self._write(name, out, place))
            if codes[-1] == 0 and not contents(out):
                self.failures.append(f"{place}: wrote nothing")
            if not all(map(os.path.lexists, paths)) or [state_of(path) for path in paths] != before:
                self.changed += 1
                self.failures.append(f"{place}: it has changed")
                return
        self.failures += [f"{place}: {path} was left behind" for path in litter(out.parent)]
        if any(codes) and len(patterns) > 1:
            for pattern in patterns:
                self._beside(name, (pattern,), kind, make)

    def _onto(self, name: str, kind: str, make: Callable[[Path, bool], list[Path] | None]) -> None:
        out = self._out(name)
        try:
            kept = make(out, bool(self.commands[name][0]))
        except PermissionError:  # only the superuser can create devices and files of other users
            return
        before = None if kept is None else [state_of(path) for path in kept]
        code = self._write(name, out, f"{name} onto {kind}")
        if kept is None and (code != 0 or not out.is_symlink() or not contents(out)):
            self.changed += 1
            self.failures.append(f"{name} onto {kind}: exit code {code}, and the link is {out.is_symlink()}")
        if kept is not None and (code != 2 or [state_of(path) for path in kept] != before):
            self.changed += 1
            self.failures.append(f"{name} onto {kind}: exit code {code}, or it has changed")

    def _owned(self, name: str) -> None:
        """Overwrite another user's file as the superuser; the owner must not change."""
        out = self._out(name)
        if self._write(name, out, f"{name} onto its own output") != 0:
            return
        os.chown(out, _OTHER_USER, _OTHER_USER)
        self._write(name, out, f"{name} onto another's")
        if out.stat().st_uid != _OTHER_USER:
            self.changed += 1
            self.failures.append(f"{name} onto another's: the owner changed")

    def _under(self, name: str, mask: int) -> None:
        out = self._out(name)
        if self._write(name, out, f"{name} under umask {mask:o}", mask) != 0:
            self.failures.append(f"{name} under umask {mask:o}: rejected")
            return
        for path in [out, *(out.rglob("*") if out.is_dir() else [])]:
            mode, usual = stat.S_IMODE(path.stat().st_mode), 0o777 if path.is_dir() else 0o666
            self.modes += 1
            if mode != usual & ~mask:
                self.failures.append(f"{name} under umask {mask:o}: {path.name} has mode {mode:o}")


def _folder(neighbour: Path, precious: Path) -> None:  # noqa: ARG001 (same signature as the other neighbours)
    neighbour.mkdir()
    (neighbour / "thesis.txt").write_text("years of work", encoding="utf-8")


def _file(neighbour: Path, precious: Path) -> None:  # noqa: ARG001 (same signature as the other neighbours)
    neighbour.write_text("years of work", encoding="utf-8")


def _link_to_file(neighbour: Path, precious: Path) -> None:
    precious.write_text("years of work", encoding="utf-8")
    neighbour.symlink_to(precious)


def _link_to_folder(neighbour: Path, precious: Path) -> None:
    _folder(precious, precious)
    neighbour.symlink_to(precious)


_NEIGHBOURS: dict[str, Callable[[Path, Path], None]] = {
    "a folder": _folder,
    "a file": _file,
    "a link to a file": _link_to_file,
    "a link to a folder": _link_to_folder,
}


# Each target function returns the paths that must be unchanged after a rejection, or None if the output follows a link.
def _device(out: Path, is_file: bool) -> list[Path]:  # noqa: ARG001 (same signature as the other targets)
    os.mknod(out, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    return [out]


def _pipe(out: Path, is_file: bool) -> list[Path]:  # noqa: ARG001 (same signature as the other targets)
    os.mkfifo(out)
    return [out]


def _socket(out: Path, is_file: bool) -> list[Path]:  # noqa: ARG001 (same signature as the other targets)
    here = Path.cwd()
    os.chdir(out.parent)  # socket paths must be short
    try:
        socket.socket(socket.AF_UNIX).bind(out.name)
    finally:
        os.chdir(here)
    return [out]


def _other_kind(out: Path, is_file: bool) -> list[Path]:
    (_folder if is_file else _file)(out, out)
    return [out]


def _protected(out: Path, is_file: bool) -> list[Path]:
    if is_file:
        out.write_text("years of work", encoding="utf-8")
        out.chmod(0o444)
    else:
        out.mkdir(mode=0o555)
    return [out]


def _link(out: Path, is_file: bool) -> None:
    target = out.with_name(f"target{out.suffix}")
    target.touch() if is_file else target.mkdir()
    out.symlink_to(target)


def _dangling_link(out: Path, is_file: bool) -> None:  # noqa: ARG001 (same signature as the other targets)
    out.symlink_to(out.with_name(f"target{out.suffix}"))


def _circular_link(out: Path, is_file: bool) -> list[Path]:  # noqa: ARG001 (same signature as the other targets)
    out.symlink_to(out)
    return [out]


_TARGETS: dict[str, Callable[[Path, bool], list[Path] | None]] = {
    "a device": _device,
    "a pipe": _pipe,
    "a socket": _socket,
    "a folder instead of a file or vice versa": _other_kind,
    "a write-protected path": _protected,
    "a link": _link,
    "a dangling link": _dangling_link,
    "a circular link": _circular_link,
}
