"""The kind ``answer``: extractive question answering, which finds the span of a text that answers a question.

Its metrics are those of the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018. All scores are between 0 and 1; the
scripts print percentages. The name of the metric for exact matches selects the script: exact_match, exact or em.

There is one deviation. CMRC's script tokenizes non-Chinese text with NLTK. Here it is split into words, numbers and
other characters, which differs only for contractions and the like, which are rare in that data.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cloze.errors import DataError
from cloze.models import SHIPPED_MODEL
from cloze.progress import Progress
from cloze.tasks.answering.examples import (
    Questions,
    answer_items,
    look_for,
    read_own_questions,
    read_squad,
    read_unanswered,
)
from cloze.tasks.examples import Item
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import Source
from cloze.text import Tokenizer

RowScoresByMetric = dict[str, list[float]]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# The characters that CMRC's script removes; half of the Chinese ellipsis is not among them.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# A Chinese character, a number, a word, or any other character except whitespace.
_SEGMENT = re.compile(r"[\u4e00-\u9fa5]|\d+(?:[.,]\d+)+|[^\W\u4e00-\u9fa5]+|[^\w\s]")


@dataclass(frozen=True)
class AnswerPrediction:
    """The predicted answer to a question, and its gold answers; an unanswerable question has none.

    ``null_score`` is the logit of "no answer" minus that of the best answer.
    """

    answers: Sequence[str]
    predicted: str
    null_score: float = 0.0


def normalized(answer: str) -> str:
    """Lower-case an answer and remove punctuation, articles and extra whitespace."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _squad_rows(predictions: Sequence[AnswerPrediction]) -> RowScoresByMetric:
    """Return exact match and F1 as in SQuAD 1.1."""
    f1 = [
        max((_bag_f1(normalized(right).split(), _words(prediction)) for right in prediction.answers), default=0.0)
        for prediction in predictions
    ]
    return {"f1": f1, "exact_match": [_first_exact_match(prediction) for prediction in predictions]}


def _squad2_rows(predictions: Sequence[AnswerPrediction]) -> RowScoresByMetric:
    """Return exact match and F1 as in SQuAD 2.0: of all questions, of those with answers and of those without."""
    exact, f1 = (
        [exact_match(prediction) for prediction in predictions],
        [word_f1(prediction) for prediction in predictions],
    )
    answerable = [bool(prediction.answers) for prediction in predictions]
    scores = {"f1": f1, "exact": exact}
    for name, kind in (("HasAns", True), ("NoAns", False)):
        for metric, values in (("exact", exact), ("f1", f1)) if kind in answerable else ():
            rows = zip(values, answerable, strict=True)
            scores[f"{name}_{metric}"] = [value if having is kind else math.nan for value, having in rows]
    return scores


def _cmrc_rows(predictions: Sequence[AnswerPrediction]) -> RowScoresByMetric:
    """Return exact match, F1 by longest common substring, and their mean, as in CMRC 2018."""
    f1 = [
        max((_common_substring_f1(right, prediction.predicted) for right in prediction.answers), default=0.0)
        for prediction in predictions
    ]
    exact = [_chinese_exact_match(prediction) for prediction in predictions]
    return {"f1": f1, "em": exact, "average": [(one + other) / 2 for one, other in zip(exact, f1, strict=True)]}


_SCRIPTS: Mapping[str, Callable[[Sequence[AnswerPrediction]], RowScoresByMetric]] = {
    "exact_match": _squad_rows,
    "exact": _squad2_rows,
    "em": _cmrc_rows,
}


def row_scores(metrics: Sequence[str], predictions: Sequence[AnswerPrediction]) -> RowScoresByMetric:
    """Return each question's scores by the script with these metrics; NaN where a score excludes the question."""
    if not predictions:
        raise DataError("no questions to score; expected at least one question with answers")
    (script,) = (script for name, script in _SCRIPTS.items() if name in metrics)
    return script(predictions)


def score_answers(metrics: Sequence[str], predictions: Sequence[AnswerPrediction]) -> dict[str, float]:
    """Return the scores of the script with these metrics; for SQuAD 2.0 also those at the best thresholds."""
    rows = row_scores(metrics, predictions)
    scores = {name: _mean([value for value in values if not math.isnan(value)]) for name, values in rows.items()}
    if "exact" in rows and not all(prediction.answers for prediction in predictions):
        for name in ("exact", "f1"):
            best = best_threshold(predictions, rows[name])
            scores |= {f"best_{name}": best.score, f"best_{name}_thresh": best.official}
    return scores


def is_right(metrics: Sequence[str], prediction: AnswerPrediction) -> bool:
    """Return whether the prediction is an exact match according to the script with these metrics."""
    (measure,) = (measure for name, measure in _EXACT.items() if name in metrics)
    return measure(prediction) == 1


def exact_match(prediction: AnswerPrediction) -> float:
    """Return 1.0 if the normalized prediction equals a gold answer, else 0.0 (SQuAD 2.0)."""
    return float(normalized(prediction.predicted) in map(normalized, _gold_answers(prediction)))


def _first_exact_match(prediction: AnswerPrediction) -> float:
    return float(normalized(prediction.predicted) in map(normalized, prediction.answers))


def _chinese_exact_match(prediction: AnswerPrediction) -> float:
    return float(_without_marks(prediction.predicted) in map(_without_marks, prediction.answers))


_EXACT: Mapping[str, Callable[[AnswerPrediction], float]] = {
    "exact_match": _first_exact_match,
    "exact": exact_match,
    "em": _chinese_exact_match,
}


def word_f1(prediction: AnswerPrediction) -> float:
    """Return the word F1 with the most similar gold answer (SQuAD 2.0)."""
    return max(_bag_f1_or_empty(normalized(right).split(), _words(prediction)) for right in _gold_answers(prediction))


@dataclass(frozen=True)
class Threshold:
    """The best score, the threshold of the official script, and one halfway between two neighbouring questions."""

    score: float
    official: float
    between: float


def best_threshold(predictions: Sequence[AnswerPrediction], scores: Sequence[float]) -> Threshold:
    """Find the null score above which predicting "no answer" maximizes the mean score.

    Like the official script, this answers one more question at a time, in the order of their null scores. If answering
    none is best, the script returns 0.0 regardless of the null scores; ``between`` is correct in this case too.
    """
    order = sorted(range(len(predictions)), key=lambda index: predictions[index].null_score)
    nulls = [predictions[index].null_score for index in order]
    current = best = float(sum(not prediction.answers for prediction in predictions))
    answered = 0
    for count, index in enumerate(order, start=1):
        current += scores[index] if predictions[index].answers else -float(bool(predictions[index].predicted))
        if current > best:
            best, answered = current, count
    below = nulls[answered - 1] if answered else nulls[0] - 2
    above = nulls[answered] if answered < len(nulls) else below + 2
    return Threshold(best / len(predictions), nulls[answered - 1] if answered else 0.0, (below + above) / 2)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _words(prediction: AnswerPrediction) -> list[str]:
    return normalized(prediction.predicted).split()


def _gold_answers(prediction: AnswerPrediction) -> list[str]:
    """Return the gold answers that are not empty after normalisation, or [""] if there are none."""
    return [answer for answer in prediction.answers if normalized(answer)] or [""]


def _bag_f1(right: Sequence[str], said: Sequence[str]) -> float:
    shared = sum((Counter(right) & Counter(said)).values())
    return _harmonic(shared, len(right), len(said))


def _bag_f1_or_empty(right: Sequence[str], said: Sequence[str]) -> float:
    return _bag_f1(right, said) if right and said else float(not right and not said)


def _harmonic(shared: int, right: int, said: int) -> float:
    return 2 * shared / (right + said) if shared else 0.0


def _without_marks(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


def _common_substring_f1(right: str, said: str) -> float:
    first, second = _segments(right), _segments(said)
    longest = 0
    row = [0] * (len(second) + 1)  # length of the common substring that ends at each pair of segments
    for segment in first:
        row = [0, *(row[place] + 1 if segment == other else 0 for place, other in enumerate(second))]
        longest = max(longest, *row)
    return _harmonic(longest, len(first), len(second))


def _segments(text: str) -> list[str]:
    return _SEGMENT.findall(_without_marks(text))


# -- the descriptor ----------------------------------------------------------------------------------------------------


def _items(examples: Questions, tokenizer: Tokenizer, options: ReadingOptions, progress: Progress) -> list[Item]:
    return answer_items(examples, tokenizer, options.stride, progress)


def _read_texts(source: Source, path: TableSource) -> list[PlacedTexts]:
    return [(row.place, row.texts) for row in read_unanswered(source, path).rows]


def read_other_splits(files: Mapping[str, str], always: bool, source: Source) -> list[PlacedTexts]:
    """Return the questions of all splits other than train and dev whose files exist."""
    splits = [split for split, name in files.items() if split not in ("train", "dev") and look_for(source.path, name)]
    examples = [read_squad(files, always, source, split, None).examples for split in splits]
    return [placed for rows in examples for placed in zip(rows.places, rows.documents(), strict=True)]


_decoded = partial(deferred, "cloze.tasks.answering.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

ANSWER = TaskKind(
    name="answer",
    summary="Find the span of a text that answers a question.",
    operation="answer",
    head="span",
    inputs="question",
    targets="span",
    metrics=("f1", "exact"),
    read=read_own_questions,
    items=_items,
    evaluate=_decoded("evaluate_answers"),
    baseline=_baseline("fit_window"),
    floor=_baseline("answer_none"),
    respond=_decoded("respond"),
    read_texts=_read_texts,
    settings=frozenset({"stride", "longest_answer"}),
    item_noun="windows, with their questions,",
    answers="a span of the text",
    fit_on_dev=_decoded("fit_threshold"),
    start=SHIPPED_MODEL,
)
