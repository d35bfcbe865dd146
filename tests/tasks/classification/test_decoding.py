from dataclasses import replace

import numpy as np
import pytest

from cloze.checkpoint import TaskLabels
from cloze.tasks.classification.decoding import (
    Floats,
    calibrate,
    calibration_error,
    predicted_classes,
    predicted_flags,
    probabilities,
)

TASK = TaskLabels("classify", ("no", "yes"))


def overconfident(count: int = 4000, labels: int = 2, factor: float = 3.0) -> tuple[Floats, np.ndarray]:
    """Return logits that are overconfident: divided by the factor, their softmax gives the true probabilities."""
    generator = np.random.default_rng(0)
    true = generator.normal(size=(count, labels)).astype(np.float32)
    shares = np.exp(true) / np.exp(true).sum(-1, keepdims=True)
    targets = np.array([generator.choice(labels, p=row / row.sum()) for row in shares.astype(float)])
    return factor * true, targets


@pytest.mark.parametrize("labels", [2, 5])
def test_temperature_undoes_overconfidence(labels: int) -> None:
    logits, targets = overconfident(labels=labels)
    task = TaskLabels("classify", tuple("abcde"[:labels]))
    found = calibrate(task, logits, targets, lambda _: 0.0)
    assert found.task.temperature == pytest.approx(3.0, rel=0.1)
    assert found.error_before > 0.1
    assert found.error_after < 0.03
    assert (found.task.threshold is not None) == (labels == 2)
    assert set(found.results()) >= {"temperature", "calibration_error", "calibration_error_before"}


def test_threshold_maximizes_the_score() -> None:
    logits, targets = overconfident()

    def f1(task: TaskLabels) -> float:
        classes = predicted_classes(task, logits)
        hits = int((classes & targets).sum())
        return 2 * hits / max(1, int(classes.sum() + targets.sum()))

    found = calibrate(TASK, logits, targets, f1)
    assert found.task.threshold is not None
    assert f1(found.task) > f1(TASK) + 0.005
    for other in np.linspace(0.01, 0.99, 50):
        assert f1(found.task) >= f1(replace(found.task, threshold=float(other))) - 1e-3


def test_labels_on_their_own() -> None:
    logits, _ = overconfident(labels=3)
    truth = probabilities(TaskLabels("multilabel", ("a", "b", "c"), temperature=3.0), logits)
    targets = (np.random.default_rng(1).random(truth.shape) < truth).astype(np.int64)
    task = TaskLabels("multilabel", ("a", "b", "c"))
    found = calibrate(task, logits, targets, lambda one: float((predicted_flags(one, logits) == targets).mean()))
    assert found.task.temperature == pytest.approx(3.0, rel=0.1)
    assert found.task.threshold == pytest.approx(0.5, abs=0.1)


def test_calibration_error_by_hand() -> None:
    shares = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.45, 0.55]], np.float32)
    targets = np.array([0, 1, 1, 0])
    # One bin at 0.9 (half right), one at 0.6, one at 0.55: |0.9 - 0.5| / 2 + |0.6 - 1| / 4 + |0.55 - 0| / 4.
    assert calibration_error(shares, targets) == pytest.approx(0.4 / 2 + 0.4 / 4 + 0.55 / 4, abs=1e-6)
