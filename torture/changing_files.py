"""T31: model files are truncated, overwritten, replaced and deleted while a service serves the model.

The service loads the files at start-up: every response must equal the one from before the damage, and the service must
not crash. A memory-mapped file would end the process with SIGBUS after truncation and change the responses after an
overwrite.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from tests.model.made import model_folder, saved

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.services import Process, process

_MOST_FAILURES = 10
QUESTIONS: dict[str, dict[str, Any]] = {
    "/embed": {"texts": ["the cat sat", "a dog ran on the mat"]},
    "/fill": {"texts": "the [MASK] sat"},
}


@dataclass(frozen=True)
class ChangeSettings:
    """The number of rounds of each kind of damage to each file, and the precisions."""

    rounds: int = 3
    precisions: tuple[str, ...] = ("fp32", "int8", "auto")  # auto uses cached int8 files, which are damaged as well


def _truncate(path: Path) -> None:
    os.truncate(path, 0)


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def _replace(path: Path) -> None:
    other = path.with_name(f"{path.name}.other")
    other.write_bytes(bytes(reversed(path.read_bytes())))
    other.replace(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": _truncate,
    "halved": _halve,
    "overwritten": _overwrite,
    "replaced": _replace,
    "deleted": Path.unlink,
}


def run(settings: ChangeSettings, progress: Progress) -> Outcome:
    """Apply every kind of damage to every file, and compare the responses after each."""
    failures: list[str] = []
    damages = 0
    for precision in settings.precisions:
        with TemporaryDirectory() as scratch:
            folder = saved(model_folder(["mlm", "nsp"]), Path(scratch) / "model")
            cache = {"XDG_CACHE_HOME": str(Path(scratch) / "cache")}
            with process([str(folder)], "--threads", "1", "--precision", precision, environment=cache) as service:
                done, found = damage_everything(service, Path(scratch), settings.rounds)
        damages, failures = damages + done, failures + [f"{precision}: {failure}" for failure in found]
        progress.say(f"T31: {precision}: {done} damages")
    figures: dict[str, str | int | float] = {"damages": damages, "wrong": len(failures)}
    return Outcome(not failures and damages > 0, figures, failures[:_MOST_FAILURES])


def damage_everything(service: Process, folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Return how often files were damaged, and the failures; each file is restored before the next damage."""
    files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    expected = {path: ask(service, path) for path in QUESTIONS}
    done, failures = 0, list[str]()
    for _ in range(rounds):
        for file, content in files.items():
            for name, damage in DAMAGES.items():
                damage(file)
                done += 1
                failures += [f"{file.name} {name}: {found}" for found in differences(service, expected)]
                file.write_bytes(content)
                if service.process.poll() is not None:
                    return done, [*failures, f"{file.name} {name}: the service ended, {service.process.returncode}"]
    return done, failures


def ask(service: Process, path: str) -> Any:
    """Return the response of a route."""
    answer = httpx.post(f"{service.address}{path}", json=QUESTIONS[path], timeout=60)
    answer.raise_for_status()
    return answer.json()


def differences(service: Process, expected: dict[str, Any]) -> list[str]:
    """Return the differences from the earlier responses; a rejected request is not a difference."""
    found = []
    for path, before in expected.items():
        try:
            now = ask(service, path)
        except httpx.HTTPStatusError:
            continue
        except httpx.TransportError as error:
            found.append(f"{path}: {type(error).__name__}")
            continue
        if not same(now, before):
            found.append(f"{path}: different response")
    return found


def same(one: Any, other: Any) -> bool:
    """Compare responses: strings exactly, numbers within float32 rounding; ignore times and identifiers."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = one.keys() - {"seconds", "id", "created"}
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, atol=1e-5))
    return bool(one == other)
