"""What the bar and ``metrics.jsonl`` say: means since the last reading, tokens a second, the share of the peak."""

import time
from collections.abc import Mapping
from typing import Any


class Meter:
    """Sums until somebody reads them."""

    def __init__(self, flops_a_token: float = 0.0, peak: float = 0.0) -> None:
        """``peak`` is what the machine's matrix product reaches, in operations a second; 0 where nobody measured."""
        self._share_of_one = flops_a_token / peak if peak else 0.0
        self._seen = 0
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0
        self._tokens = 0
        self._start = time.monotonic()

    def add(self, figures: Mapping[str, float], tokens: int) -> None:
        """Count one step."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1
        self._tokens += tokens
        self._seen += tokens

    def figures(self) -> dict[str, Any]:
        """What a checkpoint remembers, so that the next mean is that of an uninterrupted run."""
        return {"sums": self._sums, "count": self._count, "seen": self._seen}

    def restore(self, figures: Mapping[str, Any]) -> None:
        """Go on from such figures; the clock starts anew."""
        self._sums, self._count, self._seen = dict(figures["sums"]), figures["count"], figures["seen"]

    def read(self) -> dict[str, float]:
        """The figures since the last reading, and begin anew."""
        figures = self.look()
        self._clear()
        return figures

    def look(self) -> dict[str, float]:
        """The figures since the last reading so far; a stretch in which every step was left out has no means."""
        figures = {name: total / self._count for name, total in self._sums.items()}
        speed = self._tokens / max(1e-9, time.monotonic() - self._start)
        figures["tokens_per_second"] = speed
        if self._share_of_one:
            figures["share_of_peak"] = speed * self._share_of_one
        figures["tokens_seen"] = self._seen
        return figures
