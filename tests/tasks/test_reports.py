"""Evaluations of every kind: rows that score as the metrics say, intervals, and scores by label."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from cloze.checkpoint import TaskLabels
from cloze.predict import Evaluation, Model
from cloze.tasks.answering.decoding import evaluate_answers
from cloze.tasks.answering.examples import Question, Questions
from cloze.tasks.choice.decoding import evaluate_choices
from cloze.tasks.choice.examples import Choice, Choices
from cloze.tasks.classification.decoding import evaluate_label_sets, evaluate_labels, evaluate_numbers
from cloze.tasks.classification.examples import LabelledTexts
from cloze.tasks.correction.metrics import CorrectedRows, score_corrections
from cloze.tasks.examples import LabelSet
from cloze.tasks.intervals import MetricRows, bootstrap_intervals
from cloze.tasks.similarity.kind import QuestionAnswers, ScoredPairs
from cloze.tasks.tagging.decoding import evaluate_tags
from cloze.tasks.tagging.examples import TaggedSentences
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


def answered(metric: str, none: bool) -> Evaluation:
    rows = []
    for number, context in enumerate(make_texts()):
        answers = () if none and number % 3 == 0 else (context.split()[0],)
        rows.append(Question(f"row {number}", str(number), "cats", context, answers))
    return evaluate_answers(Model(model_folder(["span"], task=TaskLabels("answer"))), Questions(rows), ("f1", metric))


def similar(scores: list[float]) -> Evaluation:
    vectors = np.random.default_rng(0).normal(size=(2, len(scores), 4)).astype(np.float32)
    texts = make_texts(len(scores))
    return ScoredPairs(texts, texts, scores, texts).evaluation(*vectors)


def retrieved() -> Evaluation:
    vectors = np.random.default_rng(0).normal(size=(2, ROWS, 4)).astype(np.float32)
    texts = make_texts()
    right = [(row, (row + 1) % ROWS) for row in range(ROWS)]
    return QuestionAnswers(texts, texts, right, texts).evaluation(*vectors)


EVALUATIONS = {
    "classify": classified,
    "multilabel": label_sets,
    "regress": numbers,
    "choose": chosen,
    "tag entities": tagged,
    "tag words": lambda: tagged(("DET", "NOUN", "NUM", "PART", "VERB")),
    "squad": lambda: answered("exact_match", False),
    "squad2": lambda: answered("exact", True),
    "cmrc": lambda: answered("em", False),
    "rated": lambda: similar([DRAW.random() for _ in range(ROWS)]),
    "binary": lambda: similar([float(row % 3 == 0) for row in range(ROWS)]),
    "retrieval": retrieved,
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_rows_of_every_kind_score_as_its_metrics(name: str) -> None:
    evaluation = EVALUATIONS[name]()
    assert evaluation.rows is not None
    assert len(evaluation.rows) == len(evaluation.predictions) == ROWS
    whole = {metric: values[0] for metric, values in evaluation.rows.scores(np.ones((1, ROWS))).items()}
    assert next(iter(whole)) == next(iter(evaluation.metrics))
    # The thresholds of SQuAD 2.0 are chosen on all rows: they have no interval.
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
    told = ["应该在见", "很坏", "今天天气", "我门走", "再见"] * 3 + targets[15:]
    rows = CorrectedRows(sources, targets, told)
    drawn = np.random.default_rng(0).integers(0, 20, (5, 20))
    found = rows.scores(np.stack([np.bincount(one, minlength=20) for one in drawn]).astype(float))
    for number, one in enumerate(drawn):
        expected = score_corrections(*([texts[row] for row in one] for texts in (sources, targets, told)))
        assert {name: values[number] for name, values in found.items()} == pytest.approx(expected)
    low, high = bootstrap_intervals(rows)["correction_f1"]
    assert 0 < low < score_corrections(sources, targets, told)["correction_f1"] < high < 1
