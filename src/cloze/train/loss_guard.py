"""Losses that are not numbers, or ten times what they were: not learned from, told, and after a few of them the end.

A batch of garbage costs its own step and nothing more: the weights are as if it had not been. If such steps come in a
row, the weights are the cause, and training stops; the newest checkpoint has the weights from before the first of them,
since none of them changed any. What the loss was when training began is never too much: a model that
knows its rows by heart has a tiny usual loss, and learns most from the one row that it still gets wrong.
"""

import math
from collections.abc import Mapping
from typing import Any

from cloze.errors import DataError

SPIKE = 10.0  # times the usual loss
SETTLING = 20  # steps until there is a usual loss
PATIENCE = 5  # bad steps in a row
_WEIGHT = 0.05  # of the newest loss in the running mean


class DivergedError(DataError):
    """A training whose losses were no losses any more, and which would end so each time."""


class Guard:
    """Watches the losses of one training."""

    def __init__(self) -> None:
        self._usual, self._first, self._seen, self._bad = 0.0, 0.0, 0, 0

    def objection(self, loss: float, norm: float) -> str | None:
        """Say what is wrong with a step, or None; the usual loss is that of the good ones."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self._seen >= SETTLING and loss > max(SPIKE * self._usual, self._first):
            return f"the loss is {loss:.3g}, more than {SPIKE:g} times the usual {self._usual:.3g}"
        return None

    def accept(self, loss: float) -> None:
        """Count a good step."""
        self._bad = 0
        self._first = max(self._first, loss) if self._seen < SETTLING else self._first
        self._usual += (loss - self._usual) * max(_WEIGHT, 1 / (self._seen + 1))
        self._seen += 1

    def refuse(self, step: int, objection: str) -> str:
        """Count a bad step and return what to tell; too many of them are an error."""
        self._bad += 1
        if self._bad >= PATIENCE:
            raise DivergedError(
                f"step {step + 1}: {objection}, for the {PATIENCE}th time in a row; the last checkpoint is from before "
                "the first of them: lower --rate and start over with --fresh, or look for broken rows in the data"
            )
        return f"step {step + 1}: {objection}; this batch was left out, the weights are as before"

    @property
    def calm(self) -> bool:
        """Whether the last step was a good one."""
        return self._bad == 0

    def figures(self) -> dict[str, Any]:
        """What a checkpoint remembers."""
        return {"usual": self._usual, "first": self._first, "seen": self._seen, "bad": self._bad}

    def restore(self, figures: Mapping[str, Any]) -> None:
        """Go on from such figures."""
        self._usual, self._seen = figures["usual"], figures["seen"]
        self._first, self._bad = figures.get("first", 0.0), figures.get("bad", 0)  # earlier versions have none
