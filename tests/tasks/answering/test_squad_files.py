"""Published and custom question files, and the scores of the published scripts."""

import gzip
import json
import lzma
import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from cloze.errors import DataError
from cloze.tasks.answering import examples as squad
from cloze.tasks.answering.examples import Question, Questions, locate
from cloze.tasks.answering.kind import (
    AnswerPrediction,
    best_threshold,
    exact_match,
    normalized,
    score_answers,
    word_f1,
)
from cloze.tasks.registry import read_examples, read_task
from cloze.tasks.rows import Source
from tests.tasks import squad_reference as reference

CONTEXT = "The old captain sees the river. He keeps a silver letter behind the house."
QAS: list[dict[str, Any]] = [
    {"id": "q1", "question": "Who sees it?", "answers": [{"text": "The old captain", "answer_start": 0}]},
    {
        "id": "q2",
        "question": "What does he keep?",
        "answers": [
            {"text": "a silver letter", "answer_start": 41},
            {"text": "letter", "answer_start": 50},
        ],
    },
]
NONE: dict[str, Any] = {"id": "q3", "question": "Where is the sea?", "answers": [], "is_impossible": True}


def as_squad(qas: list[dict[str, Any]], context: object = CONTEXT) -> dict[str, Any]:
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]}


def write(path: Path, value: object) -> Path:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def read(task: str, path: Path, **options: Any) -> Questions:
    examples = read_examples(Source(task, path, **options), None)
    assert isinstance(examples, Questions)
    return examples


def complaint(task: str, path: Path, split: str = "train", **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_examples(Source(task, path, **options), None, split)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("squad", ("train-v1.1.json", "dev-v1.1.json.xz")),
        ("squad2", ("train-v2.0.json.gz", "dev-v2.0.json")),
        ("cmrc", ("cmrc2018_train.json", "cmrc2018_dev.json")),
    ],
)
def test_published_folders_are_read_by_name(tmp_path: Path, task: str, names: tuple[str, str]) -> None:
    write(tmp_path / names[0], as_squad(QAS + [NONE] * (task == "squad2")))
    write(tmp_path / names[1], as_squad(QAS[1:]))
    data = read_task(Source(task, tmp_path))
    assert isinstance(data.train, Questions)
    assert isinstance(data.dev, Questions)
    assert data.kind.name == "answer"
    assert data.labels is None
    assert [row.id for row in data.train.rows] == ["q1", "q2", "q3"][: 2 + (task == "squad2")]
    assert data.dev.rows == [
        Question(
            f"{tmp_path / names[1]}:q2",
            "q2",
            "What does he keep?",
            CONTEXT,
            ("a silver letter", "letter"),
            (41, 56),
        )
    ]


def test_single_files_and_their_dev_file(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.json", as_squad(QAS)), write(tmp_path / "b.json", as_squad(QAS[:1]))
    data = read_task(Source("squad", one, two))
    assert (len(data.train), len(data.dev)) == (2, 1)
    assert len(read("squad", one)) == 2


def test_single_file_is_parted_not_scored_on_itself(tmp_path: Path) -> None:
    many = [{**QAS[0], "id": str(number)} for number in range(40)]
    data = read_task(Source("squad", write(tmp_path / "a.json", as_squad(many))))
    assert (len(data.train), len(data.dev)) == (36, 4)
    assert not set(data.train.places) & set(data.dev.places)


def test_missing_files_are_told(tmp_path: Path) -> None:
    assert complaint("squad", tmp_path, "dev").endswith(
        "has no dev-v1.1.json (nor .gz, .xz, .zst of it); expected squad as published, "
        "or one file as the data and another as dev (--dev)"
    )
    assert complaint("squad", tmp_path, "test").endswith("squad has no split 'test'; choose one of: train, dev")
    assert "does not exist" in complaint("squad", tmp_path / "nowhere.json")


def test_questions_without_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", as_squad([*QAS, NONE, {**NONE, "id": "q4", "answers": QAS[0]["answers"]}]))
    rows = read("squad2", path).rows
    assert [(row.answers, row.span) for row in rows[2:]] == [((), None), ((), None)]
    assert complaint("squad", path) == (
        "a.json:q3: this question has no answer; use squad2 or answer for such questions, or pass on_bad_row='skip' "
        "(--on-bad-row skip)"
    )
    kept = read("squad", path, on_bad_row="skip")
    assert (len(kept), kept.skipped) == (2, 2)


def test_offsets_that_are_a_little_off(tmp_path: Path) -> None:
    qas = [{**QAS[0], "id": str(number), "answers": [{"text": "the", "answer_start": number}]} for number in (19, 58)]
    rows = read("answer", write(tmp_path / "a.json", as_squad(qas))).rows
    assert [row.span for row in rows] == [(21, 24), (64, 67)]


@pytest.mark.parametrize("seed", range(20))
def test_nearest_place_is_found(seed: int) -> None:
    draw = random.Random(seed)
    context = "".join(draw.choices("ab ", k=400))
    text, start = context[200:204], draw.randrange(-1, 400)
    places = [place for place in range(len(context)) if context.startswith(text, place)]
    near = [place for place in places if abs(place - start) <= squad.NEARBY]
    found = locate(text, start, context)
    if not near:
        assert found is None
    else:
        assert found is not None
        assert abs(found[0] - start) == min(abs(place - start) for place in near)
        assert context[slice(*found)] == text
    assert locate(text, None, context) == (places[0], places[0] + 4)
    assert locate("c", start, context) is locate("c", None, context) is None


def test_nearby_has_an_end_on_either_side() -> None:
    context = "x" * 300 + "word" + "x" * 300
    starts = range(300 - squad.NEARBY, 300 + squad.NEARBY + 1)
    assert {locate("word", start, context) for start in starts} == {(300, 304)}
    assert locate("word", starts[0] - 1, context) is locate("word", starts[-1] + 1, context) is None


def test_answers_that_stand_nowhere(tmp_path: Path) -> None:
    wrong = {"id": "q4", "question": "Why?", "answers": [{"text": "slowly", "answer_start": 7}]}
    second = {"id": "q5", "question": "Why?", "answers": [*wrong["answers"], {"text": "captain", "answer_start": 8}]}
    path = write(tmp_path / "train-v1.1.json", as_squad([*QAS, wrong, second]))
    write(tmp_path / "dev-v1.1.json", as_squad([wrong, second]))
    expected = (
        "train-v1.1.json:q4: the answer 'slowly' does not occur at character 7 of the context, nor nearby; "
        "correct it, or pass on_bad_row='skip' (--on-bad-row skip)"
    )
    assert complaint("answer", path) == expected
    with pytest.raises(DataError, match="does not occur at character 7"):
        read_task(Source("squad", tmp_path))
    data = read_task(Source("squad", tmp_path, on_bad_row="skip"))
    assert data.notes == ("1 bad training rows were skipped",)
    # Evaluation does not need the position of an answer; training needs the position of at least one.
    assert isinstance(data.dev, Questions)
    assert [(row.answers, row.span) for row in data.dev.rows] == [
        (("slowly",), None),
        (("slowly", "captain"), (8, 15)),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{", "a.json: not JSON (Expecting property name"),
        ("[]", "a.json: 'data' is None; expected a list, as in the format of SQuAD"),
        ({"data": [{"paragraphs": 5}]}, "a.json: data[0]: 'paragraphs' is 5; expected a list, as in the form"),
        ({"data": [{"paragraphs": [{"context": "c"}]}]}, "a.json: data[0].paragraphs[0]: 'qas' is None; expected"),
        (as_squad(["x"]), "a.json: data[0].paragraphs[0].qas[0] is 'x'; expected an object with a question"),  # type: ignore[list-item]
        (as_squad([{**QAS[0], "question": 4}]), "a.json:q1: 'question' is 4; expected text in quotes"),
        (as_squad([{**QAS[0], "question": " "}]), "a.json:q1: 'question' is empty; fill it in"),
        (as_squad(QAS, None), "a.json:q1: 'context' is None; expected text in quotes"),
        (as_squad([{**QAS[0], "answers": "x"}]), "a.json:q1: 'answers' is 'x'; expected a list of objects with text"),
        (as_squad([{**QAS[0], "answers": [{}]}]), "a.json:q1: an answer is None; expected a text that occurs in"),
        (
            as_squad([{**QAS[0], "answers": [{"text": "a", "answer_start": "x"}]}]),
            "a.json:q1: 'answer_start' is 'x'; expected the number of characters before the answer",
        ),
        (as_squad([QAS[0], QAS[0]]), "a.json:q1: another question has the id 'q1'; give each question a unique id"),
        (as_squad([]), "a.json: it has no question"),
    ],
)
def test_bad_files_are_told(tmp_path: Path, value: object, expected: str) -> None:
    assert complaint("squad", write(tmp_path / "a.json", value)).startswith(expected)


def test_when_every_question_is_bad_the_first_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", as_squad([NONE]))
    assert complaint("squad", path, on_bad_row="skip").startswith(
        "a.json: all 1 questions are bad; the first: a.json:q3: this question has no answer"
    )


def test_damaged_and_endless_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.json.xz", as_squad(QAS))
    path.write_bytes(path.read_bytes()[:-30])
    assert complaint("squad", path).startswith("a.json.xz: cannot be decompressed (")
    monkeypatch.setattr(squad, "LARGEST_JSON", 100)
    assert complaint("squad", write(tmp_path / "b.json", as_squad(QAS))) == (
        "b.json: more than 0 MB; expected a file in the format of SQuAD"
    )


# -- tables ----------------------------------------------------------------------------------------------------------


def test_own_tables(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        "question,context,answer,answer_start\nWho?,The captain.,captain,4\nWhere?,The captain.,,\nWhat?,A A.,A,\n",
    )
    assert [(row.id, row.answers, row.span) for row in read("answer", path).rows] == [
        (f"{path}:2", ("captain",), (4, 11)),
        (f"{path}:3", (), None),
        (f"{path}:4", ("A",), (0, 1)),
    ]
    lines = [
        {"q": "Who?", "c": "The captain.", "a": ["The captain", "captain"], "answer_start": [0, 4], "id": 7},
        {"q": "Who?", "c": "The captain.", "a": "captain"},
        {"q": "Why?", "c": "The captain.", "a": []},
    ]
    named = write(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    rows = read("answer", named, text="q", pair="c", label="a").rows
    assert [(row.answers, row.span) for row in rows] == [
        (("The captain", "captain"), (0, 11)),
        (("captain",), (4, 11)),
        ((), None),
    ]
    assert rows[0].id == "7"


def test_tables_as_datasets_have_them(tmp_path: Path) -> None:
    rows = [
        {
            "id": one["id"],
            "question": one["question"],
            "context": CONTEXT,
            "answers": {
                "text": [answer["text"] for answer in one["answers"]],
                "answer_start": [answer["answer_start"] for answer in one["answers"]],
            },
        }
        for one in [*QAS, NONE]
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = read("answer", tmp_path / "a.parquet").rows
    expected = read("squad2", write(tmp_path / "a.json", as_squad([*QAS, NONE]))).rows
    assert [(row.id, row.answers, row.span) for row in found] == [(row.id, row.answers, row.span) for row in expected]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"question": "Who?", "context": "c"}, "a.jsonl:1: this row has no 'answer'; it has: question, context"),
        (
            {"question": "Who?", "context": "c", "answer": "c", "answer_start": "x"},
            "a.jsonl:1: 'answer_start' is 'x'; expected the number of characters before the answer",
        ),
        (
            {"question": "Who?", "context": "c", "answer": ["c"], "answer_start": [0, 1]},
            "a.jsonl:1: 'answer_start' is [0, 1]; expected a list of 1 numbers",
        ),
        (
            {"question": "Who?", "context": "c", "answer": "d"},
            "a.jsonl:1: the answer 'd' does not occur in the context; correct it, or pass on_bad_row='skip' "
            "(--on-bad-row skip)",
        ),
        ({"question": "Who?", "context": "c", "answer": 5}, "a.jsonl:1: an answer is 5; expected a text that occurs"),
        ({"question": "Who?", "answer": "d"}, "a.jsonl:1: this row has no 'context'"),
    ],
)
def test_bad_rows_are_told_or_counted(tmp_path: Path, line: dict[str, Any], expected: str) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(line) + "\n")
    assert complaint("answer", path).startswith(expected)
    good = {"question": "Who?", "context": "c", "answer": "c"}
    write(path, json.dumps(line) + "\n" + json.dumps(good) + "\n")
    kept = read("answer", path, on_bad_row="skip")
    assert (len(kept), kept.skipped) == (1, 1)


# -- scores ----------------------------------------------------------------------------------------------------------

PARTS = [
    "the",
    "The",
    "a",
    "an",
    "old",
    "Captain",
    "captain's",
    "10,000",
    "U.S.",
    "...",
    "«river»",
    "naïve",
    "Ärger",
    "the-old",
]
GAPS = [" ", "  ", "\n", "\u00a0", "-", ", "]


def make_text(draw: random.Random, most: int = 5) -> str:
    return "".join(draw.choice(PARTS) + draw.choice(GAPS) for _ in range(draw.randint(0, most)))


def make_cases(seed: int, *, always: bool) -> list[reference.Case]:
    draw = random.Random(seed)
    cases: list[reference.Case] = []
    for number in range(60):
        answers = [make_text(draw) or "x" for _ in range(draw.randint(int(always), 3))]
        said = draw.choice([make_text(draw), "", *answers])
        # All scores differ, because the official search orders ties arbitrarily.
        cases.append((answers, said, draw.gauss(0, 5) + number * 1e-6))
    return cases


def told(cases: list[reference.Case]) -> list[AnswerPrediction]:
    return [AnswerPrediction(*case) for case in cases]


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_the_first_version(seed: int) -> None:
    cases = make_cases(seed, always=True)
    scores = score_answers(("f1", "exact_match"), told(cases))
    assert list(scores) == ["f1", "exact_match"]
    assert (scores["exact_match"], scores["f1"]) == pytest.approx(reference.first_version(cases), abs=1e-12)
    assert 0 < scores["exact_match"] < 1 > scores["f1"] > 0


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_the_second_version(seed: int) -> None:
    cases = make_cases(seed, always=False)
    scores = score_answers(("f1", "exact"), told(cases))
    singles = [reference.second_version(answers, said) for answers, said, _ in cases]
    kinds = {
        "": range(len(cases)),
        "HasAns_": [number for number, case in enumerate(cases) if case[0]],
        "NoAns_": [number for number, case in enumerate(cases) if not case[0]],
    }
    for prefix, numbers in kinds.items():
        for which, name in enumerate(("exact", "f1")):
            expected = sum(singles[number][which] for number in numbers) / len(numbers)
            assert scores[f"{prefix}{name}"] == pytest.approx(expected, abs=1e-12)
    for which, name in enumerate(("exact", "f1")):
        assert scores[f"best_{name}"] == pytest.approx(reference.best_over_thresholds(cases, which), abs=1e-12)
        (at,) = reference.at_thresholds(cases, [scores[f"best_{name}_thresh"]], which)
        assert at == pytest.approx(scores[f"best_{name}"], abs=1e-12)
        assert 0 < scores[f"best_{name}"] < 1


def test_threshold_lies_between_two_questions() -> None:
    cases = [
        AnswerPrediction(("a b",), "a b", -3.0),
        AnswerPrediction((), "x", 1.0),
        AnswerPrediction(("c d",), "c d", -1.0),
    ]
    best = best_threshold(cases, [word_f1(one) for one in cases])
    assert (best.score, best.official, best.between) == (1.0, -1.0, 0.0)
    # If no answer is always best, the official search reports threshold 0.
    nothing = [AnswerPrediction((), "x", -3.0), AnswerPrediction((), "y", -2.0)]
    best = best_threshold(nothing, [word_f1(one) for one in nothing])
    assert (best.score, best.official) == (1.0, 0.0)
    assert best.between < -3.0
    everything = [AnswerPrediction(("a b",), "a b", 5.0), AnswerPrediction(("c",), "c", 9.0)]
    assert best_threshold(everything, [1.0, 1.0]).between > 9.0


@pytest.mark.parametrize(
    ("answers", "said", "exact", "f1"),
    [
        (["The Old Captain!"], "old  captain", 1, 1),
        (["a"], "the", 1, 1),  # both normalize to nothing
        ([], "", 1, 1),
        ([], "x", 0, 0),
        ([], "the", 1, 1),
        (["x"], "", 0, 0),
        (["old old river"], "old river", 0, 0.8),
        (["another"], "an other", 0, 0),
        (["10,000"], "10000", 1, 1),
        (["naïve"], "naive", 0, 0),
        (["it’s"], "its", 0, 0),  # only ASCII punctuation is removed
    ],
)
def test_edges_of_the_second_version(answers: list[str], said: str, exact: float, f1: float) -> None:
    assert (exact_match(AnswerPrediction(answers, said)), word_f1(AnswerPrediction(answers, said))) == pytest.approx(
        (exact, f1)
    )
    assert reference.second_version(answers, said) == pytest.approx((exact, f1))


def test_versions_differ_where_nothing_is_left() -> None:
    assert score_answers(("f1", "exact_match"), [AnswerPrediction(["a"], "the")]) == {"f1": 0.0, "exact_match": 1.0}
    assert score_answers(("f1", "exact"), [AnswerPrediction(["a"], "the")])["f1"] == 1.0


@pytest.mark.parametrize("text", ["The a an", "theatre an-other", "a\u00a0b", "The_end", "I.e. the É"])
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalized(text).split() == reference.plain(text)
    assert normalized(normalized(text)) == normalized(text)


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_chinese_answers(seed: int) -> None:
    draw = random.Random(seed)
    parts = ["猫", "坐", "在", "河", "，", "。", "《", "》", "Nexon ", "abc", " 2010 ", "-", "·", "…"]

    def make() -> str:
        return "".join(draw.choices(parts, k=draw.randint(0, 7)))

    cases = [([make() for _ in range(draw.randint(1, 3))], make()) for _ in range(50)]
    # CMRC's script splits texts with Latin letters and "…" in an unusual way, which is not compared here.
    cases = [(answers, said) for answers, said in cases if "…" not in "".join(answers) + said]
    cases += [([answers[0]], answers[0]) for answers, _ in cases[:5]]
    scores = score_answers(("f1", "em", "average"), [AnswerPrediction(answers, said) for answers, said in cases])
    singles = [reference.chinese(answers, said) for answers, said in cases]
    assert scores["em"] == pytest.approx(sum(exact for exact, _ in singles) / len(cases), abs=1e-12)
    assert scores["f1"] == pytest.approx(sum(f1 for _, f1 in singles) / len(cases), abs=1e-12)
    assert scores["average"] == pytest.approx((scores["em"] + scores["f1"]) / 2)
    assert 0 < scores["em"] < 1 > scores["f1"] > 0


def test_common_stretch_is_without_gaps() -> None:
    scores = score_answers(("f1", "em"), [AnswerPrediction(["猫坐在河边"], "猫在河")])
    assert scores["f1"] == pytest.approx(2 * 2 / (5 + 3))  # 在河 is matched; 猫 is shared as well, but not contiguous
    assert score_answers(("f1", "em"), [AnswerPrediction(["《猫》：2010年"], "猫2010年 ")])["em"] == 1


def test_nothing_to_score_is_told() -> None:
    with pytest.raises(DataError, match="no questions to score"):
        score_answers(("f1", "exact"), [])
