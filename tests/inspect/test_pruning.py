"""Importance of heads for a task, on a model in which a single head does the work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.inspect.pruning import (
    PruningCurve,
    draw_curves,
    head_importance,
    least_important_first,
    pruning_curve,
    random_order,
    removal_costs,
    removal_gains,
)
from cloze.model.surgery import gated_heads, prune_heads
from cloze.options import HeadPooling
from cloze.predict import Difference, Evaluation, Model, evaluate_examples
from cloze.tasks.classification.kind import CLASSIFY, LabelledTexts
from tests.model.made import SMALL, model_folder

TEXTS = ["the cat sat", "a dog ran on a mat", "the dogs sat on the cat", "a mat"]
ALL = SMALL.layers * SMALL.heads


def made_model(kind: str = "classify", pooling: HeadPooling = "cls") -> Model:
    names = ("no", "yes") if kind == "classify" else ()
    config = replace(SMALL, head_pooling=pooling)
    folder = model_folder(["sequence"], config=config, labels=max(1, len(names)), task=TaskLabels(kind, names))
    return Model(folder, device="cpu")


def loss_of(model: Model, targets: list[int]) -> float:
    logits = torch.tensor(model.logits(TEXTS))
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(targets)))


def test_cost_of_each_head() -> None:
    model = made_model()
    prune_heads(model.bert, [(0, 1), (1, 1)])  # these heads no longer have an effect
    costs = removal_costs(model, lambda: -loss_of(model, [0, 1, 0, 1]))
    assert costs.shape == (SMALL.layers, SMALL.heads)
    assert costs[0, 1] == costs[1, 1] == pytest.approx(0.0, abs=1e-6)
    assert (np.abs(costs[[0, 1, 2, 2], [0, 0, 0, 1]]) > 1e-5).all()
    # The cost is the increase of the loss without the head.
    whole = loss_of(model, [0, 1, 0, 1])
    with model.without_heads([(2, 1)]):
        assert costs[2, 1] == pytest.approx(loss_of(model, [0, 1, 0, 1]) - whole, abs=1e-6)


@pytest.mark.parametrize(("kind", "pooling"), [("classify", "cls"), ("regress", "cls"), ("classify", "separate")])
def test_importance_is_the_slope_of_each_rows_loss(kind: str, pooling: HeadPooling) -> None:
    model = made_model(kind, pooling)
    prune_heads(model.bert, [(1, 0)])
    targets = [0.0, 1.0, 0.0, 1.0]
    pairs = TEXTS[1:] + TEXTS[:1] if pooling == "separate" else None
    found = head_importance(model, TEXTS, pairs, targets)
    assert found[1, 0] == 0.0
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)
    # Computed one text at a time, by finite differences of the gates.
    by_hand = np.zeros_like(found)
    for place in np.ndindex(found.shape):
        seconds: Sequence[str | None] = pairs or [None] * len(TEXTS)
        for text, pair, target in zip(TEXTS, seconds, targets, strict=True):
            above, below = (row_loss(model, text, pair, target, place, gate) for gate in (1.01, 0.99))
            by_hand[place] += abs(above - below) / 0.02
    by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
    np.testing.assert_allclose(found, by_hand, atol=5e-3)


def row_loss(model: Model, text: str, pair: str | None, target: float, place: tuple[int, ...], gate: float) -> float:
    gates = torch.ones(SMALL.layers, SMALL.heads)
    gates[place] = gate
    with gated_heads(model.bert, gates):
        logits = torch.tensor(model.logits([text], None if pair is None else [pair])).double()
    if logits.shape[1] == 1:
        return float((logits[0, 0] - target) ** 2)
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor([int(target)])))


def test_importance_of_a_model_without_a_task() -> None:
    model = Model(model_folder(["mlm"]), device="cpu")
    with pytest.raises(RequestError, match="importance needs a model fine-tuned for classification or regression"):
        head_importance(model, TEXTS, None, [0, 1, 0, 1])
    with pytest.raises(RequestError, match="3 targets for 4 texts"):
        head_importance(made_model(), TEXTS, None, [0, 1, 0])


def test_order_of_worth() -> None:
    assert least_important_first(np.array([[0.3, 0.1], [0.2, 0.4]])) == [(0, 1), (1, 0), (0, 0), (1, 1)]
    model = made_model()
    assert sorted(random_order(model, 0)) == sorted(np.ndindex(SMALL.layers, SMALL.heads))
    assert random_order(model, 0) == random_order(model, 0) != random_order(model, 1)


def test_curve_starts_with_the_whole_model_and_ends_without_heads() -> None:
    model = made_model()
    order, targets = random_order(model, 0), [0, 1, 0, 1]
    curve = pruning_curve(model, order, lambda: loss_of(model, targets), steps=3)
    assert curve.shares == pytest.approx((0, 1 / 3, 2 / 3, 1))
    assert curve.scores[0] == loss_of(model, targets)
    model.prune_heads(order[:2])
    assert curve.scores[1] == pytest.approx(loss_of(model, targets), abs=1e-6)
    model.prune_heads(order)
    assert curve.scores[-1] == pytest.approx(loss_of(model, targets), abs=1e-6)


def evaluated(model: Model, rows: LabelledTexts) -> Evaluation:
    return evaluate_examples(model, CLASSIFY, rows, ("accuracy", "macro_f1"))


def labelled_rows(model: Model) -> LabelledTexts:
    """Return sixteen rows of both labels, with the labels that the whole model predicts."""
    texts = [f"{text} {other}" for text in TEXTS for other in TEXTS]
    margins = model.logits(texts) @ np.array([-1.0, 1.0])
    output = model.bert.heads["sequence"].get_submodule("output")
    assert isinstance(output, torch.nn.Linear)
    with torch.no_grad():
        output.bias[1] -= float(np.median(margins))
    targets = model.logits(texts).argmax(-1).tolist()
    return LabelledTexts(texts, None, targets, [str(number) for number in range(16)])


def test_labelled_rows_give_the_curve_intervals() -> None:
    model = made_model()
    order, rows = random_order(model, 0), labelled_rows(model)
    curve = pruning_curve(model, order, lambda: evaluated(model, rows), steps=3)
    assert curve.scores[0] == 1.0, "the whole model predicts its own labels"
    assert curve.scores[-1] == 0.5, "without heads, all rows get the same prediction"
    whole = evaluated(model, rows)
    assert curve.gains[0] == Difference(0.0, 0.0, 0.0)
    with model.without_heads(order):
        assert curve.gains[-1] == evaluated(model, rows).gain_over(whole)
    assert [gain and gain.value for gain in curve.gains] == pytest.approx([score - 1.0 for score in curve.scores])


def test_share_that_can_be_removed_within_noise() -> None:
    level, worse = Difference(-0.01, -0.03, 0.01), Difference(-0.2, -0.3, -0.1)
    none = Difference(0.0, 0.0, 0.0)
    curve = PruningCurve((0, 0.25, 0.5, 0.75), (0.9, 0.89, 0.7, 0.89), (none, level, worse, level))
    assert curve.share_within_noise == 0.25  # shares after the first significant loss are ignored
    assert PruningCurve((0, 0.5), (0.9, 0.89), (none, level)).share_within_noise == 0.5
    assert PruningCurve((0, 0.5), (0.9, 0.8)).share_within_noise is None
    assert PruningCurve((0, 0.5), (0.9, 0.8), (None, None)).share_within_noise is None


def test_gain_of_removing_each_head() -> None:
    model = made_model()
    rows = labelled_rows(model)
    gains = removal_gains(model, lambda: evaluated(model, rows))
    costs = removal_costs(model, lambda: evaluated(model, rows))
    assert sorted(gains) == sorted(np.ndindex(SMALL.layers, SMALL.heads))
    assert [gains[head].value for head in np.ndindex(costs.shape)] == pytest.approx((-costs).ravel().tolist())
    with model.without_heads([(1, 0)]):
        removed = evaluated(model, rows)
    assert gains[1, 0] == removed.gain_over(evaluated(model, rows))
    with pytest.raises(RequestError, match="the evaluation has no scores per row; evaluate the model on labelled rows"):
        removal_gains(model, lambda: replace(evaluated(model, rows), rows=None))


@pytest.mark.parametrize("name", ["curves.png", "curves.svg"])
def test_picture_of_curves(name: str, tmp_path: Path) -> None:
    curves = {
        "least first": [PruningCurve((0, 0.5, 1), (0.9, 0.8, 0.5))],
        "random": [PruningCurve((0, 0.5, 1), (0.9, 0.6, 0.5))] * 2,
    }
    draw_curves(curves, "accuracy", tmp_path / name)
    draw_curves(curves, "accuracy", tmp_path / f"again-{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()
    assert (tmp_path / name).stat().st_size > 1000
