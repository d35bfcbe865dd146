"""Span decoding, compared with brute force over every span of every window, and with transformers."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import BertForQuestionAnswering

from cloze.checkpoint import TaskLabels
from cloze.errors import CheckpointError, RequestError
from cloze.options import LONGEST_ANSWER
from cloze.predict import Model, evaluate, load, write_report
from cloze.tasks.answering.decoding import (
    BEST,
    Candidate,
    Ranking,
    evaluate_answers,
    fit_threshold,
    rank_answers,
    rank_spans,
)
from cloze.tasks.answering.examples import Question, Questions, Reading, read_contexts
from cloze.tasks.rows import Source
from tests.model.made import model_folder, saved
from tests.tasks import squad_reference as reference

FOLDER = model_folder(["span"], task=TaskLabels("answer"))
SHORT = replace(FOLDER, tokenizer=FOLDER.tokenizer.with_max_length(20))
MODEL = Model(SHORT)
SOURCE = random.Random(3)
WORDS = FOLDER.tokenizer.pieces[22:]
QUESTIONS = [" ".join(SOURCE.choices(WORDS, k=SOURCE.randint(0, 12))) for _ in range(30)]
CONTEXTS = [", ".join(SOURCE.choices(WORDS, k=SOURCE.randint(1, 40))) + " Cats!" for _ in range(30)]


def with_task(threshold: float | None) -> Model:
    return Model(replace(SHORT, task=TaskLabels("answer", threshold=threshold)))


def their_logits(theirs: Any, reading: Reading) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the start and end logits of every window, computed by transformers."""
    found = []
    for window in reading.windows:
        with torch.inference_mode():
            output = theirs(
                input_ids=torch.tensor([window.encoding.ids]), token_type_ids=torch.tensor([window.encoding.segments])
            )
        found.append((output.start_logits[0], output.end_logits[0]))
    return found


Logits = Sequence[tuple[Any, Any]]  # start and end logits of every window


def fullest_window(places: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Return the window with the most context around a span, among those that contain it; ties go to the longest."""
    rooms = [
        min(start - begin, stop - 1 - end) + 0.0001 * (stop - begin) if begin <= start and end < stop else -1
        for begin, stop in places
    ]
    return rooms.index(max(rooms))


def all_stretches(logits: Logits, reading: Reading, context: str, longest: int = LONGEST_ANSWER) -> dict[str, float]:
    """Return the best score of every possible answer text, by trying every token pair in every window."""
    places = [window.place for window in reading.windows]
    scores: dict[str, float] = {}
    for number, (starts, ends) in enumerate(logits):
        begin, stop = places[number]
        first = reading.windows[number].first
        for start, end in product(range(begin, stop), repeat=2):
            if start <= end < start + longest and fullest_window(places, start, end) == number:
                text = context[reading.offsets[start][0] : reading.offsets[end][1]]
                score = float(starts[first + start - begin] + ends[first + end - begin])
                scores[text] = max(score, scores.get(text, -math.inf))
    return scores


def check_ranking(ranking: Ranking, scores: dict[str, float], context: str) -> None:
    """Compare a ranking with the scores of all spans."""
    expected = sorted(scores.values(), reverse=True)[:BEST]
    assert [one.score for one in ranking.candidates] == pytest.approx(expected, abs=1e-4)
    for one in ranking.candidates:
        assert one.score == pytest.approx(scores[one.text], abs=1e-4)
        assert context[one.start : one.end] == one.text


def make_reading(draw: random.Random, length: int, stride: int, words: int) -> tuple[Reading, str]:
    question = " ".join(draw.choices(WORDS, k=draw.randint(0, 8)))
    context = ", ".join(draw.choices(WORDS, k=words))
    tokenizer = FOLDER.tokenizer.with_max_length(length)
    (reading,) = read_contexts(tokenizer, [question], [context], stride)
    return reading, context


def draw_logits(reading: Reading, seed: int) -> list[NDArray[np.float32]]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(2, len(window.encoding.ids))).astype(np.float32) for window in reading.windows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(SHORT, tmp_path_factory.mktemp("answerer") / "model")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return BertForQuestionAnswering.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]


def test_logits_are_those_of_transformers(theirs: Any) -> None:
    (ranking,) = rank_answers(MODEL, QUESTIONS[:1], CONTEXTS[:1])
    (reading,) = read_contexts(MODEL.tokenizer, QUESTIONS[:1], CONTEXTS[:1])
    nothing = min(their_logits(theirs, reading), key=lambda one: float(one[0][0] + one[1][0]))
    assert ranking.nothing.start_logit == pytest.approx(float(nothing[0][0]), abs=1e-5)
    assert ranking.nothing.end_logit == pytest.approx(float(nothing[1][0]), abs=1e-5)
    assert abs(ranking.nothing.score) > 0.05


@pytest.mark.parametrize(("length", "longest"), [(20, LONGEST_ANSWER), (20, 3), (8, LONGEST_ANSWER)])
def test_ranking_is_that_of_trying_every_stretch(theirs: Any, length: int, longest: int) -> None:
    model = Model(replace(FOLDER, tokenizer=FOLDER.tokenizer.with_max_length(length)))
    # Short contexts have fewer spans than the ranking keeps.
    contexts = [*CONTEXTS[:12], "cat sat on", "the cat sat on a mat"]
    questions = [*QUESTIONS[:12], "dog", "the dog"]
    readings = list(read_contexts(model.tokenizer, questions, contexts))
    assert sum(len(reading.windows) > 1 for reading in readings) > 2
    rankings = rank_answers(model, questions, contexts, longest)
    for reading, context, ranking in zip(readings, contexts, rankings, strict=True):
        check_ranking(ranking, all_stretches(their_logits(theirs, reading), reading, context, longest), context)


@pytest.mark.parametrize("seed", range(60))
def test_each_stretch_counts_where_most_text_is_around_it(seed: int) -> None:
    draw = random.Random(seed)
    # No window has more tokens than the search considers as starts and ends.
    length, stride, longest = draw.randint(5, 22), draw.randint(1, 12), draw.choice([1, 3, 8, LONGEST_ANSWER])
    reading, context = make_reading(draw, length, stride, draw.randint(1, 30))
    logits = draw_logits(reading, seed)
    ranking = rank_spans(reading, context, logits, longest)
    check_ranking(ranking, all_stretches([(one[0], one[1]) for one in logits], reading, context, longest), context)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_window_holds_whole_can_be_said(seed: int) -> None:
    draw = random.Random(seed)
    length, stride, longest = draw.randint(5, 90), draw.randint(1, 60), draw.choice([1, 8, LONGEST_ANSWER, 60])
    reading, context = make_reading(draw, length, stride, draw.randint(1, 90))
    for _ in range(20):
        begin, stop = draw.choice(reading.windows).place
        start = draw.randrange(begin, stop)
        end = draw.randrange(start, min(stop, start + longest))
        logits = draw_logits(reading, seed)
        for window, one in zip(reading.windows, logits, strict=True):
            if window.place[0] <= start and end < window.place[1]:
                shift = window.first - window.place[0]
                one[0, start + shift] = one[1, end + shift] = 50
        best = rank_spans(reading, context, logits, longest).candidates[0]
        assert (best.start, best.end) == (reading.offsets[start][0], reading.offsets[end][1])


def test_answer_that_begins_late_in_a_window_is_said_of_the_next() -> None:
    tokenizer, context = FOLDER.tokenizer.with_max_length(128), "cat " * 300
    (reading,) = read_contexts(tokenizer, ["dog " * 20], [context])
    assert [window.place for window in reading.windows][:2] == [(0, 105), (52, 157)]
    # Token 78 has as much context in the first window as in the second; the answer extends beyond the first.
    start, end = 78, 105
    logits = draw_logits(reading, 0)
    for window, one in zip(reading.windows[:2], logits, strict=False):
        shift = window.first - window.place[0]
        one[0, start + shift] = 50
        if end < window.place[1]:
            one[1, end + shift] = 50
    best = rank_spans(reading, context, logits).candidates[0]
    assert (best.start, best.end, best.score) == (4 * start, 4 * end + 3, 100)


def test_answers_do_not_depend_on_their_neighbours() -> None:
    together = MODEL.answer_all(QUESTIONS, CONTEXTS, top=3)
    for question, context, answers in zip(QUESTIONS, CONTEXTS, together, strict=True):
        alone = MODEL.answer(question, context, top=3)
        assert [one.text for one in alone] == [one.text for one in answers]
        assert [one.probability for one in alone] == pytest.approx([one.probability for one in answers], abs=1e-5)
        for one in answers:
            assert context[one.start : one.end] == one.text


def test_answers_are_no_longer_than_was_asked_for(tmp_path: Path) -> None:
    def lengths(model: Model, longest: int | None = None) -> set[int]:
        found = model.answer_all(QUESTIONS, CONTEXTS, top=5, longest=longest)
        texts = [one.text for answers in found for one in answers]
        return {len(pieces) for pieces in model.tokenizer.encode_pieces(texts)}

    assert max(lengths(MODEL)) > 4
    assert lengths(MODEL, 1) == {1}
    assert max(lengths(MODEL, 3)) == 3
    # The setting saved in the folder is used unless an argument overrides it.
    Model(replace(SHORT, task=TaskLabels("answer", longest_answer=2))).save(tmp_path / "model")
    limited = load(tmp_path / "model")
    assert limited.task == TaskLabels("answer", longest_answer=2)
    assert max(lengths(limited)) == 2
    assert lengths(limited, 5) == lengths(MODEL, 5)
    assert max(lengths(limited, 5)) > 2


@pytest.mark.parametrize("value", [0, 2.5, "many", True, None])
def test_folder_with_a_bad_length_of_answers_is_told(value: object, tmp_path: Path) -> None:
    path = saved(SHORT, tmp_path / "model") / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text("utf-8")) | {"cloze_task": {"longest_answer": value}}), "utf-8"
    )
    expected = f"longest_answer is {str(value)!r}; expected a whole number of at least 1"
    with pytest.raises(CheckpointError, match=expected):
        load(path.parent)


def test_probabilities_are_shares_of_the_best() -> None:
    answers = MODEL.answer(QUESTIONS[0], CONTEXTS[0], top=100)
    assert 1 < len(answers) <= BEST
    assert sum(one.probability for one in answers) == pytest.approx(1)
    assert [one.probability for one in answers] == sorted((one.probability for one in answers), reverse=True)
    ranking = rank_answers(MODEL, QUESTIONS[:1], CONTEXTS[:1])[0]
    ratio = math.exp(ranking.candidates[0].score - ranking.candidates[1].score)
    assert answers[0].probability / answers[1].probability == pytest.approx(ratio)


def test_threshold_decides_whether_there_is_an_answer() -> None:
    null_score = rank_answers(MODEL, QUESTIONS[:1], CONTEXTS[:1])[0].null_score
    question, context = QUESTIONS[0], CONTEXTS[0]
    never = MODEL.answer(question, context, top=100)
    assert all(one.text for one in never)
    below, above = (with_task(math.exp(null_score + shift)) for shift in (-0.01, 0.01))
    none, some = below.answer(question, context, top=100), above.answer(question, context, top=100)
    assert (none[0].text, none[0].start, none[0].end) == ("", 0, 0)
    assert some[0].text == never[0].text
    # The probabilities are the same, but a different answer comes first.
    assert sorted(one.probability for one in none) == pytest.approx(sorted(one.probability for one in some))
    assert with_task(0.0).answer(question, context)[0].text == ""


def test_order_of_the_others_is_kept() -> None:
    candidates = [Candidate(text, 0, 1, score, 0.0) for text, score in (("a", 3.0), ("b", 1.0))]
    ranking = Ranking(candidates, Candidate("", 0, 0, 2.0, 0.0))
    assert ranking.null_score == -1.0
    assert [one.text for one, _ in ranking.decided(None)] == ["a", "b"]
    assert [one.text for one, _ in ranking.decided(1.0)] == ["a", "", "b"]
    assert [one.text for one, _ in ranking.decided(0.1)] == ["", "a", "b"]


def test_contexts_without_a_token_have_no_answer() -> None:
    for context in ("", " \u00ad"):
        (answer,) = MODEL.answer("the cat", context, top=3)
        assert (answer.text, answer.probability) == ("", 1.0)
    assert MODEL.answer_all([], []) == []


def test_bad_requests_are_told() -> None:
    with pytest.raises(RequestError, match=r"^top is 0; expected at least 1$"):
        MODEL.answer("a", "b", top=0)
    with pytest.raises(RequestError, match=r"^the longest answer is 0 tokens; expected at least 1$"):
        MODEL.answer("a", "b", longest=0)
    with pytest.raises(RequestError, match=r"^2 questions, but 1 contexts; expected one for each$"):
        MODEL.answer_all(["a", "b"], ["c"])
    with pytest.raises(RequestError, match="expected a list of texts, got a single text"):
        MODEL.answer_all("a", ["c"])
    with pytest.raises(RequestError, match="this model has no 'span' head"):
        Model(model_folder(["sequence"])).answer("a", "b")
    alone = model_folder(["span"], config=replace(FOLDER.model.config, segments=1), task=TaskLabels("answer"))
    with pytest.raises(RequestError, match="this model cannot separate context and question"):
        Model(alone).answer("a", "b")


def test_long_questions_are_told(caplog: pytest.LogCaptureFixture) -> None:
    MODEL.answer_all(["cat", "cat " * 80], ["the cat sat", "the cat sat"])
    assert caplog.messages == ["1 of 2 questions are long and were cut, to leave room for their texts"]


def test_broken_model_is_told() -> None:
    broken = model_folder(["span"], task=TaskLabels("answer"))
    with torch.no_grad():
        for parameter in broken.model.heads["span"].parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(RequestError, match="the scores of this model are not finite numbers; check its training"):
        Model(broken).answer("a", "the cat")


# -- scoring ---------------------------------------------------------------------------------------------------------


def make_questions(count: int = 30) -> Questions:
    """Return questions that the model answers correctly, questions that it answers wrongly, and unanswerable ones."""
    draw = random.Random(5)
    best = MODEL.answer_all(QUESTIONS[:count], CONTEXTS[:count])
    rows = []
    for number in range(count):
        context = CONTEXTS[number]
        word = context[: context.index(",")] if "," in context else context
        predicted = best[number][0].text
        answers = [(predicted,), (word, context[:12]), ()][draw.randrange(3)]
        # The official threshold search treats a lone punctuation mark as an answer.
        answers = answers if reference.plain(predicted) else (word, context[:12])
        rows.append(Question(f"f:{number}", f"id{number}", QUESTIONS[number], context, answers, None))
    return Questions(rows)


def make_unanswered(count: int) -> Questions:
    rows = zip(QUESTIONS[:count], CONTEXTS, strict=False)
    return Questions([Question("", str(number), one or "dog", text) for number, (one, text) in enumerate(rows)])


def test_files_give_the_scores_that_were_told(tmp_path: Path) -> None:
    examples = make_questions()
    evaluation = evaluate_answers(MODEL, examples, ("f1", "exact"))
    write_report(evaluation, tmp_path)
    files = {path.name: json.loads(path.read_text("utf-8")) for path in tmp_path.glob("*.json")}
    assert files.keys() == {"eval_results.json", "predictions.json", "nbest_predictions.json", "null_odds.json"}
    cases = [(row.answers, files["predictions.json"][row.id], files["null_odds.json"][row.id]) for row in examples.rows]
    results = files["eval_results.json"]
    singles = np.array([reference.second_version(answers, predicted) for answers, predicted, _ in cases])
    assert [results["exact"], results["f1"]] == pytest.approx(list(singles.mean(0)))
    assert results["best_f1"] == pytest.approx(reference.best_over_thresholds(cases, 1))
    assert results["rows"] == 30
    for row in examples.rows:
        entries = files["nbest_predictions.json"][row.id]
        assert entries[0]["text"] == files["predictions.json"][row.id]
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        none = next(entry for entry in entries if entry["text"] == "")
        best = next(entry for entry in entries if entry["text"])
        difference = none["start_logit"] + none["end_logit"] - best["start_logit"] - best["end_logit"]
        assert files["null_odds.json"][row.id] == pytest.approx(difference)
        # Without a threshold, a model predicts no answer if that is more likely.
        assert (files["predictions.json"][row.id] == "") == (difference > 0)


def test_threshold_is_the_best_of_all_and_goes_with_the_folder(tmp_path: Path) -> None:
    examples = make_questions()
    task = fit_threshold(MODEL, examples)
    assert task.threshold is not None
    model = Model(replace(SHORT, task=task))
    best = evaluate_answers(model, examples, ("f1", "exact")).metrics
    even = evaluate_answers(MODEL, examples, ("f1", "exact")).metrics
    predicted = [answers[0].text for answers in MODEL.answer_all([*QUESTIONS], [*CONTEXTS])]
    nulls = [one.null_score for one in rank_answers(MODEL, QUESTIONS, CONTEXTS)]
    cases = [(row.answers, text, none) for row, text, none in zip(examples.rows, predicted, nulls, strict=True)]
    assert best["f1"] == pytest.approx(reference.best_over_thresholds(cases, 1))
    assert best["f1"] == best["best_f1"]
    assert best["f1"] > even["f1"]
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.task == task
    assert evaluate_answers(loaded, examples, ("f1", "exact")).metrics == best


def test_without_unanswerable_questions_there_is_no_threshold() -> None:
    examples = make_questions()
    answerable = examples.select([number for number, row in enumerate(examples.rows) if row.answers])
    assert fit_threshold(MODEL, answerable) == MODEL.task
    evaluation = evaluate_answers(MODEL, answerable, ("f1", "exact_match"))
    assert list(evaluation.metrics) == ["f1", "exact_match"]
    assert evaluation.files.keys() == {"predictions.json", "nbest_predictions.json"}
    assert "" not in evaluation.predictions
    expected = reference.first_version(
        [(row.answers, predicted, 0.0) for row, predicted in zip(answerable.rows, evaluation.predictions, strict=True)]
    )
    assert (evaluation.metrics["exact_match"], evaluation.metrics["f1"]) == pytest.approx(expected)


def test_wrong_rows_are_those_that_are_not_exact() -> None:
    examples = make_questions()
    evaluation = evaluate_answers(MODEL, examples, ("f1", "exact"))
    wrong = evaluation.wrong()
    assert len(wrong) == round((1 - evaluation.metrics["exact"]) * 30)
    assert wrong[0].keys() == {"row", "question", "context", "expected", "predicted"}


def test_wrong_rows_are_those_of_the_script_that_scores() -> None:
    predicted = [answers[0].text for answers in MODEL.answer_all(QUESTIONS[:6], CONTEXTS[:6])]
    # Marks that only CMRC's script removes, and an article that only SQuAD's scripts remove.
    for shape, scripts in (("《{}》", {"em"}), ("the {}", {"exact", "exact_match"})):
        rows = [
            Question("", str(number), QUESTIONS[number], CONTEXTS[number], (shape.format(text),))
            for number, text in enumerate(predicted)
        ]
        for name in ("em", "exact", "exact_match"):
            evaluation = evaluate_answers(MODEL, Questions(rows), ("f1", name))
            assert evaluation.metrics[name] == (name in scripts)
            assert len(evaluation.wrong()) == (0 if name in scripts else 6)


def test_folder_is_scored_by_file(tmp_path: Path, folder: Path) -> None:
    qas = [{"id": "q", "question": "cat", "answers": [{"text": "sat", "answer_start": 8}]}]
    contents = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": qas}]}]}
    (tmp_path / "a.json").write_text(json.dumps(contents), "utf-8")
    for task, names in {
        "squad": ["f1", "exact_match"],
        "cmrc": ["f1", "em", "average"],
        "answer": ["f1", "exact", "HasAns_exact", "HasAns_f1"],
    }.items():
        assert list(evaluate(folder, Source(task, tmp_path / "a.json")).metrics) == names
    other = saved(model_folder(["sequence"], task=TaskLabels("classify", ("a", "b"))), tmp_path / "other")
    with pytest.raises(
        RequestError, match="squad needs a model fine-tuned to answer; this one is fine-tuned to classify"
    ):
        evaluate(other, Source("squad", tmp_path / "a.json"))


def test_scores_are_of_answers_no_longer_than_was_asked_for(tmp_path: Path, folder: Path) -> None:
    examples = make_unanswered(20)
    lines = [{"question": row.question, "context": row.context, "answer": ""} for row in examples.rows]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    source = Source("answer", path)
    usual, short = evaluate(folder, source), evaluate(folder, source, longest=1)
    assert [usual.predictions, short.predictions] == [
        evaluate_answers(MODEL, examples, ("f1", "exact"), longest).predictions for longest in (None, 1)
    ]
    assert usual.predictions != short.predictions
    with pytest.raises(RequestError, match=r"^the longest answer is -1 tokens; expected at least 1$"):
        evaluate(folder, source, longest=-1)
    with pytest.raises(
        RequestError, match=r"^longest is 5, which applies only to question answering; leave it out for choose$"
    ):
        evaluate(folder, Source("choose", path), longest=5)
