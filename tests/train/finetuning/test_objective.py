from typing import Any

import numpy as np
import pytest
import torch

from cloze.model.losses import task_loss
from cloze.options import IGNORED
from cloze.tasks.examples import Item
from cloze.text import Encoding
from cloze.train.finetuning.objective import TaskBatches


def encoding(length: int) -> Encoding:
    return Encoding(list(range(1, length + 1)), [0] * length, [""] * length, [(0, 0)] * length, [0] * length)


def items(count: int, seed: int = 0) -> list[Item]:
    lengths = np.random.default_rng(seed).integers(1, 60, count)
    return [Item((encoding(int(length)),), index) for index, length in enumerate(lengths)]


def make(rows: list[Item], batch: int = 4, seed: int = 0, **options: bool) -> Any:
    # Typed Any instead of TaskBatches, whose batches may be None if there are fewer rows than parts.
    return TaskBatches(rows, batch, seed, 0, torch.device("cpu"), **options)


def rows_of(batches: Any, epoch: int) -> list[list[int]]:
    steps = batches.steps_per_epoch
    return [batches.at(step).targets.tolist() for step in range(epoch * steps, (epoch + 1) * steps)]


def test_every_epoch_has_every_row_once_in_another_order() -> None:
    batches = make(items(431))
    first, second = rows_of(batches, 0), rows_of(batches, 1)
    assert sorted(row for batch in first for row in batch) == list(range(431))
    assert sorted(row for batch in second for row in batch) == list(range(431))
    assert first != second
    assert sorted(map(len, first)) == [3] + [4] * 107
    assert rows_of(make(items(431)), 1) == second
    assert rows_of(make(items(431), seed=1), 0) != first


def padding(batches: Any) -> float:
    return float(1 - np.mean([float(batches.at(step).inputs.real.float().mean()) for step in range(50)]))


def test_rows_are_drawn_at_random_and_stand_by_length() -> None:
    batches = make(items(400), batch=8)
    lengths = np.array([batches.at(step).inputs.real.sum(1).tolist() for step in range(50)])
    assert (np.diff(lengths) >= 0).all()
    # Means of eight random lengths from 1 to 59 spread as much as expected by chance.
    assert lengths.mean(1).std() == pytest.approx(lengths.std() / np.sqrt(8), rel=0.2)
    assert padding(batches) > 0.3


def test_compared_texts_are_grouped_by_length() -> None:
    assert padding(make(items(400), batch=8, similar_lengths=True)) < 0.1


def test_parts_are_the_whole() -> None:
    batches = make(items(30), batch=8)
    whole = batches.at(2)
    parts = [batches.at(2, part, 3) for part in range(3)]
    assert torch.cat([part.targets for part in parts]).tolist() == whole.targets.tolist()
    assert sum(part.counts["targets"] for part in parts) == whole.counts["targets"] == 8
    assert sum(part.token_count for part in parts) == whole.token_count


def test_labels_of_tokens_are_padded_and_counted() -> None:
    rows = [Item((encoding(3),), [IGNORED, 1, 2]), Item((encoding(5),), [IGNORED, 0, IGNORED, 1, IGNORED])]
    batch = make(rows, token_targets=True).at(0)
    assert batch.targets.shape == (2, 5)
    assert batch.counts == {"targets": 4}
    short = batch.targets[batch.inputs.real.sum(1).argmin()]
    assert short.tolist() == [IGNORED, 1, 2, IGNORED, IGNORED]


def test_a_number_is_never_taken_for_a_label_that_is_ignored() -> None:
    batch = make([Item((encoding(3),), float(IGNORED)), Item((encoding(3),), 1.5)]).at(0)
    assert batch.counts == {"targets": 2}


def test_options_of_a_choice_are_batched_together() -> None:
    rows = [Item((encoding(3), encoding(4)), 1), Item((encoding(2), encoding(5), encoding(1)), 0)]
    batch = make(rows).at(0)
    assert sorted(batch.sizes) == [2, 3]
    assert batch.inputs.ids.shape == (5, 5)
    assert batch.counts == {"targets": 2}


@pytest.mark.parametrize("kind", ["labels", "numbers", "several", "spans"])
def test_losses_of_parts_add_up_to_that_of_the_whole(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 2, 7, generator=generator) if kind == "spans" else torch.randn(6, 7, generator=generator)
    targets = {
        "labels": torch.randint(7, (6,), generator=generator),
        "numbers": torch.randn(6, generator=generator),
        "several": torch.randint(2, (6, 7), generator=generator).float(),
        "spans": torch.randint(7, (6, 2), generator=generator),
    }[kind]
    if kind == "numbers":
        logits = logits[:, :1]
    total = targets.numel()
    expected = {
        "labels": lambda: torch.nn.functional.cross_entropy(logits, targets),
        "numbers": lambda: torch.nn.functional.mse_loss(logits[:, 0], targets),
        "several": lambda: torch.nn.functional.binary_cross_entropy_with_logits(logits, targets),
        "spans": lambda: (
            (
                torch.nn.functional.cross_entropy(logits[:, 0], targets[:, 0])
                + torch.nn.functional.cross_entropy(logits[:, 1], targets[:, 1])
            )
            / 2
        ),
    }[kind]()
    parts = [task_loss(logits[rows], targets[rows], total) for rows in (slice(0, 2), slice(2, 6))]
    assert torch.allclose(sum(parts, torch.zeros(())), expected)
    assert torch.allclose(task_loss(logits, targets, total), expected)
