"""Evaluations of every kind: row scores that agree with the metrics, intervals, and scores per label."""

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from cloze.checkpoint import TaskLabels
from cloze.predict import Evaluation, Model
from cloze.tasks.answering.decoding import evaluate_answers
from cloze.tasks.answering.examples import Question, Questions
from cloze.tasks.choice.decoding import evaluate_choices
from cloze.tasks.choice.kind import Choice, Choices
from cloze.tasks.classification.decoding import evaluate_label_sets, evaluate_labels, evaluate_numbers
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.correction.metrics import CorrectedRows, score_corrections
from cloze.tasks.examples import LabelSet
from cloze.tasks.intervals import MetricRows, bootstrap_intervals
from cloze.tasks.reports import (
    headline,
    html_report,
    label_table,
    prediction_rows,
    read_predictions,
    score_table,
    summary_lines,
    text_report,
    verdict,
    write_predictions,
    write_report,
)
from cloze.tasks.similarity.kind import QuestionAnswers, ScoredPairs
from cloze.tasks.tagging.decoding import evaluate_tags
from cloze.tasks.tagging.kind import TaggedSentences
from tests.model.made import model_folder

ROWS = 40
NAMES = ("anger", "joy", "sorrow")
TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
SEQUENCE = model_folder(["sequence"], labels=3, task=TaskLabels("classify", NAMES))
WORDS = SEQUENCE.tokenizer.pieces[22:]
DRAW = random.Random(0)


def make_texts(count: int = ROWS) -> list[str]:
    return [" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 9))) for _ in range(count)]


def labelled(targets: Sequence[object]) -> LabelledTexts:
    return LabelledTexts(make_texts(len(targets)), None, targets, [f"row {row}" for row in range(len(targets))])


def classified() -> Evaluation:
    rows = labelled([DRAW.randrange(3) for _ in range(ROWS)])
    return evaluate_labels(Model(SEQUENCE), rows, ("accuracy", "macro_f1"))


def label_sets() -> Evaluation:
    model = Model(replace(SEQUENCE, task=TaskLabels("multilabel", NAMES)))
    flags = [tuple(float(DRAW.random() < 0.4) for _ in NAMES) for _ in range(ROWS)]
    return evaluate_label_sets(model, labelled(flags), ("micro_f1", "macro_f1"))


def numbers() -> Evaluation:
    model = Model(model_folder(["sequence"], labels=1, task=TaskLabels("regress")))
    return evaluate_numbers(model, labelled([DRAW.random() for _ in range(ROWS)]), ("pearson", "spearman", "mse"))


def chosen() -> Evaluation:
    rows = [Choice(f"row {row}", text, tuple(make_texts(4)), row % 4) for row, text in enumerate(make_texts())]
    return evaluate_choices(Model(model_folder(["choice"], task=TaskLabels("choose"))), Choices(rows), ("accuracy",))


def tagged(names: tuple[str, ...] = TAGS) -> Evaluation:
    words = [text.split() for text in make_texts()]
    targets = [[DRAW.choices(range(5), (1, 1, 1, 1, 4))[0] for _ in row] for row in words]
    empty: list[list[str]] = [["" for _ in row] for row in words]
    places = [f"row {row}" for row in range(ROWS)]
    examples = TaggedSentences(words, targets, LabelSet(names), places, empty, list(range(ROWS)), places)  # type: ignore[arg-type]
    model = Model(model_folder(["token"], labels=5, task=TaskLabels("tag", names)))
    return evaluate_tags(model, examples, ())


def answer_evaluation(metric: str, none: bool) -> Evaluation:
    rows = []
    for number, context in enumerate(make_texts()):
        answers = () if none and number % 3 == 0 else (context.split()[0],)
        rows.append(Question(f"row {number}", str(number), "cats", context, answers))
    return evaluate_answers(Model(model_folder(["span"], task=TaskLabels("answer"))), Questions(rows), ("f1", metric))


def similar(scores: list[float]) -> Evaluation:
    vectors = np.random.default_rng(0).normal(size=(2, len(scores), 4)).astype(np.float32)
    texts = make_texts(len(scores))
    return ScoredPairs(texts, texts, scores, texts).evaluation(*vectors)


def similarity_evaluation() -> Evaluation:
    vectors = np.random.default_rng(0).normal(size=(2, ROWS, 4)).astype(np.float32)
    texts = make_texts()
    right: list[tuple[int, ...]] = [(row, (row + 1) % ROWS) for row in range(ROWS)]
    return QuestionAnswers(texts, texts, right, texts).evaluation(*vectors)


EVALUATIONS = {
    "classify": classified,
    "multilabel": label_sets,
    "regress": numbers,
    "choose": chosen,
    "tag entities": tagged,
    "tag words": lambda: tagged(("DET", "NOUN", "NUM", "PART", "VERB")),
    "squad": lambda: answer_evaluation("exact_match", False),
    "squad2": lambda: answer_evaluation("exact", True),
    "cmrc": lambda: answer_evaluation("em", False),
    "rated": lambda: similar([DRAW.random() for _ in range(ROWS)]),
    "binary": lambda: similar([float(row % 3 == 0) for row in range(ROWS)]),
    "retrieval": similarity_evaluation,
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_rows_of_every_kind_score_as_its_metrics(name: str) -> None:
    evaluation = EVALUATIONS[name]()
    assert evaluation.rows is not None
    assert len(evaluation.rows) == len(evaluation.predictions) == ROWS
    whole = {metric: values[0] for metric, values in evaluation.rows.scores(np.ones((1, ROWS))).items()}
    assert next(iter(whole)) == next(iter(evaluation.metrics))
    # The SQuAD 2.0 thresholds are chosen on all rows, so they have no interval.
    expected = {metric: value for metric, value in evaluation.metrics.items() if not metric.startswith("best_")}
    assert whole == pytest.approx(expected, abs=1e-9)
    assert evaluation.intervals.keys() == expected.keys()
    for metric, (low, high) in evaluation.intervals.items():
        assert low <= expected[metric] <= high
    assert evaluation.intervals is evaluation.intervals  # computed once


def test_scores_by_label_are_those_of_scikit_learn() -> None:
    evaluation = classified()
    assert evaluation.targets is not None
    expected = precision_recall_fscore_support(
        evaluation.targets, evaluation.predictions, labels=list(NAMES), zero_division=0
    )
    assert list(evaluation.by_label) == list(NAMES)
    for number, scores in enumerate(evaluation.by_label.values()):
        assert list(scores) == ["precision", "recall", "f1", "support"]
        assert list(scores.values()) == pytest.approx([column[number] for column in expected])


def test_labels_of_the_model_that_no_row_has_are_listed() -> None:
    rows = MetricRows(("accuracy",), [0, 0], [0, 1], NAMES)
    assert list(rows.by_label()) == list(NAMES)
    assert rows.by_label()["sorrow"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}


def test_entities_are_scored_by_type_and_other_kinds_have_no_labels() -> None:
    assert list(tagged().by_label) == ["LOC", "PER"]
    assert list(label_sets().by_label) == list(NAMES)
    assert numbers().by_label == chosen().by_label == {}
    alone = Evaluation({"accuracy": 1.0}, ["yes"], ["row 1"])
    assert (alone.intervals, alone.by_label) == ({}, {})


def test_corrections_are_resampled_by_text() -> None:
    sources = ["因该在见", "很好", "今天天汽", "我门走", "再见"] * 4
    targets = ["应该再见", "很好", "今天天气", "我们走", "再见"] * 4
    predictions = ["应该在见", "很坏", "今天天气", "我门走", "再见"] * 3 + targets[15:]
    rows = CorrectedRows(sources, targets, predictions)
    drawn = np.random.default_rng(0).integers(0, 20, (5, 20))
    found = rows.scores(np.stack([np.bincount(one, minlength=20) for one in drawn]).astype(float))
    for number, one in enumerate(drawn):
        expected = score_corrections(*([texts[row] for row in one] for texts in (sources, targets, predictions)))
        assert {name: values[number] for name, values in found.items()} == pytest.approx(expected)
    low, high = bootstrap_intervals(rows)["correction_f1"]
    assert 0 < low < score_corrections(sources, targets, predictions)["correction_f1"] < high < 1


def test_predictions_have_one_line_per_row_whatever_the_texts(tmp_path: Path) -> None:
    texts = ["a\ttab", "two\nlines\r\n", 'a "quote', "back\\slash \\n \\", "'", "  ", "a\u2028b\x0bc", "猫"]
    inputs = [{"text": text, "pair": text[::-1]} for text in texts]
    places = [f"file:{row}" for row in range(len(texts))]
    evaluation = Evaluation({"accuracy": 1.0}, texts, places, texts, inputs, probabilities=[1 / 3] * len(texts))
    path = tmp_path / "predictions.tsv"
    write_predictions(evaluation, path)
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    assert lines[0] == "row\ttext\tpair\tlabel\tprediction\tprobability"
    assert len(lines) == 1 + len(texts)
    assert lines[1] == "file:0\ta\\ttab\tbat\\ta\ta\\ttab\ta\\ttab\t0.3333"
    with path.open(encoding="utf-8", newline="") as file:
        theirs = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [len(row) for row in theirs] == [6] * len(texts)
    assert theirs[2]["text"] == 'a "quote'
    assert read_predictions(path) == prediction_rows(evaluation)
    assert [row["text"] for row in read_predictions(path)] == texts


def test_an_unpaired_surrogate_is_written_as_an_escape(tmp_path: Path) -> None:
    write_predictions(Evaluation({"accuracy": 1.0}, ["\ud800"], ["row 1"]), tmp_path / "predictions.tsv")
    assert read_predictions(tmp_path / "predictions.tsv") == [{"row": "row 1", "prediction": "\\ud800"}]


@pytest.mark.parametrize("name", ["classify", "multilabel", "tag entities", "squad2", "choose"])
def test_probabilities_are_those_of_the_predictions(name: str) -> None:
    evaluation = EVALUATIONS[name]()
    assert evaluation.probabilities is not None
    assert len(evaluation.probabilities) == ROWS
    assert all(0 < value <= 1 for value in evaluation.probabilities)
    assert [row["prediction"] for row in prediction_rows(evaluation)] == evaluation.predictions


def test_probability_of_a_label_is_that_of_the_likeliest() -> None:
    evaluation, model = classified(), Model(SEQUENCE)
    labels = model.classify([row["text"] for row in evaluation.inputs])
    assert evaluation.probabilities == pytest.approx([label.probability for label in labels], abs=1e-6)
    assert evaluation.predictions == [label.label for label in labels]


def test_probability_of_a_set_is_the_product_over_all_labels() -> None:
    evaluation = label_sets()
    model = Model(replace(SEQUENCE, task=TaskLabels("multilabel", NAMES)))
    expected = [
        np.prod([value if name in found.labels else 1 - value for name, value in found.probabilities.items()])
        for found in model.classify_all([row["text"] for row in evaluation.inputs])
    ]
    assert evaluation.probabilities == pytest.approx(expected, abs=1e-6)


def test_numbers_have_no_probability() -> None:
    assert list(prediction_rows(numbers())[0]) == ["row", "text", "label", "prediction"]


def test_report_has_intervals_rows_and_scores_by_label(tmp_path: Path) -> None:
    evaluation = classified()
    write_report(evaluation, tmp_path)
    results = json.loads((tmp_path / "eval_results.json").read_text("utf-8"))
    assert results["intervals"] == evaluation.intervals
    assert results["by_label"] == evaluation.by_label
    assert results["rows"] == ROWS
    assert read_predictions(tmp_path / "predictions.tsv") == prediction_rows(evaluation)
    header, rows = score_table(results)
    assert header == ("metric", "value", "95 % interval")
    low, high = evaluation.intervals["accuracy"]
    assert rows[0] == ("accuracy", f"{evaluation.metrics['accuracy']:.4f}", f"{low:.4f} to {high:.4f}")
    table = label_table(results)
    assert table is not None
    assert [row[0] for row in table[1]] == list(NAMES)
    assert label_table(results | {"by_label": {str(label): {} for label in range(21)}}) is None
    assert label_table({}) is None


def results_with(value: float, low: float, high: float) -> dict[str, Any]:
    baseline = {"name": "TF-IDF", "accuracy": 0.8, "difference": {"value": value, "low": low, "high": high}}
    baseline |= {"interval": {"accuracy": [0.7, 0.9]}, "others": [{"name": "majority", "accuracy": 0.5}]}
    intervals = {"accuracy": [0.75, 0.85]}
    return {"accuracy": 0.8 + value, "rows": 40, "intervals": intervals, "baseline": baseline}


def test_a_model_behind_its_baseline_says_so_first() -> None:
    results = results_with(-0.031, -0.054, -0.008)
    behind = "behind TF-IDF by 3.1 points of accuracy (95 % interval 0.8 to 5.4): "
    assert verdict(results).startswith(behind)
    assert headline(results) == verdict(results)
    assert text_report("A run", results).startswith(behind)
    assert text_report("A run", results).count("behind TF-IDF") == 1
    assert f"<p>{behind}" in html_report("A run", results, [], None)
    assert score_table(results) == (
        ("metric", "value", "95 % interval", "TF-IDF", "majority"),
        [("accuracy", "0.7690", "0.7500 to 0.8500", "0.8000", "0.5000")],
    )


def test_differences_within_noise_are_level_and_others_ahead() -> None:
    level, ahead = results_with(0.004, -0.01, 0.02), results_with(0.05, 0.02, 0.08)
    assert headline(level) is headline(ahead) is None
    assert summary_lines(level)[-1] == (
        "level with TF-IDF: a difference of +0.4 points of accuracy is within noise (95 % interval -1.0 to +2.0)"
    )
    assert summary_lines(ahead)[-1] == "ahead of TF-IDF by 5.0 points of accuracy (95 % interval 2.0 to 8.0)"
    # An interval that starts at zero is not significant.
    assert verdict(results_with(0.05, 0.0, 0.1)).startswith("level with TF-IDF")


def test_a_wide_interval_is_no_level() -> None:
    assert verdict(results_with(-0.233, -0.467, 0.0)) == (
        "too few rows to distinguish it from TF-IDF: the difference of -23.3 points of accuracy may be -46.7 to +0.0 "
        "(95 % interval); score on more rows, with a dev file or folds"
    )


def test_few_rows_make_a_rough_interval() -> None:
    results = results_with(0.05, 0.02, 0.08)
    assert summary_lines(results)[0] == "40 rows"
    assert summary_lines(results | {"rows": 29})[0] == "29 rows; below 30 rows, the intervals are rough"
    assert summary_lines(results | {"skipped": 2, "unlabelled": 1})[1:3] == [
        "2 bad rows were skipped",
        "1 rows that are marked as having no label were skipped",
    ]
