"""The mean teacher: an exponential moving average of the model's own weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cloze.errors import ConfigError
from cloze.options import IGNORED
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.registry import head_of
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import MeanTeacherObjective, TaskObjective, logits_distance, with_mean_teacher
from cloze.train.finetuning.settings import FinetuneSettings
from tests.train.distillation.test_objective import KINDS, make_batch, make_teacher
from tests.train.finetuning.test_finetune import FAST, LEARNING, make_rows, write
from tests.train.made import fingerprint, interrupted_at
from tests.train.pretraining.test_pretrain import weights


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source("classify", write(tmp_path / "train.csv", make_rows(40)))


def test_teacher_is_the_average_of_the_weights_so_far() -> None:
    objective = MeanTeacherObjective(TaskObjective(make_teacher("classify"), "sequence"), 1.0, 0.5).train()
    weight = objective.student.model.encoder.layers[0].expand.weight
    average = objective.teacher.model.encoder.layers[0].expand.weight
    assert isinstance(weight, torch.Tensor)
    assert isinstance(average, torch.Tensor)
    expected, batch = weight.detach().clone(), make_batch("classify")
    for number in range(15):
        with torch.no_grad():
            weight += 1.0
        objective.train()  # as the loop does at every step
        for _ in range(2):  # gradient-accumulation parts
            objective(batch, batch.counts)
        decay = min(0.5, (number + 1) / (number + 10))
        expected = decay * expected + (1 - decay) * weight.detach()
        assert torch.allclose(average, expected, atol=1e-4)
    objective.eval()
    kept = fingerprint(objective.teacher)
    with torch.no_grad():
        weight += 1.0
    objective(batch, batch.counts)
    assert fingerprint(objective.teacher) == kept, "the average is updated only in training mode"


@pytest.mark.parametrize("kind", KINDS)
def test_both_losses_for_every_kind(kind: str) -> None:
    model, batch = make_teacher(kind), make_batch(kind)
    plain = TaskObjective(model, head_of(kind))
    objective = MeanTeacherObjective(plain, 3.0, 0.9).train()
    outcome = objective(batch, batch.counts)
    assert outcome.metrics["teacher_loss"].item() == pytest.approx(0.0, abs=1e-12)  # equal before the first step
    assert outcome.loss.item() == pytest.approx(plain(batch, batch.counts).loss.item(), rel=1e-5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05)
    outcome = objective(batch, batch.counts)
    figures = {name: value.item() for name, value in outcome.metrics.items()}
    assert figures["teacher_loss"] > 0
    assert outcome.loss.item() == pytest.approx(figures["labels_loss"] + 3 * figures["teacher_loss"], rel=1e-5)
    outcome.loss.backward()
    assert all(one.grad is None for one in objective.teacher.parameters())
    assert all(bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None)


def test_distance_by_hand() -> None:
    student_logits, teacher_logits = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[0.0, 4.0], [0.0, 5.0]])
    assert logits_distance(student_logits, teacher_logits, torch.tensor([0, 1]), 2).item() == pytest.approx(
        (1 + 4) / 2 / 2
    )
    assert logits_distance(student_logits, teacher_logits, torch.tensor([IGNORED, 1]), 1).item() == 0.0
    assert logits_distance(
        student_logits[:, :1], teacher_logits[:, :1], torch.tensor([0.5, 1.0]), 2
    ).item() == pytest.approx(0.5)
    flags = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert logits_distance(student_logits, teacher_logits, flags, 4).item() == pytest.approx(5 / 4)
    lacking = torch.tensor([[1.0, float("-inf")]])
    # only one option exists
    assert logits_distance(lacking, lacking + 2, torch.tensor([0]), 1).item() == pytest.approx(4)


def test_zero_weight_changes_nothing(base: Path, source: Source, tmp_path: Path) -> None:
    objective = TaskObjective(make_teacher("classify"), "sequence")
    assert with_mean_teacher(objective, 0.0, 0.9) is objective
    plain = run_finetuning(source, base, tmp_path / "plain", settings=FAST)
    teacher_logits = run_finetuning(source, base, tmp_path / "taught", settings=replace(FAST, mean_teacher=1.0))
    assert weights(plain) != weights(teacher_logits)
    first = json.loads((teacher_logits / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["teacher_loss"] > 0


@pytest.mark.parametrize("way", [{}, {"adapter": "lora", "adapter_size": 2}], ids=["whole", "lora"])
def test_resumed_is_uninterrupted_to_the_bit(base: Path, source: Source, tmp_path: Path, way: dict[str, Any]) -> None:
    settings = replace(FAST, epochs=2, mean_teacher=5.0, teacher_decay=0.9, **way)
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings)
    with pytest.raises(Interrupted, match="stopped and saved at step 5"), interrupted_at(4):
        run_finetuning(source, base, tmp_path / "run", settings=settings)
    names = set[str]()
    for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    assert any("teacher.model.encoder" in name for name in names)
    run_finetuning(source, base, tmp_path / "run", settings=settings)
    (one,), (other,) = ((run / "model").glob("*.safetensors") for run in (tmp_path / "run", whole))
    assert one.read_bytes() == other.read_bytes()


def test_separable_labels_are_learned_and_the_student_is_saved(base: Path, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "a.csv", make_rows(160)), write(tmp_path / "b.csv", make_rows(40, 1))
    settings = replace(LEARNING, mean_teacher=1.0)
    run = run_finetuning(Source("classify", train, dev), base, tmp_path / "run", settings=settings)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results["accuracy"] > 0.9
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert metrics[-1]["dev_accuracy"] == results["accuracy"]
    assert not any("teacher" in name for name in load(run).bert.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_teacher": -1.0}, "mean_teacher is -1.0; expected a weight of at least 0"),
        ({"mean_teacher": float("nan")}, "mean_teacher is nan; expected a number"),
        ({"teacher_decay": 1.0}, "teacher_decay is 1.0; expected a fraction of at least 0 and below 1"),
        ({"mean_teacher": 1.0, "frozen": "last"}, "mean_teacher and frozen exclude each other"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuneSettings(**changes)
