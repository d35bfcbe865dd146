"""Simple baselines that a fine-tuned model should beat: fitted on the same training rows, scored on the same dev rows.

Every kind of task may have two (``TaskKind.baseline`` and ``TaskKind.floor``). One learns from the words (TF-IDF with
logistic or ridge regression, the most frequent tag per word, overlapping words). The other ignores the texts (the
majority label, the mean, chance). A run is compared with the better one, by the main metric, with a paired bootstrap
over the dev rows. Text vectors are compared with TF-IDF vectors.

Time is bounded: at most 20,000 training rows, 5,000 characters per text and 50,000 features are used. scikit-learn is
imported only when it is used.

Dimensions: N rows, F features.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cloze.tasks.answering.examples import Question, Questions
from cloze.tasks.answering.kind import AnswerPrediction, row_scores
from cloze.tasks.choice.kind import Choices
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import AnyExamples, LabelSet
from cloze.tasks.intervals import MeanRows, MetricRows, RowScores, bootstrap_intervals, paired_difference
from cloze.tasks.tagging.kind import TaggedSentences
from cloze.tasks.tagging.sequences import OUTSIDE, TaggedRows, have_entity_prefixes

if TYPE_CHECKING:
    from cloze.progress import Progress
    from cloze.tasks.registry import TaskData
    from cloze.tasks.reports import Evaluation
    from cloze.tasks.similarity.kind import QuestionAnswers, ScoredPairs

MOST_ROWS = 20_000
_MOST_CHARACTERS = 5_000  # per text
_MOST_FEATURES = 50_000
_MOST_WEIGHTS = 2_000_000  # features times labels
_MOST_STEPS = 200
# Weak regularization: TF-IDF rows have length 1, and the default of 1 underfits a few hundred of them.
_INVERSE_REGULARIZATION = 10.0
# Texts with a smaller fraction of whitespace are written without spaces between words, as Chinese is.
_WHITESPACE = 0.05
_TOKEN = r"[^\W_]+|[^\w\s]"
# A Chinese character, another word, or a punctuation mark.
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+|[^\w\s]")
_SEED = 0


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline: its name, and its predictions for the dev rows as scores per row."""

    name: str
    rows: RowScores

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The scores on the dev rows, the main metric first."""
        return {name: float(values[0]) for name, values in self.rows.scores(np.ones((1, len(self.rows)))).items()}

    @property
    def main(self) -> float:
        """The score in the main metric."""
        return next(iter(self.metrics.values()))


def fit_baselines(data: "TaskData") -> list[Baseline]:
    """Fit the baselines of a task on its training rows and score them on its dev rows, best first."""
    train = sample_rows(data.train)
    fitters = [fit for fit in (data.kind.baseline, data.kind.floor) if fit is not None]
    found = [fit(train, data.dev, data.labels, data.metrics) for fit in fitters]
    return sorted((one for one in found if one is not None), key=lambda one: -one.main)


def sample_rows(examples: AnyExamples) -> AnyExamples:
    """Return at most 20,000 rows, sampled with a fixed seed."""
    if len(examples) <= MOST_ROWS:
        return examples
    chosen = np.random.default_rng(_SEED).choice(len(examples), MOST_ROWS, replace=False)
    return examples.select(sorted(chosen.tolist()))


def compare(evaluation: "Evaluation", baselines: Sequence[Baseline]) -> dict[str, Any] | None:
    """Compare an evaluation with the best baseline on the same rows.

    Args:
        evaluation: The evaluation of the model.
        baselines: The baselines, best first.

    Returns:
        The entry ``baseline`` of ``eval_results.json``: name, scores, their 95 % intervals, the model's lead in the
        main metric, and the scores of the other baselines. None without a baseline or without scores per row.
    """
    if not baselines or evaluation.rows is None:
        return None
    best, metric = baselines[0], next(iter(evaluation.metrics))
    difference = paired_difference(evaluation.rows, best.rows, metric)
    return {
        "name": best.name,
        **best.metrics,
        "interval": bootstrap_intervals(best.rows),
        "difference": {"value": difference.value, "low": difference.low, "high": difference.high},
        "others": [{"name": one.name, **one.metrics} for one in baselines[1:]],
    }


def baseline_scores(
    evaluation: "Evaluation", fit: Callable[[], Sequence[Baseline]], progress: "Progress"
) -> dict[str, Any] | None:
    """Fit baselines and compare; report a failure in one line instead of raising it, so that the model is not lost."""
    try:
        return compare(evaluation, fit())
    except Exception as error:
        reason = " ".join(str(error).split())
        progress.say(f"no baseline: fitting it failed ({type(error).__name__}: {reason:.200}); the model is unaffected")
        return None


def compare_with_floor(evaluation: "Evaluation", floor: Baseline | None) -> dict[str, Any] | None:
    """Compare with a floor computed on the evaluated rows themselves, if there are no training rows."""
    return None if floor is None else compare(evaluation, [Baseline(f"{floor.name} of these rows", floor.rows)])


# -- texts and pairs: labels, label sets, numbers ----------------------------------------------------------------------

TextTargets = Literal["index", "flags", "number"]
_TEXT_BASELINES = {
    "index": "TF-IDF + logistic regression",
    "flags": "TF-IDF + logistic regression",
    "number": "TF-IDF + ridge regression",
}


def fit_tfidf(
    targets: TextTargets,
    train: LabelledTexts,
    dev: LabelledTexts,
    labels: LabelSet | None,
    metrics: Sequence[str],
) -> Baseline:
    """Fit a linear model to TF-IDF features."""
    assert train.targets is not None
    vectorizer = _fit_vectorizer([*train.texts, *(train.pairs or ())], 0 if labels is None else len(labels))
    features = [_text_features(rows, vectorizer) for rows in (train, dev)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels without rows and unfinished optimization are fine for a baseline
        predictions = _fit_linear(targets, features[0], np.asarray(train.targets), features[1])
    return Baseline(_TEXT_BASELINES[targets], _text_rows(dev, predictions, labels, metrics))


def _fit_linear(targets: TextTargets, train: Any, values: Any, dev: Any) -> list[Any]:
    """Fit a linear model from features to targets, (N,) or flags, and predict the dev rows."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    models: dict[TextTargets, Any] = {
        "index": LogisticRegression(C=_INVERSE_REGULARIZATION, max_iter=_MOST_STEPS, tol=1e-3),
        "flags": OneVsRestClassifier(LogisticRegression(C=_INVERSE_REGULARIZATION, solver="liblinear")),
        "number": Ridge(),
    }
    predicted = models[targets].fit(train, values).predict(dev)
    return [tuple(map(float, row)) for row in predicted] if targets == "flags" else list(predicted.tolist())


def _fit_vectorizer(texts: Sequence[str], labels: int = 0) -> Any:
    """Learn the words and word pairs of the texts; for text without spaces, character n-grams up to three."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = _shortened(texts)
    most = min(_MOST_FEATURES, _MOST_WEIGHTS // max(1, labels))
    units: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 3)}
    if has_spaces(texts):
        units = {"token_pattern": _TOKEN, "ngram_range": (1, 2)}
    return TfidfVectorizer(**units, sublinear_tf=True, max_features=most, dtype=np.float64).fit(texts)


def _text_features(rows: LabelledTexts, vectorizer: Any) -> Any:
    """Return TF-IDF features, (N, F); for pairs, those of both texts, product, difference and similarities."""
    from scipy.sparse import csr_array, hstack

    first = vectorizer.transform(_shortened(rows.texts))
    if rows.pairs is None:
        return first
    second = vectorizer.transform(_shortened(rows.pairs))
    product, either = first.multiply(second), (first + second).sign().sum(1)
    shared = product.sign().sum(1)
    columns = [product.sum(1), np.divide(shared, np.maximum(either, 1)), _length_ratios(rows)]
    dense = np.column_stack([np.asarray(column, np.float64).ravel() for column in columns])
    return hstack([first, second, product, abs(first - second), csr_array(dense)], format="csr")


def _length_ratios(rows: LabelledTexts) -> list[float]:
    assert rows.pairs is not None
    lengths = [sorted((len(one), len(other))) for one, other in zip(rows.texts, rows.pairs, strict=True)]
    return [shorter / max(longer, 1) for shorter, longer in lengths]


def has_spaces(texts: Sequence[str]) -> bool:
    """Return whether the texts have spaces between words."""
    spaces = sum(sum(map(str.isspace, text)) for text in texts)
    return spaces >= _WHITESPACE * sum(map(len, texts))


def _shortened(texts: Sequence[str]) -> list[str]:
    return [text[:_MOST_CHARACTERS] for text in texts]


def _text_rows(
    dev: LabelledTexts, predictions: Sequence[Any], labels: LabelSet | None, metrics: Sequence[str]
) -> MetricRows:
    assert dev.targets is not None
    return MetricRows(metrics, dev.targets, predictions, () if labels is None else labels.names)


def fit_constant(
    targets: TextTargets,
    train: LabelledTexts,
    dev: LabelledTexts,
    labels: LabelSet | None,
    metrics: Sequence[str],
) -> Baseline:
    """Predict the majority label, the most frequent set of labels, or the mean."""
    assert train.targets is not None
    if targets == "number":
        value: Any = float(np.mean(train.targets))
        name = f"mean ({value:.4g})"
    else:
        assert labels is not None
        ((value, _),) = Counter(train.targets).most_common(1)
        chosen = [value] if targets == "index" else [index for index, flag in enumerate(value) if flag]
        names = ", ".join(labels.names[int(index)] for index in chosen) or "none"
        name = f"majority label ({names})" if targets == "index" else f"most frequent labels ({names})"
    return Baseline(name, _text_rows(dev, [value] * len(dev), labels, metrics))


# -- vectors -----------------------------------------------------------------------------------------------------------


def tfidf_vectors(texts: Sequence[str]) -> Any:
    """Return the TF-IDF vectors of texts, of length 1 and sparse, (N, F)."""
    return _fit_vectorizer(texts).transform(_shortened(texts))


def score_cosines(rated: "ScoredPairs | QuestionAnswers") -> Baseline:
    """Score the cosines of TF-IDF vectors on scored pairs or on questions with answers, without training rows."""
    vectorizer = _fit_vectorizer([*rated.firsts, *rated.seconds])
    firsts, seconds = (vectorizer.transform(_shortened(texts)) for texts in (rated.firsts, rated.seconds))
    return Baseline("TF-IDF cosine", rated.sparse_rows(firsts, seconds))


# -- tags --------------------------------------------------------------------------------------------------------------


def fit_word_tags(
    train: TaggedSentences,
    dev: TaggedSentences,
    labels: LabelSet,
    metrics: Sequence[str],  # noqa: ARG001 (the tags determine them)
) -> Baseline:
    """Predict each word's most frequent tag; for an unseen word O or, without O, the most frequent tag overall."""
    counts: dict[str, Counter[int]] = {}
    for words, tags in zip(train.words, train.targets, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    best = {word: found.most_common(1)[0][0] for word, found in counts.items()}
    unseen = _unseen_tag(train, labels)
    return _tagged(
        "most frequent tag of each word", dev, [[best.get(word, unseen) for word in row] for row in dev.words]
    )


def fit_one_tag(
    train: TaggedSentences,
    dev: TaggedSentences,
    labels: LabelSet,
    metrics: Sequence[str],  # noqa: ARG001 (the tags determine them)
) -> Baseline:
    """Predict the most frequent tag for every word."""
    ((tag, _),) = Counter(tag for row in train.targets for tag in row).most_common(1)
    return _tagged(f"most frequent tag ({labels.names[tag]})", dev, [[tag] * len(row) for row in dev.words])


def _unseen_tag(train: TaggedSentences, labels: LabelSet) -> int:
    if OUTSIDE in labels.indices and have_entity_prefixes(labels.names):
        return labels.indices[OUTSIDE]
    return Counter(tag for row in train.targets for tag in row).most_common(1)[0][0]


def _tagged(name: str, dev: TaggedSentences, predicted: Sequence[Sequence[int]]) -> Baseline:
    names = dev.labels.names
    expected, found = ([[names[tag] for tag in row] for row in rows] for rows in (dev.targets, predicted))
    return Baseline(name, TaggedRows(dev.labels, expected, found))


# -- choices -----------------------------------------------------------------------------------------------------------


def fit_overlap(
    train: Choices,
    dev: Choices,
    labels: LabelSet | None,  # noqa: ARG001 (options have no labels)
    metrics: Sequence[str],
) -> Baseline:
    """Choose the option whose TF-IDF vector is most similar to the prompt's; ties go to the first."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = _shortened([text for row in train.rows for text in row.texts])
    analyzer: dict[str, Any] = {"token_pattern": _TOKEN} if has_spaces(texts) else {"analyzer": "char"}
    vectorizer = TfidfVectorizer(**analyzer, sublinear_tf=True, max_features=_MOST_FEATURES).fit(texts)
    prompts = vectorizer.transform(_shortened([row.prompt for row in dev.rows for _ in row.options]))
    options = vectorizer.transform(_shortened([option for row in dev.rows for option in row.options]))
    found = iter(np.asarray(prompts.multiply(options).sum(1)).ravel().tolist())
    chosen = [int(np.argmax([next(found) for _ in row.options])) for row in dev.rows]
    return Baseline("TF-IDF overlap with the prompt", MetricRows(metrics, [row.target for row in dev.rows], chosen))


def expect_chance(
    train: Choices,  # noqa: ARG001 (nothing is learned)
    dev: Choices,
    labels: LabelSet | None,  # noqa: ARG001
    metrics: Sequence[str],
) -> Baseline:
    """Return the expected accuracy of a random choice."""
    return Baseline("chance", MeanRows({metrics[0]: [1 / len(row.options) for row in dev.rows]}))


# -- answers -----------------------------------------------------------------------------------------------------------


def fit_window(
    train: Questions,
    dev: Questions,
    labels: LabelSet | None,  # noqa: ARG001 (answers have no labels)
    metrics: Sequence[str],
) -> Baseline:
    """Answer with the words of the context that are nearest to words of the question (after Richardson et al. 2013).

    The answer has as many words as the median training answer. A window of the context scores, for each question word,
    one divided by the distance to its nearest occurrence; question words inside the window lower the score.
    """
    lengths = [len(_WORD.findall(row.answers[0])) for row in train.rows if row.answers]
    size = max(1, int(np.median(lengths))) if lengths else 1
    return _answered("question-word overlap", dev, [_likely_window(row, size) for row in dev.rows], metrics)


def answer_none(
    train: Questions,  # noqa: ARG001 (nothing is learned)
    dev: Questions,
    labels: LabelSet | None,  # noqa: ARG001
    metrics: Sequence[str],
) -> Baseline | None:
    """Give no answer to any question; None if every question has an answer."""
    has_none = not all(row.answers for row in dev.rows)
    return _answered("no answer", dev, [""] * len(dev), metrics) if has_none else None


def _likely_window(row: Question, size: int) -> str:
    """Return the window of ``size`` words in the context that is nearest to words of the question."""
    keywords = {word.lower() for word in _WORD.findall(row.question) if word[0].isalnum()}
    words = list(_WORD.finditer(row.context[:_MOST_CHARACTERS]))
    found = [(place, word) for place, match in enumerate(words) if (word := match.group().lower()) in keywords]
    best, answer = -1.0, ""
    for start in range(max(1, len(words) - size + 1) if words else 0):
        stop = min(start + size, len(words))
        if not (words[start].group()[0].isalnum() and words[stop - 1].group()[0].isalnum()):
            continue
        nearness: dict[str, float] = {}
        for place, word in found:
            # An answer rarely repeats the question, so a question word inside the window counts against it.
            near = -1.0 if start <= place < stop else 1 / (start - place if place < start else place - stop + 1)
            nearness[word] = near if near < 0 else max(near, nearness.get(word, 0.0))
        if (total := sum(nearness.values())) > best:
            best, answer = total, row.context[words[start].start() : words[stop - 1].end()]
    return answer


def _answered(name: str, dev: Questions, answers: Sequence[str], metrics: Sequence[str]) -> Baseline:
    predictions = [AnswerPrediction(row.answers, answer) for row, answer in zip(dev.rows, answers, strict=True)]
    return Baseline(name, MeanRows(row_scores(metrics, predictions)))
