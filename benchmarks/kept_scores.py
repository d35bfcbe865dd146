"""A cache of scores, stored in a file next to the benchmark that measures them.

Each score is written as soon as it is measured, so that re-running the same command measures only what is missing.
"""

import json
from collections.abc import Callable
from pathlib import Path

from cloze.files import replace_json


class ScoreCache:
    """Scores by key, stored in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def move(self, path: Path) -> None:
        """Store scores in another file; the files next to the scripts hold results on the published data."""
        self._path = path

    def get(self, key: str, measure: Callable[[], float]) -> float:
        """Return the stored score, or measure and store it."""
        if key not in self._read():
            value = measure()
            # other processes may write in the meantime
            replace_json(self._path, dict(sorted((self._read() | {key: value}).items())))
        return self._read()[key]

    def _read(self) -> dict[str, float]:
        return json.loads(self._path.read_text(encoding="utf-8")) if self._path.is_file() else {}
