import pytest

from cloze.errors import ConfigError, DataError
from cloze.tasks.examples import LabelSet
from cloze.tasks.metrics import confusion, score

TARGETS = [1, 1, 1, 0, 0, 0, 0, 0]
TOLD = [1, 1, 0, 1, 0, 0, 0, 0]  # TP 2, FN 1, FP 1, TN 4


def test_binary_figures_by_hand() -> None:
    figures = score(["accuracy", "f1", "macro_f1", "matthews"], TARGETS, TOLD)
    assert figures == pytest.approx(
        {
            "accuracy": 6 / 8,
            "f1": 2 / 3,  # precision 2/3, recall 2/3
            "macro_f1": (2 / 3 + 4 / 5) / 2,  # class 0: precision 4/5, recall 4/5
            "matthews": (2 * 4 - 1 * 1) / (3 * 3 * 5 * 5) ** 0.5,
        }
    )


def test_three_classes_by_hand() -> None:
    figures = score(("accuracy", "macro_f1"), [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0])
    # F1: class 0 1/2, class 1 2*(2/3*1)/(5/3) = 4/5, class 2 2/3
    assert figures == pytest.approx({"accuracy": 4 / 6, "macro_f1": (1 / 2 + 4 / 5 + 2 / 3) / 3})


def test_regression_by_hand() -> None:
    figures = score(("pearson", "spearman", "mse"), [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 8.0])
    # deviations -1.5 -.5 .5 1.5 and -2.5 -.5 -1.5 4.5: products sum to 10, squares to 5 and 29
    assert figures == pytest.approx({"pearson": 10 / (5 * 29) ** 0.5, "spearman": 0.8, "mse": 18 / 4})


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1"])
def test_saying_no_to_a_single_label_is_no_label_of_its_own(metric: str) -> None:
    assert score([metric], [(1.0,), (0.0,), (0.0,)], [(0.0,), (0.0,), (0.0,)]) == {metric: 0.0}
    assert score([metric], [(1.0,), (1.0,), (0.0,)], [(1.0,), (0.0,), (0.0,)]) == pytest.approx({metric: 2 / 3})


@pytest.mark.parametrize("metric", ["pearson", "spearman", "matthews", "f1"])
def test_constant_predictions_count_as_nothing_learned(metric: str) -> None:
    assert score([metric], [0, 1, 0, 1], [0, 0, 0, 0]) == {metric: 0.0}
    assert score([metric], [0, 0], [0, 0]) == {metric: 0.0}


def test_predictions_that_hardly_vary_do_not_warn() -> None:
    figures = score(["pearson"], [1.0, 2.0, 3.0], [1.0, 1.0 + 1e-15, 1.0])
    assert -1 <= figures["pearson"] <= 1


def test_unpredicted_classes_do_not_warn() -> None:
    assert score(["macro_f1"], [0, 1, 2], [0, 1, 1])["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_complaints() -> None:
    with pytest.raises(ConfigError) as unknown:
        score(["acuracy"], [1], [1])
    assert str(unknown.value) == "there is no metric 'acuracy'; did you mean 'accuracy'?"
    with pytest.raises(DataError) as uneven:
        score(["mse"], [1, 2], [1])
    assert str(uneven.value) == "2 targets, but 1 predictions; give one for each row, in order"
    with pytest.raises(DataError) as nothing:
        score(["mse"], [], [])
    assert str(nothing.value) == "no rows to score; expected at least one row with a label"
    with pytest.raises(DataError) as broken:
        score(["mse"], [1.0, 2.0], [1.0, float("nan")])
    assert str(broken.value) == "prediction 2 is nan; expected a finite number: check the model's training"


def test_confusion() -> None:
    labels = LabelSet(("a", "b", "c"))
    assert confusion(labels, [0, 0, 1, 2], [0, 1, 1, 0]) == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
