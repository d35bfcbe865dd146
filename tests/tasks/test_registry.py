"""Tasks by name: what published and custom files need, and what is rejected."""

import gzip
import json
from pathlib import Path

import pytest

from cloze.errors import ConfigError, DataError
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.registry import find_task, read_examples, read_task
from cloze.tasks.rows import Source
from cloze.tasks.tables import is_table
from cloze.train.finetuning.domain_adaptation import read_other_splits, read_test_file

RTE = "index\tsentence1\tsentence2\tlabel\n"
MNLI = "sentence1\tsentence2\tgold_label\n"
FILES = {
    "RTE/train.tsv": f"{RTE}0\tA.\tB.\tentailment\n1\tC.\tD.\tnot_entailment\n",
    "RTE/dev.tsv": f"{RTE}0\tE.\tF.\tentailment\n",
    "RTE/test.tsv": "index\tsentence1\tsentence2\n0\tG.\tH.\n",
    "MNLI/train.tsv": f"{MNLI}One.\tTwo.\tneutral\n",
    "MNLI/dev_matched.tsv": f"{MNLI}Three.\tFour.\tneutral\n",
    "MNLI/dev_mismatched.tsv": f"{MNLI}Five.\tSix.\tneutral\n",
    "MNLI/test_matched.tsv": "sentence1\tsentence2\nSeven.\tEight.\n",
    "conll/train.txt": "Anna B-PER\n",
    "conll/valid.txt": "Berta B-PER\n",
    "conll/test.txt": "Clara B-PER\nslept O\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def texts(source: Source) -> list[str]:
    dev = read_task(source).dev
    assert isinstance(dev, LabelledTexts)
    return dev.texts


def test_names_of_files_may_be_texts() -> None:
    source = Source("classify", "a.csv", "b.csv")
    assert (source.data, source.dev) == (Path("a.csv"), Path("b.csv"))


def test_a_published_task_may_be_scored_on_another_file(folder: Path) -> None:
    other = folder / "other.tsv"
    other.write_text(f"{RTE}0\tMine.\tYours.\tentailment\n", encoding="utf-8")
    assert texts(Source("rte", folder)) == ["E."]
    assert texts(Source("rte", folder, other)) == ["Mine."]


@pytest.mark.parametrize("column", ["text", "pair", "label", "options"])
def test_columns_of_published_files_are_not_to_be_named(folder: Path, column: str) -> None:
    source = Source("rte", folder, **{column: "mine"})  # type: ignore[arg-type]
    for read in (lambda: read_task(source), lambda: read_examples(source, None)):
        with pytest.raises(ConfigError) as caught:
            read()
        assert str(caught.value) == (
            f"{column} is 'mine', but the files of rte have their own columns; "
            "leave it out, or use classify for your own files"
        )


@pytest.mark.parametrize(
    ("task", "column"), [("choose", "pair"), ("tag", "pair"), ("tag", "options"), ("classify", "options")]
)
def test_columns_that_a_kind_does_not_have_are_refused(tmp_path: Path, task: str, column: str) -> None:
    with pytest.raises(ConfigError, match=f"{column} is 'mine', but rows for {task} have no such column; leave it out"):
        read_task(Source(task, tmp_path / "rows.csv", **{column: "mine"}))  # type: ignore[arg-type]


def test_what_is_no_single_task_is_told() -> None:
    with pytest.raises(
        ConfigError, match=r"glue is a suite of several tasks; name one of them: cola, .*; cloze finetune glue"
    ):
        find_task("GLUE")
    with pytest.raises(ConfigError, match="similarity has no labels to predict; it is only for cloze finetune"):
        find_task("similarity")


def test_unpublished_labels_are_told(folder: Path) -> None:
    with pytest.raises(DataError, match="rte: the labels of its test rows are not published"):
        read_examples(Source("rte", folder), None, "test")
    with pytest.raises(ConfigError, match="rte has no split 'testing'; did you mean 'test'"):
        read_examples(Source("rte", folder), None, "testing")


def test_nothing_but_bad_rows_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"all 2 rows are bad; the first: .*a\.csv:2: label 'x' is not a finite"):
        read_examples(Source("regress", path, on_bad_row="skip"), None)
    with pytest.raises(DataError, match=r"all 2 rows are bad; the first: .*a\.csv:2: label 'x' is not among"):
        read_examples(Source("classify", path, on_bad_row="skip"), ["no", "yes"])


def test_a_label_that_is_no_number_is_no_label(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 1.0}\n{"text": "b", "label": NaN}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.jsonl:2: 'label' is nan; label the row"):
        read_task(Source("classify", path, path))


@pytest.mark.parametrize(
    ("name", "table"),
    [("a.csv", True), ("A.CSV", True), ("a.ndjson.gz", True), ("a.Parquet", True), ("a.csv.txt", False), ("a", False)],
)
def test_tables_are_known_by_their_endings(name: str, table: bool) -> None:
    assert is_table(Path(name)) is table


def test_other_splits_are_read_without_their_labels(folder: Path) -> None:
    assert read_other_splits(Source("rte", folder)) == [(f"{folder}/RTE/test.tsv:2", ["G.", "H."])]
    assert [found for _, found in read_other_splits(Source("MNLI", folder))] == [
        ["Five.", "Six."],
        ["Seven.", "Eight."],
    ]
    assert read_other_splits(Source("conll", folder / "conll")) == [(f"{folder}/conll/test.txt:1", ["Clara slept"])]


def test_a_single_file_has_no_other_splits(folder: Path) -> None:
    # Training rows must not be used as rows to evaluate.
    train = folder / "conll" / "train.txt"
    assert read_other_splits(Source("conll", train, folder / "conll" / "valid.txt")) == []
    assert read_other_splits(Source("classify", folder / "a.csv")) == []
    assert read_other_splits(Source("squad", folder)) == []


ARC = {
    "id": "q1",
    "question": {"stem": "Which is warm?", "choices": [{"text": "ice", "label": "A"}, {"text": "fire", "label": "B"}]},
    "answerKey": "B",
}


def test_other_splits_of_choices_and_questions(tmp_path: Path) -> None:
    text = json.dumps(ARC) + "\n"
    for name in ("Train", "Dev"):
        (tmp_path / f"ARC-Easy-{name}.jsonl").write_text(text, encoding="utf-8")
    assert read_other_splits(Source("arc", tmp_path)) == []
    test = tmp_path / "ARC-Easy-Test.jsonl.gz"
    test.write_bytes(gzip.compress(text.encode()))
    assert read_other_splits(Source("ARC", tmp_path)) == [(f"{test}:1", ["Which is warm?", "ice", "fire"])]
    question = {"id": "1", "question": "Wer?", "answers": [{"text": "er", "answer_start": 0}]}
    article = {"data": [{"paragraphs": [{"context": "er war es", "qas": [question]}]}]}
    trial = tmp_path / "cmrc2018_trial.json"
    trial.write_text(json.dumps(article), encoding="utf-8")
    assert read_other_splits(Source("cmrc", tmp_path)) == [(f"{trial}:1", ["Wer?", "er war es"])]


@pytest.mark.parametrize(
    ("task", "name"), [("arc", "ARC-Easy-Test.jsonl"), ("rte", "RTE/test.tsv"), ("conll", "test.txt")]
)
def test_a_damaged_test_file_is_not_taken_for_a_missing_one(tmp_path: Path, task: str, name: str) -> None:
    text = FILES.get(name, FILES.get(f"conll/{name}", json.dumps(ARC) + "\n")) * 50
    path = tmp_path / f"{name}.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode())[:-12])
    with pytest.raises(DataError, match=r"\.gz: cannot be decompressed"):
        read_other_splits(Source(task, tmp_path))


OWN_TESTS: dict[str, tuple[str, str, dict[str, str], list[str]]] = {
    "classify": ("t.csv", "text\none row\n", {}, ["one row"]),
    "multilabel": ("t.jsonl", '{"body": "one row", "label": "x"}\n', {"text": "body"}, ["one row"]),
    "regress": ("t.tsv", "text\tother\none\trow\n", {"pair": "other"}, ["one", "row"]),
    "tag": ("t.txt", "one X\nrow Y\n", {}, ["one row"]),
    "answer": ("t.csv", "question,context\nwho?,one row\n", {}, ["who?", "one row"]),
    "choose": ("t.csv", "text,a,b\nwhich?,one,row\n", {"options": "a,b"}, ["which?", "one", "row"]),
}


@pytest.mark.parametrize("task", OWN_TESTS)
def test_test_rows_of_own_files_need_no_labels(tmp_path: Path, task: str) -> None:
    name, text, columns, expected = OWN_TESTS[task]
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    source = Source(task, tmp_path / "train.csv", **columns)  # type: ignore[arg-type]
    assert [found for _, found in read_test_file(source, path)] == [expected]


def test_test_words_of_own_files_may_be_lists_or_in_a_column_with_a_number(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"words": ["one", "row"]}\n', encoding="utf-8")
    assert read_test_file(Source("tag", path, text="words"), path) == [(f"{path}:1", ["one row"])]
    path = tmp_path / "t.txt"
    path.write_text("1 one\n2 row\n", encoding="utf-8")
    assert read_test_file(Source("tag", path, text="2"), path) == [(f"{path}:1", ["one row"])]
    question = {"question": "who?", "id": "7"}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "one row", "qas": [question]}]}]}), "utf-8")
    assert read_test_file(Source("answer", path), path) == [(f"{path}:7", ["who?", "one row"])]


def test_published_tasks_have_test_files_of_their_own(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"test is .*t\.csv, but rte has its own test files, .*; omit test, or"):
        read_test_file(Source("rte", folder), folder / "t.csv")
