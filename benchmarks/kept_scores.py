"""Scores that took long to measure, in a file beside the script that measures them.

Each is written as soon as it is there, so that the same command goes on with what is missing, on another day as well.
"""

import json
from collections.abc import Callable
from pathlib import Path

from cloze.files import replace_json


class KeptScores:
    """Numbers by what was measured."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def move(self, path: Path) -> None:
        """Keep scores elsewhere: those beside the scripts are of the published data."""
        self._path = path

    def get(self, key: str, measure: Callable[[], float]) -> float:
        """The number that is kept, or a new one."""
        if key not in self._read():
            value = measure()
            replace_json(self._path, dict(sorted((self._read() | {key: value}).items())))  # others may write meanwhile
        return self._read()[key]

    def _read(self) -> dict[str, float]:
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else {}
