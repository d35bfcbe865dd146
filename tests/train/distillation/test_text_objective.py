"""Losses of distillation on raw text against independent implementations, one text and one head at a time."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cloze.errors import ConfigError
from cloze.model import Bert, BertConfig
from cloze.model.batch import Batch
from cloze.predict.embeddings.pooling import POOL
from cloze.train.distillation.raw_text import TextBatch
from cloze.train.distillation.settings import TextDistillSettings, TextObjective
from cloze.train.distillation.text_objective import (
    HiddenObjective,
    RelationObjective,
    TokenObjective,
    VectorObjective,
    count_text_activations,
    relation_heads,
    relation_layer,
)
from tests.model.made import peak_memory, random_bert

TEACHER = BertConfig(
    vocab_size=40,
    hidden_size=24,
    layers=4,
    heads=2,
    feedforward_size=48,
    positions=16,
    dropout=0.0,
    attention_dropout=0,
)
STUDENT = replace(TEACHER, hidden_size=16, layers=2, heads=4, feedforward_size=32)
LENGTHS = (9, 4, 12)
Floats = NDArray[np.float64]


def make_inputs(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Batch:
    ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Batch(ids.masked_fill(~mask, 0), torch.zeros_like(ids), mask)


def relations(states: Floats, heads: int) -> Floats:
    """Return the softmax of the scaled dot products of one text, (R, T, T)."""
    found = []
    for part in np.split(states, heads, axis=1):
        scores = part @ part.T / math.sqrt(part.shape[1])
        weights = np.exp(scores - scores.max(1, keepdims=True))
        found.append(weights / weights.sum(1, keepdims=True))
    return np.stack(found)


def queries_keys_values(bert: Bert, layer: int, ids: torch.Tensor) -> list[Floats]:
    """Compute the projections of a layer, counted from 0, from its weights and the states of one text, (T, H)."""
    states = bert.encode(ids[None], torch.zeros_like(ids)[None], keep_states=True).states[layer][0]
    linear: Any = bert.get_submodule(f"encoder.layers.{layer}.attention.query_key_value")
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()
    projected = states.detach().double().numpy() @ weight.T + bias
    width = bert.config.hidden_size
    return [projected[:, width * number : width * (number + 1)] for number in range(3)]


@pytest.mark.parametrize("layer", [None, 2])
@pytest.mark.parametrize("heads", [None, 2, 4])
def test_relation_loss_against_numpy(layer: int | None, heads: int | None) -> None:
    """Equation 3 of MiniLMv2, for models of different width and number of heads, without padding."""
    student, teacher = random_bert(STUDENT), random_bert(TEACHER)
    settings = TextDistillSettings(objective="relations", teacher_layer=layer, relation_heads=heads)
    objective = RelationObjective(student, teacher, settings)
    assert (objective.layer, objective.heads) == (layer or 4, heads or 8)
    inputs = make_inputs()
    expected = []
    for row, length in enumerate(LENGTHS):
        ids = inputs.ids[row, :length]
        ours = queries_keys_values(student, 1, ids)
        theirs = queries_keys_values(teacher, (layer or 4) - 1, ids)
        total = 0.0
        for one, other in zip(ours, theirs, strict=True):
            wanted, found = relations(other, objective.heads), relations(one, objective.heads)
            total += float((wanted * np.log(wanted / found)).sum()) / objective.heads
        expected.append(total)
    assert objective.distances(inputs).tolist() == pytest.approx(expected, rel=1e-4)
    batch = TextBatch(inputs)
    assert objective(batch, batch.counts).loss.item() == pytest.approx(sum(expected) / sum(LENGTHS), rel=1e-4)


def test_hidden_loss_against_single_texts() -> None:
    student, teacher = random_bert(STUDENT), random_bert(TEACHER)
    objective = HiddenObjective(student, teacher, TextDistillSettings(objective="hidden"))
    assert len(objective.projections) == 3
    inputs, expected = make_inputs(), []
    for row, length in enumerate(LENGTHS):
        ids = inputs.ids[row : row + 1, :length]
        own = student.encode(ids, torch.zeros_like(ids), keep_states=True).states
        shown = teacher.encode(ids, torch.zeros_like(ids), keep_states=True).states
        errors = [
            ((linear(own[layer]) - shown[place]) ** 2).mean(-1).sum().item()
            for linear, layer, place in zip(objective.projections, (0, 1, 2), (0, 2, 4), strict=True)
        ]
        expected.append(sum(errors) / 3)
    assert objective.distances(inputs).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", [RelationObjective, HiddenObjective])
def test_student_that_equals_its_teacher_has_no_loss(kind: type[RelationObjective] | type[HiddenObjective]) -> None:
    teacher = random_bert(TEACHER)
    objective = kind(random_bert(TEACHER), teacher, TextDistillSettings())
    assert objective.distances(make_inputs()).tolist() == pytest.approx([0.0] * 3, abs=1e-4)
    assert {name.partition(".")[0] for name in objective.state_dict()} == {"model"}, "the teacher is not saved"


@pytest.mark.parametrize("kind", [RelationObjective, HiddenObjective])
def test_parts_add_up(kind: type[RelationObjective] | type[HiddenObjective]) -> None:
    """The gradient of accumulated parts equals that of the whole batch."""
    inputs = make_inputs()
    gradients = []
    for rows in ([(0, 3)], [(0, 1), (1, 3)]):
        objective = kind(random_bert(STUDENT), random_bert(TEACHER), TextDistillSettings())
        objective.train()
        for start, end in rows:
            part = Batch(inputs.ids[start:end], inputs.segments[start:end], inputs.real[start:end])
            objective(TextBatch(part), TextBatch(inputs).counts).loss.backward()
        weight = objective.model.encoder.layers[0].expand.weight
        assert weight.grad is not None
        gradients.append(weight.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert gradients[0].abs().max() > 1e-4


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("target", [16, 24])
def test_vector_losses(target: int, normalize: bool) -> None:
    student, inputs = random_bert(STUDENT), make_inputs()
    wanted = torch.randn(3, target, generator=torch.Generator().manual_seed(1))

    def objective(distance: str) -> VectorObjective:
        settings = TextDistillSettings(distance=distance)  # type: ignore[arg-type]
        return VectorObjective(
            student,
            lambda states, batch: POOL["mean"](states, batch.mask),
            settings,
            width=16,
            target=target,
            normalize=normalize,
        ).eval()

    projection = objective("cosine").projection
    assert (projection is None) == (target == 16)
    rows = []
    for row, length in enumerate(LENGTHS):
        ids = inputs.ids[row : row + 1, :length]
        vector = student.encode(ids, torch.zeros_like(ids)).last[0].mean(0)
        vector = vector if projection is None else projection(vector)
        rows.append(vector / vector.norm() if normalize else vector)
    vectors = torch.stack(rows)
    assert torch.allclose(objective("cosine").vectors(inputs), vectors, atol=1e-5)
    batch = TextBatch(inputs, wanted)
    cosines = (vectors * wanted).sum(-1) / vectors.norm(dim=-1) / wanted.norm(dim=-1)
    outcome = objective("cosine")(batch, batch.counts)
    assert outcome.loss.item() == pytest.approx((1 - cosines).mean().item(), rel=1e-4)
    assert outcome.metrics["cosine"].item() == pytest.approx(cosines.mean().item(), rel=1e-4)
    squared = objective("mse")(batch, batch.counts).loss.item()
    assert squared == pytest.approx(((vectors - wanted) ** 2).mean().item(), rel=1e-4)


def test_layer_and_heads_of_the_relations() -> None:
    deep = replace(TEACHER, layers=24)
    assert [relation_layer(config, None) for config in (TEACHER, replace(TEACHER, layers=12), deep)] == [4, 12, 21]
    with pytest.raises(ConfigError, match="teacher_layer is 5, but the teacher has 4 layers"):
        relation_layer(TEACHER, 5)
    wide, narrow = replace(TEACHER, hidden_size=768), replace(TEACHER, hidden_size=384)
    assert relation_heads(narrow, wide, None) == 48
    assert relation_heads(STUDENT, TEACHER, None) == 8
    with pytest.raises(ConfigError, match="relation_heads is 3; expected a divisor of both hidden sizes, 16 and 24"):
        relation_heads(STUDENT, TEACHER, 3)


@pytest.mark.parametrize("kind", ["vectors", "relations", "hidden"])
def test_memory_of_a_step(kind: TextObjective) -> None:
    """The estimate is at least the peak that the profiler measures, and at most half as much again."""
    small, large = (
        replace(TEACHER, hidden_size=width, layers=layers, heads=4, feedforward_size=4 * width, positions=64)
        for width, layers in ((64, 6), (128, 12))
    )
    student, teacher = (Bert.fresh(shape, ()).train() for shape in (small, large))
    settings = TextDistillSettings()
    objective: VectorObjective | TokenObjective
    if kind == "vectors":
        objective = VectorObjective(
            student,
            lambda states, batch: POOL["mean"](states, batch.mask),
            settings,
            width=64,
            target=128,
            normalize=True,
        )
    else:
        objective = (RelationObjective if kind == "relations" else HiddenObjective)(student, teacher, settings)
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(1, 40, (8, 64), generator=torch.Generator().manual_seed(1))
    batch = TextBatch(Batch(ids, torch.zeros_like(ids), None), torch.randn(8, 128) if kind == "vectors" else None)

    def step() -> None:
        objective(batch, batch.counts).loss.backward()

    expected = count_text_activations(small, large, kind, settings, 8, 64)
    assert 0.9 < expected / peak_memory(step) < 1.5
