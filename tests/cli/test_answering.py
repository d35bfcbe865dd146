"""Question answering and multiple choice on the command line."""

import csv
import json
from pathlib import Path

import pytest

from cloze.checkpoint import TaskLabels
from cloze.predict import load
from tests.cli.conftest import Cloze
from tests.model.made import model_folder, saved

CONTEXTS = ["the cat sat on a mat.", "the dog ran, and the cat sat."]


@pytest.fixture(scope="module")
def answerer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["span"], task=TaskLabels("answer")), tmp_path_factory.mktemp("answerer") / "model")


@pytest.fixture(scope="module")
def chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["choice"], task=TaskLabels("choose")), tmp_path_factory.mktemp("chooser") / "model")


def test_answers_are_printed(run: Cloze, answerer: Path) -> None:
    expected = load(answerer).answer_all(["the cat"] * 2, CONTEXTS, top=2)
    words = ("answer", "the cat", *CONTEXTS, "--model", answerer, "--top", 2)
    report = [json.loads(line) for line in run(*words, "--json").out.splitlines()]
    assert [one["context"] for one in report] == CONTEXTS
    assert [[answer["text"] for answer in one["answers"]] for one in report] == [
        [answer.text for answer in answers] for answers in expected
    ]
    header, first, *_ = run(*words).out.splitlines()
    assert header == "answer\tprobability\tcharacters\tquestion"
    best = expected[0][0]
    assert first == f"{best.text}\t{best.probability:.4f}\t{best.start}-{best.end}\tthe cat"


def test_no_answer_is_shown_as_such(run: Cloze, tmp_path: Path) -> None:
    task = TaskLabels("answer", threshold=0.0)
    folder = saved(model_folder(["span"], task=task), tmp_path / "model")
    assert run("answer", "the cat", CONTEXTS[0], "--model", folder).out.splitlines()[1].startswith("(none)\t")


def test_questions_from_a_file(run: Cloze, answerer: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'q,c,answer\nthe cat,"{CONTEXTS[0]}",mine\na dog,"{CONTEXTS[1]}",mine\n', "utf-8")
    flags = ("--text", "q", "--pair", "c", "--output", tmp_path / "out.csv", "--model", answerer)
    assert run("answer", "--input", path, *flags).out == f"{tmp_path / 'out.csv'}: 2 rows\n"
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = load(answerer).answer("the cat", CONTEXTS[0])[0]
    assert rows[0]["answer"] == "mine"
    assert rows[0]["predicted_answer"] == expected.text
    assert (int(rows[0]["start"]), int(rows[0]["end"])) == (expected.start, expected.end)
    run("answer", "the cat", *CONTEXTS, "--model", answerer, "--output", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    assert [list(line) for line in lines] == [["question", "context", "answer", "start", "end", "probability"]] * 2


def test_answer_length_can_be_limited(run: Cloze, answerer: Path, tmp_path: Path) -> None:
    expected = load(answerer).answer_all(["the cat"] * 2, CONTEXTS, top=5, longest=2)
    words = ("answer", "the cat", *CONTEXTS, "--model", answerer, "--top", 5, "--json")
    report = [json.loads(line) for line in run(*words, "--longest-answer", 2).out.splitlines()]
    assert [[answer["text"] for answer in one["answers"]] for one in report] == [
        [answer.text for answer in answers] for answers in expected
    ]
    assert report != [json.loads(line) for line in run(*words).out.splitlines()]
    complaint = "the longest answer is 0 tokens; expected at least 1"
    assert run(*words, "--longest-answer", 0).complaint == complaint
    rows = tmp_path / "a.csv"
    rows.write_text(f'question,context,answer\nthe cat,"{CONTEXTS[1]}",the dog ran\n', "utf-8")
    evaluation = ("evaluate", "answer", rows, "--model", answerer, "--out", tmp_path / "scores", "--longest-answer")
    assert run(*evaluation, 2).code == 0
    (predicted,) = json.loads((tmp_path / "scores" / "predictions.json").read_text("utf-8")).values()
    assert predicted == load(answerer).answer("the cat", CONTEXTS[1], longest=2)[0].text
    assert run(*evaluation, 0).complaint == complaint


def test_flags_apply_to_files(run: Cloze, answerer: Path, tmp_path: Path) -> None:
    path, output = tmp_path / "a.csv", tmp_path / "out.jsonl"
    path.write_text(f'question,context\nthe cat,"{CONTEXTS[0]}"\nthe cat,"{CONTEXTS[1]}"\n', "utf-8")
    words = ("answer", "--input", path, "--output", output, "--model", answerer, "--longest-answer", 2)
    expected = load(answerer).answer_all(["the cat"] * 2, CONTEXTS, top=3, longest=2)
    assert run(*words).code == 0
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [row["answer"] for row in rows] == [answers[0].text for answers in expected]
    assert "answers" not in rows[0]
    assert run(*words, "--top", 3).code == 0
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert [row["answer"] for row in rows] == [answers[0].text for answers in expected]
    assert [[one["text"] for one in row["answers"]] for row in rows] == [
        [answer.text for answer in answers] for answers in expected
    ]


@pytest.mark.parametrize("task", ["choose", "mlm", "correction", "mrpc"])
def test_answer_length_is_rejected_for_other_tasks(run: Cloze, answerer: Path, task: str) -> None:
    report = run("evaluate", task, "a.csv", "--model", answerer, "--longest-answer", 50)
    assert (
        report.complaint == f"--longest-answer is 50, which applies only to question answering; leave it out for {task}"
    )


def test_choices_are_printed(run: Cloze, chooser: Path) -> None:
    expected = load(chooser).choose("the cat", ["sat", "ran", "on a mat"])
    words = ("choose", "the cat", "sat", "ran", "on a mat", "--model", chooser)
    report = json.loads(run(*words, "--json").out)
    assert report == {"prompt": "the cat", "options": [vars(one) for one in expected]}
    lines = run(*words).out.splitlines()
    assert lines[0] == "option\tindex\tprobability\tprompt"
    best = expected[0]
    assert lines[1] == f"{best.text}\t{best.index}\t{best.probability:.4f}\tthe cat"
    assert len(lines) == 4


def test_choices_from_a_file(run: Cloze, chooser: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("p,one,two,three\nthe cat,sat,ran,\nthe dog,sat,ran,on a mat\n", "utf-8")
    flags = ("--text", "p", "--options", "one,two,three", "--model", chooser)
    assert run("choose", "--input", path, *flags, "--output", tmp_path / "out.jsonl").code == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    expected = load(chooser).choose("the cat", ["sat", "ran"])[0]
    assert (rows[0]["choice"], rows[0]["index"]) == (expected.text, expected.index)
    assert rows[0]["one"] == "sat"
    assert len(run("choose", "--input", path, *flags).out.splitlines()) == 3


def test_scores_of_a_file(run: Cloze, chooser: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,one,two,label\nthe cat,sat,ran,A\nthe dog,sat,ran,B\n", "utf-8")
    words = ("evaluate", "choose", path, "--options", "one,two", "--model", chooser, "--json")
    assert json.loads(run(*words).out)["rows"] == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("answer",), "expected a question and a text: cloze answer QUESTION CONTEXT; or --input FILE"),
        (("answer", "who"), "expected a question and a text: cloze answer QUESTION CONTEXT; or --input FILE"),
        (
            ("answer", "who", "--input", "a.csv"),
            "texts were given both as arguments and by --input; use one of the two",
        ),
        (("choose", "who"), "expected a prompt and options: cloze choose PROMPT OPTION OPTION; or --input FILE"),
        (
            ("choose", "who", "--input", "a.csv"),
            "a prompt was given both as an argument and by --input; use one of the two",
        ),
    ],
)
def test_errors_are_reported(run: Cloze, answerer: Path, words: tuple[str, ...], complaint: str) -> None:
    result = run(*words, "--model", answerer)
    assert (result.code, result.complaint) == (2, complaint)


def test_wrong_model_kind_is_reported(run: Cloze, answerer: Path, chooser: Path) -> None:
    report = run("answer", "who", "the cat", "--model", chooser)
    assert report.complaint.startswith("this model has no 'span' head (its heads: choice)")
    report = run("choose", "who", "a", "b", "--model", answerer)
    assert "error: this model has no 'choice' head (its heads: span)" in report.err
    assert run("choose", "who", "a", "--model", chooser).complaint == "1 options; expected at least 2"
