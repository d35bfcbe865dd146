import pytest

from cloze.errors import DataError
from cloze.tasks.classification.kind import (
    classification_examples,
    find_labels,
    find_several_labels,
    regression_examples,
)
from cloze.tasks.examples import LabelSet
from cloze.tasks.rows import Row


def rows(*labels: str | None, pair: str | None = None) -> list[Row]:
    return [Row(f"a.csv:{n}", f"text {n}", pair, label) for n, label in enumerate(labels, start=2)]


def test_labels_are_sorted_as_words_or_as_integers() -> None:
    assert find_labels(rows("b", "a", "b", "C")).names == ("C", "a", "b")
    assert find_labels(rows("10", "9", "-1")).names == ("-1", "9", "10")
    assert find_labels(rows("10", "9", "x")).names == ("10", "9", "x")
    assert find_labels(rows("01", "1", "0")).names == ("0", "01", "1")


def test_one_label_is_not_a_task() -> None:
    with pytest.raises(DataError) as caught:
        find_labels(rows("a", "a"))
    assert str(caught.value) == (
        "all training rows have the same label (a); expected at least 2 labels: check the label column"
    )


def test_rows_that_all_have_no_label_are_no_task() -> None:
    with pytest.raises(DataError) as caught:
        find_several_labels(rows("", " | ", ""))
    assert str(caught.value) == ("no training row has a label; at least one is needed: check the label column")
    assert find_several_labels(rows("", "b|a", "b")).names == ("a", "b")


def test_classification() -> None:
    examples = classification_examples(rows("yes", "no", "yes"), LabelSet(("no", "yes")))
    assert examples.texts == ["text 2", "text 3", "text 4"]
    assert examples.pairs is None
    assert examples.targets == [1, 0, 1]
    assert examples.places == ["a.csv:2", "a.csv:3", "a.csv:4"]
    assert len(examples) == 3


def test_pairs() -> None:
    assert classification_examples(rows("a", "b", pair="p"), LabelSet(("a", "b"))).pairs == ["p", "p"]


def test_a_label_that_training_lacks() -> None:
    labels = LabelSet(("negative", "positive"))
    with pytest.raises(DataError) as caught:
        classification_examples(rows("positive", "positve"), labels)
    assert str(caught.value) == (
        "a.csv:3: label 'positve' is not among the 2 labels of training; did you mean 'positive'?"
    )
    with pytest.raises(DataError, match=r"label '7' .*; choose one of: negative, positive"):
        classification_examples(rows("7"), labels)
    examples = classification_examples(rows("positive", "7", "negative"), labels, on_bad_row="skip")
    assert (examples.targets, examples.places, examples.skipped) == ([1, 0], ["a.csv:2", "a.csv:4"], 1)


def test_regression() -> None:
    assert regression_examples(rows("3.5", "0", "-1e2")).targets == [3.5, 0.0, -100.0]


@pytest.mark.parametrize("label", ["nan", "inf", "-Infinity", "1e999", "three", "3,5"])
def test_numbers_that_are_none(label: str) -> None:
    with pytest.raises(DataError) as caught:
        regression_examples(rows("1", label))
    assert str(caught.value) == (f"a.csv:3: label {label!r} is not a finite number; expected one such as 3.5")
    assert regression_examples(rows("1", label), on_bad_row="skip").skipped == 1


def test_rows_without_labels() -> None:
    with pytest.raises(DataError) as caught:
        find_labels(rows(None))
    assert str(caught.value) == "a.csv:2: this row was read without a label; name the label column"
