"""What a distillation came to: size, speed and score of teacher and student, side by side."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.model import Bert
from cloze.predict import Model, evaluate_examples
from cloze.tasks.items import Examples
from cloze.tasks.registry import TaskData

# How many dev rows are read for measuring the speed, and how often by each of both in turn.
_ROWS, _ROUNDS = 256, 3
_WEIGHTS = "model.safetensors"


def compare(
    teacher: Model, student: Model, folder: Path, data: TaskData, scores: Mapping[str, float]
) -> dict[str, Any]:
    """The figures of both; ``folder`` is where the student was saved, ``scores`` are what it reached on dev."""
    taught = evaluate_examples(teacher, data.kind, data.dev, data.metrics).metrics
    speeds = measure_speeds(teacher, student, data)
    return {
        "metric": data.metrics[0],
        "kept": share_kept(scores[data.metrics[0]], taught[data.metrics[0]]),
        "teacher": _described(teacher.bert, None, speeds[0], taught),
        "student": _described(student.bert, folder, speeds[1], scores),
    }


def share_kept(score: float, taught: float) -> float | None:
    """The student's score as a share of its teacher's; None where that is nothing to have a share of."""
    return score / taught if taught > 0 else None


def measure_speeds(teacher: Model, student: Model, data: TaskData) -> tuple[float, float]:
    """Rows a second of both, in turn, so that whatever else the machine does is the same for both."""
    rows: Examples = data.dev.select(range(min(len(data.dev), _ROWS)))
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for number, model in enumerate((teacher, student)):
            start = time.perf_counter()
            evaluate_examples(model, data.kind, rows, data.metrics)
            best[number] = min(best[number], time.perf_counter() - start)
    return len(rows) / best[0], len(rows) / best[1]


def _described(bert: Bert, folder: Path | None, speed: float, scores: Mapping[str, float]) -> dict[str, Any]:
    # The teacher's own files may be of any form and hold more than a model: what it would take is what counts.
    weights = 4 * bert.parameter_count() if folder is None else (folder / _WEIGHTS).stat().st_size
    return {
        "layers": bert.config.layers,
        "hidden_size": bert.config.hidden_size,
        "parameters": bert.parameter_count(),
        "bytes": weights,
        "rows_per_second": round(speed, 1),
        "scores": dict(scores),
    }
