"""What an evaluation found, and the files that tell of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.files import replace_json, replace_json_lines, replaced_file

# A score of any metric that counts as none.
_NOTHING = 0.05
# Hardly any number is exactly right: of rows that ask for one, this share counts as wrong, those that are furthest off.
_FURTHEST = 0.1


@dataclass(frozen=True)
class Confusion:
    """How often each label (row) was called what (column)."""

    labels: tuple[str, ...]
    counts: list[list[int]]


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a set of rows."""

    metrics: dict[str, float]  # the first is the one that counts
    predictions: list[str]  # as a file would say them
    places: Sequence[str]
    targets: Sequence[str] | None = None  # None where rows bear none
    inputs: Sequence[Mapping[str, str]] = ()  # what was asked, for reading what went wrong
    confusion: Confusion | None = None
    files: Mapping[str, Any] = field(default_factory=dict)  # official ones: name -> what the JSON holds, or the text
    errors: Sequence[float] | None = None  # how far off each answer is, where answers are numbers
    skipped: int = 0  # rows that could not be used

    def results(self) -> dict[str, Any]:
        """What ``eval_results.json`` holds."""
        found: dict[str, Any] = {**self.metrics, "rows": len(self.predictions)}
        found |= {"skipped": self.skipped} if self.skipped else {}
        return {**found, "degenerate": self.degenerate} if self.degenerate else found

    @property
    def degenerate(self) -> str | None:
        """What is wrong with a model that has learned nothing, as some seeds of fine-tuning do; None if it has."""
        if len(self.predictions) > 1 and len(set(self.predictions)) == 1:
            return f"says {self.predictions[0]!r} of every row"
        if self.confusion is not None:
            rows = sum(map(sum, self.confusion.counts))
            commonest = max(map(sum, self.confusion.counts))
            right = sum(self.confusion.counts[label][label] for label in range(len(self.confusion.labels)))
            if right <= commonest < rows:
                return "no better than always saying the commonest label"
        name, value = next(iter(self.metrics.items()))
        return f"{name} is {value:.3f}" if value < _NOTHING else None

    def wrong(self) -> list[dict[str, str]]:
        """The rows that were answered otherwise than expected; of numbers, the tenth that is furthest off, by that."""
        if self.targets is None:
            return []
        if self.errors is None:
            chosen = [row for row, target in enumerate(self.targets) if target != self.predictions[row]]
        else:
            furthest = sorted(range(len(self.errors)), key=self.errors.__getitem__, reverse=True)
            chosen = furthest[: math.ceil(_FURTHEST * len(furthest))]
        return [
            {
                "row": self.places[row],
                **self.inputs[row],
                "expected": self.targets[row],
                "predicted": self.predictions[row],
            }
            for row in chosen
        ]


def write_report(evaluation: Evaluation, folder: Path) -> None:
    """Write the scores, the confusion matrix, the wrong rows, and whatever the task's own scripts would write."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "eval_results.json", evaluation.results())
    if evaluation.confusion is not None:
        labels, counts = evaluation.confusion.labels, evaluation.confusion.counts
        replace_json(folder / "confusion.json", {"labels": list(labels), "rows_are": "expected", "counts": counts})
    if evaluation.targets is not None:
        replace_json_lines(folder / "wrong_rows.jsonl", evaluation.wrong())
    for name, contents in evaluation.files.items():
        if isinstance(contents, str):
            with replaced_file(folder / name) as temporary:
                temporary.write_text(contents, encoding="utf-8")
        else:
            replace_json(folder / name, contents)
