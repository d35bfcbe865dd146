"""``correct``, ``tag``, ``answer`` and ``choose`` on files: parts give the same rows as a single run."""

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloze.checkpoint import TaskLabels
from cloze.cli import inputs
from cloze.progress import Interrupted
from cloze.tasks.tagging.decoding import tag_texts
from tests.cli.conftest import Cloze
from tests.model.made import model_folder, saved

ROWS = 11
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = [f"the cat sat on {'a mat, the dog ran ' * (number % 3)}word{number}" for number in range(ROWS)]
SENTENCES = [["the", "cat", "sat"], ["dogs"], ["a", "word1", "word2", "ran"]]


@dataclass(frozen=True)
class Case:
    """A command with its input rows, and the function that it calls for each part."""

    words: tuple[str, ...]
    rows: list[dict[str, object]]
    called: str
    output: str = "out.jsonl"


def rows_with(**columns: Callable[[int], object]) -> list[dict[str, object]]:
    """Return rows with one additional column, and with a second one from the fifth row on."""
    later: list[dict[str, object]] = [{}] * 4 + [{"later": "x"}] * (ROWS - 4)
    return [
        {"id": number, **{name: make(number) for name, make in columns.items()}, **later[number]}
        for number in range(ROWS)
    ]


CASES = {
    "correct": Case(
        ("correct", "--threshold", "0", "--similar", "similar.tsv"),
        rows_with(text=lambda number: TEXTS[number]),
        "cloze.predict.corrector.Corrector.correct",
    ),
    "correct to csv": Case(
        ("correct", "--threshold", "0", "--similar", "similar.tsv"),
        rows_with(text=lambda number: TEXTS[number]),
        "cloze.predict.corrector.Corrector.correct",
        "out.csv",
    ),
    "tag": Case(("tag",), rows_with(text=lambda number: TEXTS[number]), "cloze.tasks.tagging.decoding.tag_texts"),
    "tag to tsv": Case(
        ("tag",), rows_with(text=lambda number: TEXTS[number]), "cloze.tasks.tagging.decoding.tag_texts", "out.tsv"
    ),
    "tag lists": Case(
        ("tag",), rows_with(text=lambda number: SENTENCES[number % 3]), "cloze.tasks.tagging.decoding.tag_texts"
    ),
    "tag to columns": Case(
        ("tag",),
        # From the third part on, a word contains a space, so that columns must be separated by tabs.
        rows_with(text=lambda number: SENTENCES[number % 3] + (["New York"] if number > 8 else [])),
        "cloze.tasks.tagging.decoding.tag_texts",
        "out.conll",
    ),
    "answer": Case(
        ("answer", "--top", "2"),
        rows_with(question=lambda number: f"the cat word{number}", context=lambda number: TEXTS[number]),
        "cloze.predict.Model.answer_all",
    ),
    "choose": Case(
        ("choose",),
        rows_with(text=lambda number: f"the cat word{number}", options=lambda _: ["sat", "ran", "on a mat"]),
        "cloze.predict.Model.choose_all",
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {
        "correct": model_folder(["mlm"]),
        "tag": model_folder(["token"], labels=5, task=TaskLabels("tag", TAGS, context=True)),
        "answer": model_folder(["span"], task=TaskLabels("answer")),
        "choose": model_folder(["choice"], task=TaskLabels("choose")),
    }
    return {name: saved(folder, place / name) for name, folder in made.items()}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 4)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    found = CASES[request.param]
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found.rows), encoding="utf-8")
    Path("similar.tsv").write_text("cat\tmat dog\nsat\tran\n", encoding="utf-8")
    return found


def arguments_of(case: Case, folders: dict[str, Path], output: str) -> tuple[object, ...]:
    return (*case.words, "--input", "rows.jsonl", "--model", folders[case.words[0]], "--output", output)


def stop_at(monkeypatch: pytest.MonkeyPatch, called: str, count: int) -> list[object]:
    """Interrupt the n-th call by a signal; return the list of all calls."""
    calls: list[object] = []
    *place, name = called.split(".")
    module, owner = (".".join(place), None) if place[-1].islower() else (".".join(place[:-1]), place[-1])
    holder = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    real = getattr(holder, name)

    def call(*given: Any, **more: Any) -> object:
        calls.append(given)
        if len(calls) == count:
            raise Interrupted(15, "stopped")
        return real(*given, **more)

    monkeypatch.setattr(holder, name, call)
    return calls


def shortened(text: str) -> str:
    """Round the numbers in a text, since their last digits depend on the batches."""
    return re.sub(r"\d\.\d{4,}(e-\d+)?", lambda found: f"{float(found[0]):.3f}", text)


@pytest.mark.usefixtures("small_parts")
def test_resumed_is_uninterrupted_to_the_byte(
    case: Case, run: Cloze, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(*arguments_of(case, folders, f"whole-{case.output}"))
    assert whole.code == 0
    assert "rows: 11 of 11  rows/s" in whole.err
    with monkeypatch.context() as patch:
        calls = stop_at(patch, case.called, 3)
        stopped = run(*arguments_of(case, folders, case.output))
        assert (stopped.code, Path(case.output).exists()) == (143, False)
        assert "stopped after 8 rows, which are kept in" in stopped.err
        again = run(*arguments_of(case, folders, case.output))
        assert len(calls) == 4, "the first two parts exist"
    assert again.out == whole.out.replace("whole-", "")
    assert Path(case.output).read_bytes() == Path(f"whole-{case.output}").read_bytes()
    assert not Path(f"{case.output}.parts").exists()


def test_parts_change_nothing(
    case: Case, run: Cloze, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = run(*arguments_of(case, folders, f"once-{case.output}"))
    monkeypatch.setattr(inputs, "PART_ROWS", 4)
    parts = run(*arguments_of(case, folders, case.output))
    assert (once.code, parts.code) == (0, 0)
    assert parts.out == once.out.replace("once-", "")
    printed = [Path(name).read_text(encoding="utf-8") for name in (case.output, f"once-{case.output}")]
    assert shortened(printed[0]) == shortened(printed[1])


@pytest.mark.usefixtures("small_parts")
def test_other_work_does_not_go_on(
    case: Case, run: Cloze, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, case.called, 2)
        assert run(*arguments_of(case, folders, case.output)).code == 143
    with Path("rows.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(case.rows[0]) + "\n")
    words = arguments_of(case, folders, case.output)
    assert "belongs to a job with other settings (input was" in run(*words).err
    assert run(*words, "--fresh").out.startswith(f"{case.output}: 12 rows")


@pytest.mark.usefixtures("small_parts")
def test_a_changed_list_of_similar_words_is_other_work(
    run: Cloze, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["correct"]
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case.rows), encoding="utf-8")
    Path("similar.tsv").write_text("cat\tmat\n", encoding="utf-8")
    with monkeypatch.context() as patch:
        stop_at(patch, case.called, 2)
        assert run(*arguments_of(case, folders, "out.jsonl")).code == 143
    Path("similar.tsv").write_text("cat\tdog\n", encoding="utf-8")
    assert "belongs to a job with other settings (similar was" in run(*arguments_of(case, folders, "out.jsonl")).err


BAD = {
    "correct": ({"text": ""}, "'text' is empty; fill it in, or remove the row"),
    "tag": ({"text": ""}, "'text' is empty; fill it in, or remove the row"),
    "tag lists": ({"text": "words"}, "'text' is 'words'; expected a list"),
    "answer": ({"question": "a", "context": 3}, "'context' is 3; expected text in quotes"),
    "choose": ({"text": "a", "options": ["one"]}, "1 options; expected at least 2"),
}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_detected_before_the_work(
    name: str, run: Cloze, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, (row, complaint) = CASES[name], BAD[name]
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(one) + "\n" for one in [*case.rows, row]]
    Path("rows.jsonl").write_text("".join(lines), encoding="utf-8")
    Path("similar.tsv").write_text("cat\tmat\n", encoding="utf-8")
    calls = stop_at(monkeypatch, case.called, 0)
    result = run(*arguments_of(case, folders, "out.jsonl"))
    assert (result.code, calls) == (2, [])
    assert f"error: rows.jsonl:12: {complaint}" in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "similar.tsv"}


def test_lines_of_text_are_corrected_without_a_column_of_them(
    run: Cloze, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 4)
    source, output = tmp_path / "lines.txt", tmp_path / "out.jsonl"
    source.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    words = ("correct", "--input", source, "--model", folders["correct"], "--output", output, "--json")
    assert json.loads(run(*words).out) | {"corrected": 0} == {"file": str(output), "rows": 11, "corrected": 0}
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["source"] for row in rows] == TEXTS
    assert list(rows[0]) == ["source", "target", "errors", "confidences"]


DOCUMENTS = "-DOCSTART- -X-\n\n" + "the DT\ncat NN\n\nsat VB\n\ndogs NN\nran VB\n\n" * 2
COLUMNS = DOCUMENTS + DOCUMENTS + "-DOCSTART- -X-\n\na DT\nmat NN\n"


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("ending", [".conll", ".jsonl"])
def test_documents_stay_whole_where_they_are_read_together(
    ending: str, context: bool, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TaskLabels("tag", TAGS, context=context)
    folder = saved(model_folder(["token"], labels=5, task=task), tmp_path / "model")
    source, once, output = (tmp_path / name for name in ("in.conll", f"once{ending}", f"out{ending}"))
    source.write_text(COLUMNS, encoding="utf-8")
    words = ("tag", "--input", source, "--model", folder, "--output")
    assert run(*words, once).out.startswith(f"{once}: 13 rows, ")
    sizes: list[int] = []

    def tag(model: Any, texts: Any, groups: Any) -> object:
        sizes.append(len(texts))
        return tag_texts(model, texts, groups)

    monkeypatch.setattr("cloze.tasks.tagging.decoding.tag_texts", tag)
    monkeypatch.setattr(inputs, "PART_ROWS", 4)
    assert run(*words, output).code == 0
    assert sizes == ([6, 6, 1] if context else [4, 4, 4, 1])
    assert shortened(output.read_text(encoding="utf-8")) == shortened(once.read_text(encoding="utf-8"))
    if ending == ".conll":
        lines = output.read_text(encoding="utf-8").splitlines()
        assert [line.split()[0] for line in lines if line].count("-DOCSTART-") == 3


def test_columns_with_a_bad_line(run: Cloze, folders: dict[str, Path], tmp_path: Path) -> None:
    source, output = tmp_path / "in.conll", tmp_path / "out.conll"
    source.write_text("the DT\ncat\n", encoding="utf-8")
    words = ("tag", "--input", source, "--model", folders["tag"], "--output", output)
    assert f"error: {source}:2: 1 columns, but the lines before have 2" in run(*words).err
    source.write_text("\n\n", encoding="utf-8")
    assert f"error: {source}: contains no sentences; expected a word and its tag per line\n" in run(*words).err


def test_the_input_is_not_overwritten(run: Cloze, folders: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "the cat"}\n', encoding="utf-8")
    for command in ("correct", "tag"):
        printed = run(command, "--input", source, "--model", folders[command], "--output", source).err
        assert f"error: --output {source}: this is the --input itself; choose another location\n" in printed
