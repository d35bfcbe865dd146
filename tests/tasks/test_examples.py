"""Rows without a dev file: held-out splits and folds."""

from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import split_dev, split_fold
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.tasks.tagging.kind import TaggedSentences


def rows(targets: list[int] | list[float]) -> LabelledTexts:
    count = len(targets)
    return LabelledTexts([f"text {number}" for number in range(count)], None, targets, [f"a:{n}" for n in range(count)])


def targets(examples: LabelledTexts) -> list[int]:
    assert examples.targets is not None
    return list(examples.targets)


@pytest.mark.parametrize("labels", [2, 3, 5])
@pytest.mark.parametrize("turns", [True, False])
def test_every_label_is_in_every_part_however_the_file_is_ordered(labels: int, turns: bool) -> None:
    for count in range(10 * labels, 200):
        order = [number % labels if turns else number * labels // count for number in range(count)]
        examples = rows(order)
        train, dev = split_dev(examples)
        assert (len(dev), len(train)) == (count // 10, count - count // 10)
        if count >= 20 * labels:  # each split has at least one, wherever a label starts
            assert set(targets(dev)) == set(range(labels))
        for folds in (2, 3, 10):
            for fold in range(folds):
                others, scored = split_fold(examples, fold, folds)
                assert set(targets(others)) == set(range(labels))
                assert set(targets(scored)) == set(range(labels))


def test_twenty_rows_whose_labels_take_turns_are_scored_on_both() -> None:
    for count in range(20, 60):
        _, dev = split_dev(rows([number % 2 for number in range(count)]))
        assert set(targets(dev)) == {0, 1}


def test_each_row_is_in_one_part_and_stays_in_the_order_of_the_file() -> None:
    examples = rows([number % 2 for number in range(43)])
    for train, dev in (split_dev(examples), split_fold(examples, 1, 4)):
        places = [int(place[2:]) for place in train.places], [int(place[2:]) for place in dev.places]
        assert all(part == sorted(part) for part in places)
        assert sorted(places[0] + places[1]) == list(range(43))
    folds = [split_fold(examples, fold, 4)[1].texts for fold in range(4)]
    assert sorted(text for fold in folds for text in fold) == sorted(examples.texts)
    assert split_dev(examples) == split_dev(examples), "the same rows are always split in the same way"


def test_numbers_are_spread_over_the_parts() -> None:
    examples = rows([float(number % 10) for number in range(100)])
    _, dev = split_dev(examples)
    assert sorted(targets(dev)) == list(range(10))


def test_rows_without_one_label_are_parted_at_no_regular_distance(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("a DT\nb NN\n\n" * 200, encoding="utf-8")
    dev = read_task(Source("tag", path)).dev
    assert isinstance(dev, TaggedSentences)
    assert len(dev) == 20
    lines = [int(place.rpartition(":")[2]) for place in dev.places]
    assert len({line // 3 % 10 for line in lines}) > 5
    assert lines == sorted(lines)


def test_too_few_rows_to_keep_some() -> None:
    with pytest.raises(DataError, match=r"19 rows are too few to hold some out: at least 20 are needed; give dev \("):
        split_dev(rows([number % 2 for number in range(19)]))
