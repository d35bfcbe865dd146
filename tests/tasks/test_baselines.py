"""Baselines, compared with scikit-learn and with cases computed by hand."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score

from cloze.predict import Evaluation
from cloze.tasks import baselines
from cloze.tasks.answering.examples import Question, Questions
from cloze.tasks.baselines import Baseline, baseline_scores, compare, fit_baselines, has_spaces, sample_rows
from cloze.tasks.choice.kind import Choice, Choices
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Examples, LabelSet
from cloze.tasks.intervals import MetricRows, paired_difference
from cloze.tasks.registry import KINDS, TaskData
from cloze.tasks.tagging.kind import TaggedSentences
from tests.train.made import Listener

SENTENCE = "the old man saw a small ship near some rocks and went home before it rained"
WORDS = SENTENCE.split()
NAMES = ("land", "sea", "sky")


def make_texts(count: int, seed: int) -> tuple[list[str], list[int]]:
    """Return texts in which one word determines the label most of the time."""
    draw = random.Random(seed)
    labels = [draw.choices(range(3), (5, 3, 2))[0] for _ in range(count)]
    shown_labels = [label if draw.random() < 0.8 else draw.randrange(3) for label in labels]
    return [" ".join([*draw.choices(WORDS, k=6), NAMES[label]]) for label in shown_labels], labels


def data_of(kind: str, train: Examples, dev: Examples, names: tuple[str, ...] = (), metrics: Any = None) -> TaskData:
    labels = LabelSet(names) if names else None
    return TaskData(KINDS[kind], metrics or KINDS[kind].metrics, labels, train, dev)


def rows_of(texts: list[str], targets: Sequence[Any], pairs: list[str] | None = None) -> LabelledTexts:
    return LabelledTexts(texts, pairs, targets, [f"row {row}" for row in range(len(texts))])


def test_labels_are_those_of_scikit_learn_by_hand() -> None:
    (texts, labels), (dev, expected) = make_texts(300, 0), make_texts(100, 1)
    best, floor = fit_baselines(data_of("classify", rows_of(texts, labels), rows_of(dev, expected), NAMES))
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    model = LogisticRegression(C=10).fit(vectorizer.fit_transform(texts), labels)
    theirs = model.predict(vectorizer.transform(dev))
    assert best.name == "TF-IDF + logistic regression"
    # scikit-learn ignores words of one letter, but "a" is not informative here.
    assert best.metrics["accuracy"] == pytest.approx(float(np.mean(theirs == expected)), abs=0.03)
    assert best.metrics["accuracy"] > 0.7
    assert floor.name == "majority label (land)"
    assert floor.metrics["accuracy"] == expected.count(0) / 100
    assert floor.metrics["macro_f1"] == pytest.approx(f1_score(expected, [0] * 100, average="macro"))


def test_several_labels_and_labels_without_a_training_row() -> None:
    texts = ["sea wind", "sea", "wind", "calm"] * 20
    flags = [(1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0)] * 20
    best, floor = fit_baselines(data_of("multilabel", rows_of(texts, flags), rows_of(texts, flags), ("a", "b", "c")))
    assert best.metrics == {"micro_f1": 1.0, "macro_f1": pytest.approx(2 / 3)}
    assert floor.name == "most frequent labels (a, b)"
    assert floor.metrics["micro_f1"] == pytest.approx(2 / 3)  # precision 1/2, recall 1


def test_numbers_of_pairs_are_those_of_scikit_learn_by_hand() -> None:
    draw = random.Random(0)
    firsts, seconds, scores = [], [], []
    for _ in range(240):
        words = draw.sample(WORDS, 6)
        kept = draw.randrange(7)
        firsts.append(" ".join(words))
        seconds.append(" ".join([*words[:kept], *draw.choices(WORDS, k=6 - kept)]))
        scores.append(kept / 6)
    train, dev = rows_of(firsts[:200], scores[:200], seconds[:200]), rows_of(firsts[200:], scores[200:], seconds[200:])
    best, floor = fit_baselines(data_of("regress", train, dev))
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\w+")
    vectorizer.fit([*firsts[:200], *seconds[:200]])
    sides = [(vectorizer.transform(one), vectorizer.transform(other)) for one, other in ((firsts, seconds),)]
    ((one, other),) = sides
    cosine = np.asarray(one.multiply(other).sum(1))
    theirs = Ridge().fit(hstack([one, other, cosine], format="csr")[:200], scores[:200])
    found = theirs.predict(hstack([one, other, cosine], format="csr")[200:])
    assert best.name == "TF-IDF + ridge regression"
    assert best.metrics["pearson"] > 0.8
    assert best.metrics["pearson"] > float(np.corrcoef(found, scores[200:])[0, 1]) - 0.02
    assert floor.name == f"mean ({np.mean(scores[:200]):.4g})"
    assert floor.metrics["pearson"] == 0.0


def test_texts_without_spaces_are_read_by_characters() -> None:
    assert has_spaces(["It rained.", "A small ship"])
    assert not has_spaces(["今天下雨了，我们回家。", "一艘小船在岩石附近沉没了 BERT"])
    texts = [f"我觉得{word}极了，{end}" for word in ("难看", "好看") for end in ("昨天看的", "今天看的", "真的")] * 5
    labels = [int("好看" in text) for text in texts]
    best, _ = fit_baselines(data_of("classify", rows_of(texts, labels), rows_of(["好看", "难看"], [1, 0]), ("-", "+")))
    assert best.metrics["accuracy"] == 1.0


def test_long_tables_are_sampled() -> None:
    texts = rows_of(["a"] * (baselines.MOST_ROWS + 5), list(range(baselines.MOST_ROWS + 5)))
    sampled = sample_rows(texts)
    assert len(sampled) == baselines.MOST_ROWS
    assert sampled.targets is not None
    assert list(sampled.targets) == sorted(set(sampled.targets))
    assert sample_rows(texts) == sampled
    assert sample_rows(sampled) is sampled


def tagged(words: list[str], tags: list[str], names: tuple[str, ...]) -> TaggedSentences:
    rows, labels = [line.split() for line in words], LabelSet(names)
    targets = [[labels.indices[tag] for tag in line.split()] for line in tags]
    numbers = list(range(len(rows)))
    empty = [["" for _ in row] for row in rows]
    return TaggedSentences(rows, targets, labels, [f"row {row}" for row in numbers], empty, numbers, Path("rows"))


def test_words_get_their_most_frequent_tag() -> None:
    names = ("B-PER", "I-PER", "O")
    train = tagged(["Ann Lee left", "Ann left", "Lee left Ann"], ["B-PER I-PER O", "B-PER O", "B-PER O O"], names)
    # Ann: B (2 of 3). Lee: I and B once each; ties go to the first, I. "Bob" is unseen: O.
    dev = tagged(["Ann Lee left", "Bob left Ann"], ["B-PER I-PER O", "B-PER O B-PER"], names)
    best, floor = fit_baselines(data_of("tag", train, dev, names))
    assert best.name == "most frequent tag of each word"
    # Two of three entities are found without false positives; five of six words are correct.
    assert best.metrics == pytest.approx({"f1": 0.8, "precision": 1.0, "recall": 2 / 3, "accuracy": 5 / 6})
    assert floor.name == "most frequent tag (O)"
    assert floor.metrics == pytest.approx({"f1": 0.0, "precision": 0.0, "recall": 0.0, "accuracy": 1 / 3})


def test_unseen_words_get_the_most_frequent_plain_tag() -> None:
    names = ("NOUN", "VERB")
    train = tagged(["dogs cats run"], ["NOUN NOUN VERB"], names)
    dev = tagged(["birds run"], ["NOUN VERB"], names)
    best, _ = fit_baselines(data_of("tag", train, dev, names, ("accuracy", "macro_f1")))
    assert best.metrics["accuracy"] == 1.0


def test_options_are_chosen_by_overlap_or_by_chance() -> None:
    rows = [
        Choice("1", "the ship sank near the rocks", ("rocks sank the ship", "he ate bread", "rain"), 0),
        Choice("2", "he ate bread", ("rain fell", "he ate"), 1),
    ]
    wrong = [Choice(row.place, row.prompt, row.options, 1 - (row.target or 0)) for row in rows]
    best, chance = fit_baselines(data_of("choose", Choices(rows), Choices(rows)))
    assert (best.name, best.metrics) == ("TF-IDF overlap with the prompt", {"accuracy": 1.0})
    assert chance.metrics == {"accuracy": pytest.approx((1 / 3 + 1 / 2) / 2)}
    # The strongest baseline comes first: overlap is always wrong here.
    assert fit_baselines(data_of("choose", Choices(wrong), Choices(wrong)))[0].name == "chance"


def test_answers_come_from_the_overlap_with_the_question() -> None:
    context = (
        "Rain fell all day in the north. Old Ahab was the captain of the ship. Nobody liked him, for bread was dear."
    )
    row = Question("1", "1", "Who was the captain of the ship?", context, ("Old Ahab", "Ahab"))
    none = Question("2", "2", "Why?", context)
    (best,) = fit_baselines(data_of("answer", Questions([row]), Questions([row])))
    assert best.name == "question-word overlap"
    # Two words, as long as the training answer: "Old Ahab" is adjacent to "was the captain of".
    assert best.metrics["f1"] == 1.0
    found = fit_baselines(data_of("answer", Questions([row]), Questions([none, none, row])))
    assert [one.name for one in found] == ["no answer", "question-word overlap"]
    assert found[0].metrics["f1"] == pytest.approx(2 / 3)


def evaluated(right: Sequence[int]) -> Evaluation:
    names = ("no", "yes")
    predictions = [names[one] for one in right]
    rows = MetricRows(("accuracy",), [1] * len(right), list(right), names)
    places = [f"row {row}" for row in range(len(right))]
    return Evaluation({"accuracy": float(np.mean(right))}, predictions, places, ["yes"] * len(right), rows=rows)


def test_difference_is_paired_on_the_same_rows() -> None:
    ours, theirs = evaluated([1] * 60 + [0] * 40), evaluated([1] * 80 + [0] * 20)
    assert theirs.rows is not None
    assert ours.rows is not None
    found = compare(ours, [Baseline("a bag of words", theirs.rows)])
    assert found is not None
    expected = paired_difference(ours.rows, theirs.rows, "accuracy")
    assert found["accuracy"] == 0.8
    assert found["interval"] == {"accuracy": theirs.intervals["accuracy"]}
    assert found["difference"] == {"value": pytest.approx(-0.2), "low": expected.low, "high": expected.high}
    assert found["difference"]["high"] < 0
    assert compare(ours, []) is None


def test_failure_of_the_baseline_is_reported_in_one_line() -> None:
    def fail() -> list[Baseline]:
        raise ValueError("empty vocabulary;\nperhaps the documents only contain stop words")

    listener = Listener()
    assert baseline_scores(evaluated([1, 0]), fail, listener) is None
    assert listener.said == [
        "no baseline: fitting it failed (ValueError: empty vocabulary; perhaps the documents only contain stop words); "
        "the model is unaffected"
    ]
