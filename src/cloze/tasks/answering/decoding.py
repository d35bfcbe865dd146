"""Predict the span of a text that answers a question (section 4.2 of the paper), and evaluate such models.

In every window, the most likely starts are paired with the most likely ends, as in the original code: an answer must
not end before it starts, and is at most 30 tokens long unless the model was fine-tuned with another limit. The score of
a span is the sum of its two logits. "No answer" is [CLS] as start and end, with its lowest score over all windows.

There is one deviation. Where windows overlap, a span is scored in the window with the most context around the whole
span. The original takes the window with the most context around the first token, so it never finds an answer that
extends beyond that window, even if the next window contains it.

Dimensions: N spans, T tokens of a window, W windows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.model.losses import task_logits
from cloze.options import LONGEST_ANSWER
from cloze.tasks.answering.examples import Questions, Reading, read_contexts
from cloze.tasks.answering.kind import (
    ANSWER,
    AnswerPrediction,
    best_threshold,
    is_right,
    row_scores,
    score_answers,
    word_f1,
)
from cloze.tasks.intervals import MeanRows
from cloze.tasks.kind import Predictor, TaskLabels
from cloze.tasks.reports import Evaluation

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Pair = tuple[float, int, int, float, float]  # score, first and last token of the context, their two logits

BEST = 20
# For models without a threshold: the odds of "no answer" against the best answer above which no answer is predicted.
EVEN = 1.0
# Differences of logits are clipped to this value, so that their exponentials are finite.
FARTHEST = 500.0


@dataclass(frozen=True)
class Answer:
    """A span of a text that answers a question, in characters; empty if there is no answer."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Candidate:
    """A span of the context, or the empty span, with the logits of its start and end."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The sum of both logits, by which candidates are ranked."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Ranking:
    """Candidate answers to a question, best first, and the candidate for "no answer"."""

    candidates: list[Candidate]
    nothing: Candidate

    @property
    def null_score(self) -> float:
        """Score of "no answer" minus the score of the best candidate."""
        return self.nothing.score - self.candidates[0].score if self.candidates else math.inf

    def decided(self, threshold: float | None) -> list[tuple[Candidate, float]]:
        """Return candidates with their probabilities, the prediction first.

        Args:
            threshold: The odds of "no answer" against the best candidate above which "no answer" is predicted; if None,
                it is predicted only without any candidate.
        """
        none_counts = threshold is not None or not self.candidates
        ranked = sorted(self.candidates + [self.nothing] * none_counts, key=lambda one: -one.score)
        exponents = [math.exp(one.score - ranked[0].score) for one in ranked]
        shares = [(one, value / sum(exponents)) for one, value in zip(ranked, exponents, strict=True)]
        prediction = self.nothing if self.says_none(threshold) else self.candidates[0]
        return sorted(shares, key=lambda one: one[0] is not prediction)  # stable: the others keep their order

    def says_none(self, threshold: float | None) -> bool:
        """Return whether "no answer" is predicted."""
        limit = math.inf if threshold is None else _logarithm(threshold)
        return not self.candidates or self.null_score > limit


def answer_all(
    predictor: Predictor, questions: Sequence[str], contexts: Sequence[str], top: int = 1, longest: int | None = None
) -> list[list[Answer]]:
    """Return the best answers to each question in its context; an empty answer if the model predicts none."""
    if top < 1:
        raise RequestError(f"top is {top}; expected at least 1")
    threshold = predictor.task.threshold if predictor.task else None
    return [
        [Answer(one.text, one.start, one.end, share) for one, share in ranking.decided(threshold)[:top]]
        for ranking in rank_answers(predictor, questions, contexts, longest)
    ]


def respond(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the best answers to each (question, context) as JSON values; the option ``top`` is their number."""
    questions, contexts = zip(*inputs, strict=True)
    ranked = answer_all(predictor, questions, contexts, options.get("top", 1))
    return [[asdict(answer) for answer in answers] for answers in ranked]


def rank_answers(
    predictor: Predictor, questions: Sequence[str], contexts: Sequence[str], longest: int | None = None
) -> list[Ranking]:
    """Rank the candidate answers of each question; ``longest`` defaults to the limit the model was fine-tuned with."""
    most = _most_tokens(predictor, longest)
    if isinstance(questions, str) or isinstance(contexts, str):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    if len(questions) != len(contexts):
        raise RequestError(f"{len(questions)} questions, but {len(contexts)} contexts; expected one for each")
    if predictor.bert.config.segments < 2:
        raise RequestError(
            "this model cannot separate context and question (it has only one segment type); use another model"
        )
    readings = list(read_contexts(predictor.tokenizer, questions, contexts))
    firsts = [reading.windows[0].encoding for reading in readings]
    predictor.warnings.cut(firsts, "questions are long and were cut, to leave room for their texts")
    encodings = [window.encoding for reading in readings for window in reading.windows]
    logits = iter(predictor.run(encodings, lambda batch: _logits(predictor, batch)))
    return [
        rank_spans(reading, context, [next(logits) for _ in reading.windows], most)
        for reading, context in zip(readings, contexts, strict=True)
    ]


def check_longest(longest: int | None) -> None:
    """Refuse a maximum answer length below one token."""
    if longest is not None and longest < 1:
        raise RequestError(f"the longest answer is {longest} tokens; expected at least 1")


def _most_tokens(predictor: Predictor, longest: int | None) -> int:
    check_longest(longest)
    return (predictor.task or TaskLabels(ANSWER.name)).longest_answer if longest is None else longest


@torch.inference_mode()
def _logits(predictor: Predictor, batch: Batch) -> list[Floats]:
    """Return the start and end logits of every row, (2, T)."""
    last = predictor.bert(batch.ids, batch.segments, batch.mask).last
    logits = task_logits(predictor.bert, "span", last, [1] * len(last)).float().cpu().numpy()
    if not np.isfinite(logits).all():
        raise RequestError("the scores of this model are not finite numbers; check its training")
    return list(logits)


def rank_spans(reading: Reading, context: str, logits: Sequence[Floats], longest: int = LONGEST_ANSWER) -> Ranking:
    """Rank candidate answers by the start and end logits of every window, (2, T)."""
    nothing = min((Candidate("", 0, 0, *map(float, one[:, 0])) for one in logits), key=lambda one: one.score)
    places = np.array([window.place for window in reading.windows])
    found: list[Pair] = []
    for number, (window, one) in enumerate(zip(reading.windows, logits, strict=True)):
        begin, stop = window.place
        starts, ends = one[:, window.first : window.first + stop - begin]
        found += _pairs(starts, ends, places, number, longest)
    candidates: dict[str, Candidate] = {}
    for _, start, end, start_logit, end_logit in sorted(found, key=lambda pair: (-pair[0], pair[1:3])):
        place = reading.offsets[start][0], reading.offsets[end][1]
        text = context[slice(*place)]
        candidates.setdefault(text, Candidate(text, *place, start_logit, end_logit))
        if len(candidates) == BEST:
            break
    return Ranking(list(candidates.values()), nothing)


def _pairs(starts: Floats, ends: Floats, places: Integers, number: int, longest: int) -> list[Pair]:
    """Pair the most likely starts and ends of a window, keeping only spans that this window scores."""
    first, last = (np.argsort(-side, kind="stable")[:BEST] for side in (starts, ends))
    lengths = last[None, :] - first[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= longest))
    first, last, begin = first[rows], last[columns], places[number, 0]
    # Spans in the overlap of windows occur in several of them; each is kept in one window only.
    here = _widest_context(places, begin + first, begin + last) == number
    return [
        (
            float(starts[start]) + float(ends[end]),
            int(begin + start),
            int(begin + end),
            float(starts[start]),
            float(ends[end]),
        )
        for start, end in zip(first[here], last[here], strict=True)
    ]


def _widest_context(places: Integers, starts: Integers, ends: Integers) -> Integers:
    """Return which of W windows, (W, 2), has the most context on both sides of each span, (N,) and (N,).

    Ties go to the first window. The original takes the longest one, which is the first, since only the last is shorter.
    """
    begins, stops = places.T
    # Windows are sorted, so those that contain a span are consecutive.
    first, last = np.searchsorted(stops, ends, "right"), np.searchsorted(begins, starts, "right") - 1
    widest, most = first, np.full(len(first), -1)
    for later in range(int((last - first).max(initial=-1)) + 1):
        window = np.minimum(first + later, last)
        room = np.minimum(starts - begins[window], stops[window] - 1 - ends)
        widest, most = np.where(room > most, window, widest), np.maximum(room, most)
    return widest


def evaluate_answers(
    predictor: Predictor, examples: Questions, metrics: Sequence[str], longest: int | None = None
) -> Evaluation:
    """Score a model like the official script with these metrics, and return the files that the script expects."""
    rankings = _rank_examples(predictor, examples, longest)
    threshold = predictor.task.threshold if predictor.task else None
    some_have_none = not all(row.answers for row in examples.rows)
    if threshold is None and some_have_none:
        threshold = EVEN
    decided = [ranking.decided(threshold) for ranking in rankings]
    answers = [best[0][0].text for best in decided]
    predictions = _answer_predictions(examples, answers, rankings)
    files: dict[str, Any] = {
        "predictions.json": {row.id: text for row, text in zip(examples.rows, answers, strict=True)},
        "nbest_predictions.json": {
            row.id: [_entry(*one) for one in best] for row, best in zip(examples.rows, decided, strict=True)
        },
    }
    if some_have_none:
        nulls = zip(examples.rows, predictions, strict=True)
        files["null_odds.json"] = {row.id: one.null_score for row, one in nulls}
    return Evaluation(
        score_answers(metrics, predictions),
        answers,
        examples.places,
        [one.predicted if is_right(metrics, one) else "".join(one.answers[:1]) for one in predictions],
        [{"question": row.question, "context": row.context} for row in examples.rows],
        files=files,
        rows=MeanRows(row_scores(metrics, predictions)),
        probabilities=[best[0][1] for best in decided],
    )


def fit_threshold(predictor: Predictor, examples: Questions) -> TaskLabels:
    """Return the task with the threshold that has the best F1, if some of the questions have no answer."""
    task = predictor.task or TaskLabels(ANSWER.name)
    if all(row.answers for row in examples.rows):
        return task
    rankings = _rank_examples(predictor, examples)
    predictions = _answer_predictions(examples, [ranking.decided(None)[0][0].text for ranking in rankings], rankings)
    best = best_threshold(predictions, [word_f1(one) for one in predictions])
    # Stored as a ratio (odds), because saved thresholds must be positive.
    return replace(task, threshold=math.exp(min(max(best.between, -FARTHEST), FARTHEST)))


def _rank_examples(predictor: Predictor, examples: Questions, longest: int | None = None) -> list[Ranking]:
    questions, contexts = [row.question for row in examples.rows], [row.context for row in examples.rows]
    return rank_answers(predictor, questions, contexts, longest)


def _answer_predictions(
    examples: Questions, answers: Sequence[str], rankings: Sequence[Ranking]
) -> list[AnswerPrediction]:
    rows = zip(examples.rows, answers, rankings, strict=True)
    return [
        AnswerPrediction(row.answers, text, max(min(one.null_score, FARTHEST), -FARTHEST)) for row, text, one in rows
    ]


def _entry(one: Candidate, share: float) -> dict[str, Any]:
    return {"text": one.text, "probability": share, "start_logit": one.start_logit, "end_logit": one.end_logit}


def _logarithm(threshold: float) -> float:
    return math.log(threshold) if threshold > 0 else -math.inf
