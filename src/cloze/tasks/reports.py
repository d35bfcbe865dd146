"""The result of an evaluation, and the files that report it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.files import replace_json, replace_json_lines, replaced_file

if TYPE_CHECKING:
    from cloze.tasks.intervals import RowScores

# A score of any metric below which a model has learned nothing.
_NOTHING = 0.05
# Hardly any number is exactly right: for regression, this share of the rows counts as wrong, those furthest off.
_FURTHEST = 0.1


@dataclass(frozen=True)
class Confusion:
    """Confusion matrix: how often each true label (row) was predicted as which (column)."""

    labels: tuple[str, ...]
    counts: list[list[int]]


@dataclass(frozen=True)
class Evaluation:
    """Scores and predictions of a model on a set of rows."""

    metrics: dict[str, float]  # the first one selects models
    predictions: list[str]  # as a file spells them
    places: Sequence[str]
    targets: Sequence[str] | None = None  # None where rows have no labels
    inputs: Sequence[Mapping[str, str]] = ()  # for reading what went wrong
    confusion: Confusion | None = None
    files: Mapping[str, Any] = field(default_factory=dict)  # of official scripts: name -> JSON value or text
    errors: Sequence[float] | None = None  # absolute error of each row, where predictions are numbers
    skipped: int = 0  # rows that could not be used
    unlabelled: int = 0  # rows of a published file that are marked as having no label
    rows: "RowScores | None" = None  # what the metrics need of each row, for intervals and paired comparisons

    @cached_property
    def intervals(self) -> dict[str, list[float]]:
        """Lower and upper end of the 95 % interval of each metric, by a bootstrap over rows; empty without ``rows``."""
        from cloze.tasks.intervals import bootstrap_intervals  # imports NumPy

        return {} if self.rows is None else bootstrap_intervals(self.rows)

    @cached_property
    def by_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and support of each label, type of entity or tag; empty where there are none."""
        return {} if self.rows is None else self.rows.by_label()

    def results(self) -> dict[str, Any]:
        """Return what ``eval_results.json`` holds."""
        results: dict[str, Any] = {**self.metrics, "rows": len(self.predictions)}
        results |= {"skipped": self.skipped} if self.skipped else {}
        results |= {"unlabelled": self.unlabelled} if self.unlabelled else {}
        return {**results, "degenerate": self.degenerate} if self.degenerate else results

    @property
    def degenerate(self) -> str | None:
        """Why the model counts as degenerate, as some fine-tuning seeds end; None if it has learned something."""
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
        """Return the rows with wrong predictions; for numbers, the tenth with the largest errors, largest first."""
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
    """Write scores, confusion matrix, wrong rows, and the files that the task's official scripts write."""
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
