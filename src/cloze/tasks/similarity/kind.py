"""The kind ``similarity``: text vectors, trained on texts, on matching pairs, or on scored pairs.

Vectors are evaluated on pairs with scores or 0/1 labels (by the cosines of the pairs), or on questions with their
answers (by the rank of the right answer among all answers).

Dimensions: N pairs, Q questions, A answers, D vector size.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError, DataError, format_option
from cloze.tasks.classification.kind import LabelledTexts, read_own_texts
from cloze.tasks.in_memory import TableSource
from cloze.tasks.intervals import MeanRows, MetricRows
from cloze.tasks.kind import TaskKind
from cloze.tasks.metrics import score, spearman
from cloze.tasks.reports import Evaluation
from cloze.tasks.rows import RowSettings, Source, read_rows
from cloze.tasks.tables import open_table

Vectors = NDArray[np.float32]

# recall@k: the fraction of right answers among the k nearest answers.
RECALLS = (1, 5, 10)
# Number of questions whose cosines with all answers are in memory at the same time.
_QUESTIONS_AT_ONCE = 1024

SIMILARITY = TaskKind(
    name="similarity",
    summary="Train text vectors whose cosines are high for similar texts and low for others.",
    operation="embed",
    metrics=("spearman", "auc"),
    labelled=False,
    unlabelled_note="similarity has no labels to predict; it is only for cloze finetune (one run) and cloze evaluate",
)


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with similarity scores or 0/1 labels."""

    firsts: list[str]
    seconds: list[str]
    scores: list[float]
    places: list[str] = field(default_factory=list)
    skipped: int = 0  # rows that could not be used

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def binary(self) -> bool:
        """Whether the scores are 0/1 labels."""
        return set(self.scores) <= {0.0, 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics for these scores; the first one selects models."""
        return ("auc", "spearman") if self.binary else ("spearman",)

    @property
    def described(self) -> str:
        """A description of the scores, for messages."""
        return "0/1 labels" if self.binary else f"scores from {min(self.scores):g} to {max(self.scores):g}"

    def select(self, indices: Sequence[int]) -> "ScoredPairs":
        """Return the pairs at these indices, in this order."""
        firsts, seconds, places = (
            [column[index] for index in indices] for column in (self.firsts, self.seconds, self.places)
        )
        return ScoredPairs(firsts, seconds, [self.scores[index] for index in indices], places, self.skipped)

    def strata(self) -> list[float] | None:
        """Return the 0/1 labels, so that both parts of a split have the same proportion of them."""
        return self.scores if self.binary else None

    def documents(self) -> list[list[str]]:
        """Return the texts of each pair."""
        return [list(both) for both in zip(self.firsts, self.seconds, strict=True)]

    def score(self, firsts: Vectors, seconds: Vectors) -> dict[str, float]:
        """Return the metrics for the pairs' vectors, (N, D) each."""
        found = cosines(firsts, seconds).tolist()
        return score(self.metrics, self.scores, found)

    def evaluation(self, firsts: Vectors, seconds: Vectors) -> Evaluation:
        """Return the metrics for the pairs' vectors, and the cosine of each pair."""
        found = cosines(firsts, seconds)
        return Evaluation(
            self.score(firsts, seconds),
            [f"{value:.4f}" for value in found],
            self.places,
            [f"{value:g}" for value in self.scores],
            [{"text": one, "pair": other} for one, other in self.documents()],
            # Distance between a pair's rank by cosine and its rank by score.
            errors=np.abs(_ranks(found) - _ranks(np.array(self.scores))).tolist(),
            skipped=self.skipped,
            rows=MetricRows(self.metrics, self.scores, found.tolist()),
        )

    def sparse_rows(self, firsts: Any, seconds: Any) -> MetricRows:
        """Return the cosines of sparse vectors of length 1, (N, F) each, for metrics of resampled rows."""
        return MetricRows(self.metrics, self.scores, np.asarray(firsts.multiply(seconds).sum(1)).ravel().tolist())


@dataclass(frozen=True)
class QuestionAnswers:
    """Distinct questions and distinct answers; a question may have several answers, and questions may share answers."""

    firsts: list[str]  # the questions
    seconds: list[str]  # the answers, among which every question is searched
    right: list[tuple[int, ...]]  # indices of each question's right answers
    places: list[str] = field(default_factory=list)
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics; the first one selects models."""
        return ("mrr", *(f"recall@{count}" for count in RECALLS))

    def score(self, firsts: Vectors, seconds: Vectors) -> dict[str, float]:
        """Return the metrics for vectors of the questions, (Q, D), and of the answers, (A, D)."""
        return _retrieval_scores(self._ranks(_unit(firsts), _unit(seconds))[0])

    def evaluation(self, firsts: Vectors, seconds: Vectors) -> Evaluation:
        """Return the metrics for the vectors, and the nearest answer to each question."""
        ranks, nearest = self._ranks(_unit(firsts), _unit(seconds))
        expected = [best if best in right else right[0] for best, right in zip(nearest, self.right, strict=True)]
        return Evaluation(
            _retrieval_scores(ranks),
            [self.seconds[answer] for answer in nearest],
            self.places,
            [self.seconds[answer] for answer in expected],
            [{"text": question} for question in self.firsts],
            skipped=self.skipped,
            rows=MeanRows(_row_scores(ranks)),
        )

    def sparse_rows(self, firsts: Any, seconds: Any) -> MeanRows:
        """Return the metrics of each question for sparse vectors of length 1, (Q, F) and (A, F)."""
        return MeanRows(_row_scores(self._ranks(firsts, seconds)[0]))

    def _ranks(self, questions: Any, answers: Any) -> tuple[list[list[int]], list[int]]:
        """Return the ranks of each question's right answers (from 1, best first), and its nearest answer.

        The vectors have length 1 and are dense or sparse.
        """
        ranks: list[list[int]] = []
        nearest: list[int] = []
        for start in range(0, questions.shape[0], _QUESTIONS_AT_ONCE):
            found = questions[start : start + _QUESTIONS_AT_ONCE] @ answers.T
            found = found if isinstance(found, np.ndarray) else found.toarray()
            nearest += found.argmax(1).tolist()
            for row, right in zip(found, self.right[start : start + _QUESTIONS_AT_ONCE], strict=True):
                ranks.append(_right_ranks(row, right))
        return ranks, nearest


def _right_ranks(found: NDArray[np.float64], right: Sequence[int]) -> list[int]:
    """Return the ranks of the right answers. Ties with wrong answers count against them, or constants would win."""
    own = np.sort(found[list(right)])[::-1]
    others = np.delete(found, list(right))
    return [int((others >= value).sum()) + place for place, value in enumerate(own, start=1)]


def _retrieval_scores(ranks: Sequence[Sequence[int]]) -> dict[str, float]:
    return {name: float(np.mean(values)) for name, values in _row_scores(ranks).items()}


def _row_scores(ranks: Sequence[Sequence[int]]) -> dict[str, list[float]]:
    """Return the value of each metric for each question."""
    recalls = {
        f"recall@{count}": [float(np.mean([rank <= count for rank in row])) for row in ranks] for count in RECALLS
    }
    return {"mrr": [1 / row[0] for row in ranks]} | recalls


def has_labels(source: Source, path: TableSource) -> bool:
    """Return whether the rows of a table have labels: a label column was named, or one has the default name."""
    if "label" in source.columns_named():
        return True
    with closing(open_table(path, source.header(path))) as table:
        columns = table.columns
        if columns is None:
            first = next(table, None)
            columns = () if first is None else tuple(first.cells)
    return source.label in columns


def read_scored_pairs(path: TableSource, rows: RowSettings) -> ScoredPairs:
    """Read a table with columns for the texts, the second texts and the scores."""
    if rows.pair is None:
        raise ConfigError(f"{path}: {format_option('pair')} is missing; name the column with the second texts")
    examples = read_own_texts("number", rows.source(SIMILARITY.name, path), "train", None).examples
    assert isinstance(examples, LabelledTexts)
    assert examples.pairs is not None
    assert examples.targets is not None
    scores = [float(target) for target in examples.targets]
    return ScoredPairs(examples.texts, examples.pairs, scores, examples.places, examples.skipped)


def read_rated(source: Source, path: TableSource) -> ScoredPairs | QuestionAnswers:
    """Read evaluation data: pairs with scores or 0/1 labels or, without a label column, questions with answers."""
    columns = RowSettings(source.text, source.pair, source.label, columns=source.columns, on_bad_row=source.on_bad_row)
    if source.pair is None:
        raise ConfigError(f"{path}: {format_option('pair')} is missing; name the column with the second texts")
    if not has_labels(source, path):
        return _read_questions(source, path)
    pairs = read_scored_pairs(path, columns)
    if pairs.binary and len(set(pairs.scores)) < 2:
        raise DataError(
            f"{path}: every label in {source.label!r} is {pairs.scores[0]:g}; expected both 0 and 1, or scores; leave "
            "the column out to evaluate how well each first text retrieves its second"
        )
    return pairs


def _read_questions(source: Source, path: TableSource) -> QuestionAnswers:
    on_bad_row = source.on_bad_row or "stop"
    rows = read_rows(path, text=source.text, pair=source.pair, on_bad_row=on_bad_row, header=source.header(path))
    answers: dict[str, int] = {}
    questions: dict[str, dict[int, None]] = {}
    places: dict[str, str] = {}
    for row in rows:
        assert row.pair is not None
        questions.setdefault(row.text, {})[answers.setdefault(row.pair, len(answers))] = None
        places.setdefault(row.text, row.place)
    if len(answers) < 2:
        raise DataError(f"{path}: {len(answers)} different second texts; expected at least 2 to choose among")
    right = [tuple(found) for found in questions.values()]
    return QuestionAnswers(list(questions), list(answers), right, list(places.values()), rows.skipped)


def cosines(firsts: Vectors, seconds: Vectors) -> NDArray[np.float64]:
    """Return the cosine of the two vectors in each row: (N, D), (N, D) -> (N,)."""
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    products: NDArray[np.float64] = (firsts.astype(np.float64) * seconds).sum(1)
    products /= np.maximum(lengths, 1e-12)
    return products


def agreement(firsts: Vectors, seconds: Vectors, scores: Sequence[float]) -> float:
    """Return Spearman's correlation between the cosines and the scores."""
    return spearman(scores, cosines(firsts, seconds).tolist())


def _unit(vectors: Vectors) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = vectors.astype(np.float64) / np.maximum(lengths, 1e-12)
    return unit


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value as a fraction from 0 to 1; equal values have the same rank."""
    ordered = np.sort(values)
    middles = (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
    return np.asarray(middles / len(values), np.float64)
