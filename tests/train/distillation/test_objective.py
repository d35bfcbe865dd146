"""The distillation losses of every kind of task, compared with explicit formulas."""

import math
import random
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from cloze.model import Backbone, Bert, BertConfig
from cloze.model.adapters import Attachment, attach
from cloze.model.batch import Batch
from cloze.model.losses import task_logits
from cloze.options import IGNORED, FeatureHead, Features
from cloze.tasks.registry import head_of
from cloze.train.distillation.objective import (
    DistillBatch,
    DistillObjective,
    count_step_activations,
    logits_loss,
    match_layers,
)
from cloze.train.distillation.settings import DistillSettings
from cloze.train.distillation.students import layers_to_take, with_layers
from cloze.train.finetuning.objective import TaskBatch
from tests.model.made import peak_memory

CONFIG = BertConfig(
    vocab_size=40,
    hidden_size=16,
    layers=4,
    heads=2,
    feedforward_size=32,
    positions=16,
    dropout=0.0,
    attention_dropout=0.0,
    initial_deviation=0.2,
)
KINDS: list[str] = ["classify", "multilabel", "regress", "tag", "answer", "choose"]
LABELS: dict[str, int] = {"classify": 3, "multilabel": 3, "regress": 1, "tag": 3, "answer": 2, "choose": 1}
NAMES = ("labels", "logits", "states", "attention")
ONLY = dict.fromkeys(("labels_weight", "logits_weight", "states_weight", "attention_weight"), 0.0)


def make_teacher(kind: str, **changes: Any) -> Bert:
    config = replace(CONFIG, **changes)
    return Bert.fresh(config, (head_of(kind),), labels=LABELS[kind], seed=5).eval()


def make_reader(kind: str, reads: Features, by: FeatureHead) -> Bert:
    """Return a teacher with confident outputs and a head on frozen states with unequal layer weights."""
    bert = Bert.fresh(CONFIG, seed=5)
    attach(bert, Attachment("features", head_of(kind), LABELS[kind], 8, reads=reads, feature_head=by), seed=6)
    assert bert.reader is not None
    if bert.reader.weights is not None:
        torch.nn.init.normal_(bert.reader.weights, std=2.0, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        for parameter in bert.heads.parameters():
            parameter.mul_(20.0)
    return bert.eval()


def make_batch(kind: str, rows: int = 6, seed: int = 0) -> TaskBatch:
    """Return rows of different lengths; for choices, items with two options and with more."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (rows,), generator=draw)
    lengths[0] = 8
    mask = torch.arange(8) < lengths[:, None]
    ids = torch.randint(1, 40, (rows, 8), generator=draw) * mask
    inputs = Batch(ids, torch.zeros_like(ids), mask)
    sizes = (1,) * rows
    if kind == "classify":
        targets = torch.randint(0, 3, (rows,), generator=draw)
    elif kind == "multilabel":
        targets = torch.randint(0, 2, (rows, 3), generator=draw).float()
    elif kind == "regress":
        targets = torch.rand(rows, generator=draw)
    elif kind == "tag":
        targets = torch.randint(0, 3, (rows, 8), generator=draw).masked_fill(~mask, IGNORED)
        targets[:, 0] = IGNORED
    elif kind == "answer":
        targets = torch.randint(0, 3, (rows, 2), generator=draw)
    else:
        sizes, targets = (2, 4), torch.tensor([1, 3])
        assert rows == 6
    return TaskBatch(inputs, targets, sizes)


def losses(objective: DistillObjective, batch: TaskBatch) -> dict[str, float]:
    made = DistillBatch(batch)
    outcome = objective(made, made.counts)
    found = {name: value.item() for name, value in outcome.metrics.items()}
    return {"loss": outcome.loss.item(), **found}


def logits_of(model: Backbone, kind: str, batch: TaskBatch) -> Tensor:
    last = model(batch.inputs.ids, batch.inputs.segments, batch.inputs.mask).last
    return task_logits(model, head_of(kind), last, batch.sizes, batch.inputs.real).detach()


def distance(own: list[float], wanted: list[float], temperature: float) -> float:
    """Return the soft cross-entropy times the squared temperature, in plain Python."""

    def shares(values: list[float]) -> list[float]:
        powers = [math.exp(value / temperature) for value in values]
        return [power / sum(powers) for power in powers]

    return -(temperature**2) * sum(b * math.log(a) for a, b in zip(shares(own), shares(wanted), strict=True))


def compared(kind: str, own: Tensor, wanted: Tensor, batch: TaskBatch, temperature: float) -> float:
    """Return the distance between two sets of logits, by the formula of each kind."""
    if kind == "regress":
        return float(((own - wanted) ** 2).mean())
    if kind == "multilabel":
        pairs = zip(own.flatten().tolist(), wanted.flatten().tolist(), strict=True)
        return sum(distance([a, 0.0], [b, 0.0], temperature) for a, b in pairs) / own.numel()
    is_target = batch.targets.ne(IGNORED)
    rows = [
        distance([a for a in one if a > -1e3], [b for b in other if b > -1e3], temperature)
        for one, other in zip(own[is_target].tolist(), wanted[is_target].tolist(), strict=True)
    ]
    return sum(rows) / len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_compared_as_the_formula_says(kind: str) -> None:
    teacher, batch = make_teacher(kind), make_batch(kind)
    student = with_layers(teacher, [1, 3], head_of(kind))
    objective = DistillObjective(student, teacher, head_of(kind), DistillSettings(temperature=3.0))
    expected = compared(kind, logits_of(student, kind, batch), logits_of(teacher, kind, batch), batch, 3.0)
    assert losses(objective, batch)["logits_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("by", get_args(FeatureHead))
@pytest.mark.parametrize("reads", get_args(Features))
@pytest.mark.parametrize("kind", KINDS)
def test_reader_of_frozen_states_teaches_what_it_says_itself(kind: str, reads: Features, by: FeatureHead) -> None:
    teacher, batch = make_reader(kind, reads, by), make_batch(kind)
    # The student is confident as well: if it scored all options equally, the teacher's logits would not matter.
    config = replace(CONFIG, layers=2, initial_deviation=0.9)
    student = Bert.fresh(config, (head_of(kind),), labels=LABELS[kind], seed=8)
    expected = compared(kind, logits_of(student, kind, batch), logits_of(teacher, kind, batch), batch, 2.0)
    passes = list[int]()
    teacher.encoder.register_forward_hook(lambda *_: passes.append(1))
    found = losses(DistillObjective(student, teacher, head_of(kind), DistillSettings()), batch)
    assert found["logits_loss"] == pytest.approx(expected, rel=1e-4)
    assert len(passes) == 1, "logits, states and attention come from one forward pass"
    alone = DistillSettings(**(ONLY | {"logits_weight": 1.0}))  # type: ignore[arg-type]
    answers = losses(DistillObjective(student, teacher, head_of(kind), alone), batch)
    assert answers["logits_loss"] == pytest.approx(expected, rel=1e-4)
    # States and attention are distilled from the encoder below the head, whatever layers the head reads.
    plain = make_teacher(kind)
    plain.encoder.load_state_dict(teacher.encoder.state_dict())
    below = losses(DistillObjective(student, plain, head_of(kind), DistillSettings()), batch)
    for name in ("states_loss", "attention_loss"):
        assert found[name] == pytest.approx(below[name], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_and_nothing_is_infinite(kind: str) -> None:
    teacher, batch = make_teacher(kind), make_batch(kind)
    objective = DistillObjective(with_layers(teacher, [0, 1], head_of(kind)), teacher, head_of(kind), DistillSettings())
    whole = DistillBatch(batch)
    cut = [(0, 2, 0, 1), (2, 6, 1, 2)] if kind == "choose" else [(0, 2, 0, 2), (2, 6, 2, 6)]
    summed: dict[str, float] = {}
    for first, last, start, end in cut:
        inputs = Batch(batch.inputs.ids[first:last], batch.inputs.segments[first:last], batch.inputs.real[first:last])
        part = DistillBatch(TaskBatch(inputs, batch.targets[start:end], batch.sizes[start:end]))
        outcome = objective(part, whole.counts)
        for name, value in {"loss": outcome.loss, **outcome.metrics}.items():
            summed[name] = summed.get(name, 0.0) + value.item()
    found = losses(objective, batch)
    assert summed == pytest.approx(found, rel=1e-4)
    assert found.keys() == {"loss", *(f"{name}_loss" for name in NAMES)}
    assert all(math.isfinite(value) for value in found.values())
    weights = DistillSettings()
    expected = sum(getattr(weights, f"{name}_weight") * found[f"{name}_loss"] for name in NAMES)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_student_that_is_its_teacher_has_nothing_to_learn_from_it(kind: str) -> None:
    teacher = make_teacher(kind)
    student = with_layers(teacher, range(4), head_of(kind))
    settings = DistillSettings(labels_weight=0.0)
    objective = DistillObjective(student, teacher, head_of(kind), settings)
    batch = DistillBatch(make_batch(kind))
    outcome = objective(batch, batch.counts)
    outcome.loss.backward()
    assert outcome.metrics["states_loss"].item() == 0.0
    assert outcome.metrics["attention_loss"].item() == pytest.approx(0.0, abs=1e-6)
    largest = max(float(one.grad.abs().max()) for one in student.parameters() if one.grad is not None)
    assert largest < 1e-4
    assert all(one.grad is None for one in teacher.parameters())
    other = DistillObjective(with_layers(teacher, [0, 1], head_of(kind)), teacher, head_of(kind), settings)
    outcome = other(batch, batch.counts)
    outcome.loss.backward()
    assert max(float(one.grad.abs().max()) for one in other.parameters() if one.grad is not None) > 1e-2


def test_states_and_attention_are_compared_token_by_token() -> None:
    teacher, batch = make_teacher("classify"), make_batch("classify")
    student = with_layers(teacher, [0, 1], "sequence")
    found = losses(DistillObjective(student, teacher, "sequence", DistillSettings()), batch)
    inputs = batch.inputs
    assert inputs.mask is not None
    states, attention, tokens = 0.0, 0.0, 0
    for row in range(6):
        length = int(inputs.mask[row].sum())
        tokens += length
        # Compute the row alone without padding: neighbours and padding must not matter.
        ids, segments = inputs.ids[row : row + 1, :length], inputs.segments[row : row + 1, :length]
        own = student.encoder(ids, segments, keep_states=True, keep_attentions=True)
        shown = teacher.encoder(ids, segments, keep_states=True, keep_attentions=True)
        for layer, place in ((1, 2), (2, 4)):
            states += ((own.states[layer] - shown.states[place]) ** 2).mean(-1).sum().item() / 2
            one, other = own.attentions[layer - 1][0], shown.attentions[place - 1][0]
            attention += (other * (other / one).log()).sum(-1).mean(0).sum().item() / 2
    assert found["states_loss"] == pytest.approx(states / tokens, rel=1e-4)
    assert found["attention_loss"] == pytest.approx(attention / tokens, rel=1e-4)


def test_layers_are_matched_evenly_up_to_the_last() -> None:
    assert match_layers(3, 6) == [2, 4, 6]
    assert match_layers(3, 12) == [4, 8, 12]
    assert match_layers(4, 6) == [2, 3, 5, 6]
    assert match_layers(4, 2) == [1, 1, 2, 2]
    assert layers_to_take(6, 3, "alternate") == [1, 3, 5]
    assert layers_to_take(12, 4, "alternate") == [2, 5, 8, 11]
    assert layers_to_take(6, 3, "first") == [0, 1, 2]


def test_narrower_student_gets_a_map_and_no_attention() -> None:
    teacher, batch = make_teacher("classify"), make_batch("classify")
    narrow = replace(CONFIG, hidden_size=8, heads=1, layers=2)
    student = Bert.fresh(narrow, ["sequence"], labels=3, seed=1)
    objective = DistillObjective(student, teacher, "sequence", DistillSettings())
    assert objective.to_teacher is not None
    assert tuple(objective.to_teacher.weight.shape) == (16, 8)
    again = DistillObjective(student, teacher, "sequence", DistillSettings())
    assert again.to_teacher is not None
    assert torch.equal(objective.to_teacher.weight, again.to_teacher.weight), "the initialization depends on the seed"
    assert losses(objective, batch).keys() == {"loss", "labels_loss", "logits_loss", "states_loss"}
    made = DistillBatch(batch)
    objective(made, made.counts).loss.backward()
    assert objective.to_teacher.weight.grad is not None


def test_teacher_is_no_part_of_a_checkpoint() -> None:
    teacher = make_teacher("classify", layers=4)
    objective = DistillObjective(with_layers(teacher, [0], "sequence"), teacher, "sequence", DistillSettings())
    assert {name.partition(".")[0] for name in objective.state_dict()} == {"model"}
    objective.train()
    assert not teacher.training, "without dropout"
    assert objective.model.training


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress"])
def test_rows_without_labels_teach_by_the_teachers_answers_alone(kind: str) -> None:
    teacher, batch = make_teacher(kind), make_batch(kind)
    objective = DistillObjective(with_layers(teacher, [0, 1], head_of(kind)), teacher, head_of(kind), DistillSettings())
    targets = batch.targets.clone()
    targets[2:] = math.nan if targets.is_floating_point() else IGNORED
    found = losses(objective, replace(batch, targets=targets))
    labelled = Batch(batch.inputs.ids[:2], batch.inputs.segments[:2], batch.inputs.real[:2])
    alone = losses(objective, TaskBatch(labelled, batch.targets[:2], (1, 1)))
    everything = losses(objective, batch)
    for name in ("labels_loss", "states_loss", "attention_loss"):
        assert found[name] == pytest.approx(alone[name], rel=1e-4)
        assert found[name] != pytest.approx(everything[name], rel=1e-3)
    assert found["logits_loss"] == pytest.approx(everything["logits_loss"], rel=1e-6)
    targets[:] = math.nan if targets.is_floating_point() else IGNORED
    none = losses(objective, replace(batch, targets=targets))
    assert [none[f"{name}_loss"] for name in ("labels", "states", "attention")] == [0.0, 0.0, 0.0]
    assert none["logits_loss"] == pytest.approx(everything["logits_loss"], rel=1e-6)


def test_weights_of_nothing_ask_nothing_of_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, batch = make_teacher("classify"), make_batch("classify")
    student = with_layers(teacher, [0, 1], "sequence")
    settings = DistillSettings(**(ONLY | {"labels_weight": 1.0}))  # type: ignore[arg-type]
    objective = DistillObjective(student, teacher, "sequence", settings)
    monkeypatch.setattr(teacher.encoder, "forward", lambda *_, **__: pytest.fail("it was asked"))
    assert losses(objective, batch).keys() == {"loss", "labels_loss"}


def test_temperature_of_a_large_number_compares_the_logits_themselves() -> None:
    """At a high temperature, the gradient equals the gradient of the squared error of centred logits.

    See Hinton et al. (2015), section 2.1.
    """
    draw = random.Random(0)
    own = torch.tensor([[draw.gauss(0, 1) for _ in range(4)] for _ in range(3)], requires_grad=True)
    wanted = torch.tensor([[draw.gauss(0, 1) for _ in range(4)] for _ in range(3)])
    batch = DistillBatch(TaskBatch(Batch(torch.zeros(3, 1), torch.zeros(3, 1), None), torch.zeros(3).long(), (1, 1, 1)))
    (slope,) = torch.autograd.grad(logits_loss(own, wanted, batch, 3, 1000.0), own)
    difference = (own - own.mean(-1, keepdim=True)) - (wanted - wanted.mean(-1, keepdim=True))
    assert torch.allclose(slope, difference.detach() / 4 / 3, atol=1e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
@pytest.mark.parametrize("widths", [(64, 64), (32, 128)])
def test_memory_of_a_step_covers_the_teacher(
    widths: tuple[int, int], weights: tuple[float, float], checkpointing: bool
) -> None:
    """The estimate is within a fifth of the peak measured by the profiler, including the teacher."""
    small, large = (
        replace(CONFIG, hidden_size=width, layers=layers, heads=width // 16, feedforward_size=4 * width, positions=64)
        for width, layers in zip(widths, (6, 12), strict=True)
    )
    settings = DistillSettings(states_weight=weights[0], attention_weight=weights[1], checkpointing=checkpointing)
    student, teacher = (Bert.fresh(shape, [head_of("classify")], labels=3).train() for shape in (small, large))
    student.encoder.checkpointing = checkpointing
    objective = DistillObjective(student, teacher, "sequence", settings)
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(1, 40, (8, 64), generator=torch.Generator().manual_seed(1))
    inputs = Batch(ids, torch.zeros_like(ids), None)
    batch = DistillBatch(TaskBatch(inputs, torch.zeros(8, dtype=torch.long), (1,) * 8))

    def step() -> None:
        objective(batch, batch.counts).loss.backward()

    expected = count_step_activations(small, large, settings, 8, 64)
    assert 0.9 < expected / peak_memory(step) < 1.25
