"""In-memory rows are read like the rows of a file."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from cloze.errors import ConfigError, DataError
from cloze.files import RowError
from cloze.tasks.answering.kind import ANSWER
from cloze.tasks.choice.kind import CHOOSE
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS
from cloze.tasks.examples import fingerprint
from cloze.tasks.in_memory import RowsInMemory, as_table_source, read_columns, texts_of
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source, read_rows
from cloze.tasks.tagging.kind import TAG

COLUMNS: dict[str, Any] = {"text": ["good film", "bad film", "fine, too", "dull"], "label": [1, 0, 1, 0]}
ROWS = [dict(zip(COLUMNS, cells, strict=True)) for cells in zip(*COLUMNS.values(), strict=True)]


class Interchange:
    """A data frame that only supports the older interchange protocol."""

    def __dataframe__(self, **options: Any) -> Any:
        return pa.table(COLUMNS).__dataframe__(**options)


FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "generator": lambda: (dict(row) for row in ROWS),
    "texts and labels": lambda: (COLUMNS["text"], COLUMNS["label"]),
    "arrays": lambda: (np.array(COLUMNS["text"]), np.array(COLUMNS["label"])),
    "series": lambda: (pd.Series(COLUMNS["text"]), pl.Series(COLUMNS["label"])),
    "pairs of values": lambda: zip(*COLUMNS.values(), strict=True),
    "columns": lambda: COLUMNS,
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas, filtered": lambda: pd.DataFrame({"text": ["x", *COLUMNS["text"]], "label": [3, *COLUMNS["label"]]})[1:],
    "pandas, objects": lambda: pd.DataFrame(COLUMNS, dtype=object),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
    "interchange": Interchange,
    "datasets": lambda: Dataset.from_dict(COLUMNS),
    "datasets, selected": lambda: Dataset.from_dict(COLUMNS).select([3, 2, 1, 0]).select([3, 2, 1, 0]),
    "datasets, iterable": lambda: Dataset.from_dict(COLUMNS).to_iterable_dataset(),
}


def rows_of(data: Any, **columns: Any) -> RowsInMemory:
    rows = as_table_source(data, "train", **{"text": "text", "pair": None, "label": "label", **columns})
    assert isinstance(rows, RowsInMemory)
    return rows


def complaint(data: Any, task: str = CLASSIFY.name, **columns: Any) -> str:
    with pytest.raises((DataError, RowError)) as caught:
        read_task(Source(task, data, **columns))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows_and_fingerprint(form: str) -> None:
    rows = rows_of(FORMS[form]())
    assert rows.cells == ROWS
    assert rows.fingerprint == rows_of(ROWS).fingerprint
    assert [type(cell) for row in rows.cells for cell in row.values()] == [str, int] * len(ROWS)
    assert rows.recorded() == f"4 rows in memory ({rows.fingerprint})"


@pytest.mark.parametrize("form", FORMS)
def test_examples_equal_those_of_a_file(form: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame(COLUMNS).to_csv(path, index=False)
    of_file = read_task(Source(CLASSIFY.name, path, path))
    of_memory = read_task(Source(CLASSIFY.name, FORMS[form](), ROWS))
    assert of_memory.labels == of_file.labels
    assert fingerprint(of_memory.train, of_memory.dev) == fingerprint(of_file.train, of_file.dev)


def test_other_rows_have_another_fingerprint() -> None:
    before = rows_of(ROWS).fingerprint
    assert rows_of([*ROWS[:3], {"text": "dull", "label": 1}]).fingerprint != before
    assert rows_of([*ROWS[:3], {"text": "dull", "label": "0"}]).fingerprint != before
    assert rows_of(ROWS[::-1]).fingerprint != before
    assert rows_of([{"text": "\ud800"}]).fingerprint != rows_of([{"text": "\ud801"}]).fingerprint
    assert rows_of(ROWS) == rows_of(pl.DataFrame(COLUMNS))


def test_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from cloze.tasks.in_memory import as_table_source\n"
        "rows = as_table_source([{'text': 'a', 'more': {'b', 'c'}}], 'train', text='text', pair=None, label='label')\n"
        "print(rows.fingerprint)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout


def test_an_iterator_is_read_once() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ROWS

    source = Source(CLASSIFY.name, rows())
    assert [row.text for row in read_rows(source.data, text="text")] == COLUMNS["text"]
    assert [row.text for row in read_rows(source.data, text="text")] == COLUMNS["text"]


def test_nothing_is_imported_for_lists() -> None:
    code = (
        "import sys\n"
        "from cloze.tasks.rows import Source, read_rows\n"
        "source = Source('classify', [{'text': 'a', 'label': 'b'}], (['a'], ['b']))\n"
        "assert [row.label for row in read_rows(source.data, text='text', label='label')] == ['b']\n"
        "print([name for name in ('pandas', 'polars', 'pyarrow', 'datasets', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BAD_CELLS = {
    "None": (None, "train row 2: 'text' is None; expected text in quotes; fill it in, or pass on_bad_row='skip'"),
    "NaN": (math.nan, "train row 2: 'text' is nan; expected text in quotes; fill it in, or pass on_bad_row='skip'"),
    "NA": (pd.NA, "train row 2: 'text' is None; expected text in quotes; fill it in, or pass on_bad_row='skip'"),
    "number": (3, "train row 2: 'text' is 3; expected text in quotes"),
    "NumPy number": (np.float32(0.5), "train row 2: 'text' is 0.5; expected text in quotes"),
    "bytes": (b"bad", "train row 2: 'text' is b'bad'; expected text in quotes"),
    "empty": (" ", "train row 2: 'text' is empty; fill it in, or pass on_bad_row='skip'"),
}


@pytest.mark.parametrize("name", BAD_CELLS)
def test_bad_text_is_refused_with_its_row(name: str) -> None:
    cell, expected = BAD_CELLS[name]
    assert complaint([ROWS[0], {"text": cell, "label": 0}, ROWS[2]]) == expected
    assert complaint((["a", cell, "b"], [0, 1, 0])) == expected


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame({"text": ["a", None], "label": [0, 1]}), "train row 2: 'text' is None; expected text"),
        (pd.DataFrame({"text": ["a", 7.5], "label": [0, 1]}), "train row 2: 'text' is 7.5; expected text"),
        (pd.DataFrame({"text": ["a", "b"], "label": [0, None]}), "train row 2: 'label' is None; expected text or a n"),
        (pd.DataFrame({"text": ["a", "b"], "label": [0, {1}]}), "train row 2: 'label' is {1}; expected text or a n"),
        (pl.DataFrame({"text": ["a", None], "label": [0, 1]}), "train row 2: 'text' is None; expected text"),
        (pl.DataFrame({"text": ["a", "b"], "label": [0.0, math.nan]}), "train row 2: 'label' is nan; label"),
        (pa.table({"text": [["a"], ["b"]], "label": [0, 1]}), "train row 1: 'text' is ['a']; expected text in quotes"),
        (pa.table({"txt": ["a"], "label": [0]}), "train has no column 'text'; it has: txt, label; did you mean 'txt'?"),
        (Dataset.from_dict({"text": ["a"]}), "train has no column 'label'; it has: text"),
        (pd.DataFrame([["a", 1]], columns=["text", "text"]), "train: 2 columns are named 'text'; give every column a"),
    ],
)
def test_bad_frames_are_refused_with_their_row(frame: Any, expected: str) -> None:
    assert complaint(frame).startswith(expected)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], "train has no rows; expected at least one"),
        (pd.DataFrame({"text": [], "label": []}), "train has no rows; expected at least one"),
        (3, "train is 3 (int); expected a path, a list of dicts, (texts, labels), "),
        (None, "train is None (NoneType); expected a path, "),
        (b"rows.csv", "train is b'rows.csv' (bytes); expected a path, "),
        ([1, 2], "train row 1: 1 is not a row; expected a dict such as {'text': '...', 'label': '...'}"),
        (["a", "b"], "train row 1: this row has no 'label'; it has: text; "),
        ((["a", "b"], [0]), "train: the columns differ in length: 2 in 'text', 1 in 'label'; give one value per row"),
        ((["a", "b"], 0), "train: column 'label' is 0; expected a list with one value per row"),
        (("ab", [0, 1]), "train: column 'text' is 'ab'; expected a list with one value per row"),
        (DatasetDict(train=Dataset.from_dict(COLUMNS)), "train is a dict of data sets; give one of them, such as "),
        ([{"text": "a", "label": 0}, {"text": "b"}], "train row 2: this row has no 'label'; it has: text"),
    ],
)
def test_what_is_no_table_is_refused(data: Any, expected: str) -> None:
    assert complaint(data).startswith(expected)


def test_dev_rows_are_named_as_such() -> None:
    with pytest.raises(RowError, match=r"^dev row 1: 'text' is None; "):
        read_task(Source(CLASSIFY.name, ROWS, [{"text": None, "label": 1}]))


def test_bad_rows_can_be_skipped() -> None:
    data = read_task(Source(CLASSIFY.name, [*ROWS, {"text": None, "label": 1}], ROWS, on_bad_row="skip"))
    assert (len(data.train), data.train.skipped) == (4, 1)
    assert data.notes == ("1 bad training rows were skipped",)


def test_pairs_and_columns_of_other_names() -> None:
    paired = read_task(Source(CLASSIFY.name, ((["a", "b"], ["c", "d"]), ["x", "y"]), ((["a"], ["c"]), ["x"])))
    assert paired.train.documents() == [["a", "c"], ["b", "d"]]
    frame = pd.DataFrame({"q1": ["a", "b"], "q2": ["c", "d"], "same": ["x", "y"]})
    named = read_task(Source(CLASSIFY.name, frame, frame, text="q1", pair="q2", label="same"))
    assert fingerprint(named.train) == fingerprint(paired.train)


def test_published_tasks_are_read_from_files() -> None:
    with pytest.raises(ConfigError, match=r"^train is 4 rows in memory, but mrpc is read from its published files; "):
        read_task(Source("mrpc", ROWS))


def test_other_kinds_read_rows_in_memory() -> None:
    several = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}]
    train: Any = read_task(Source(MULTILABEL.name, several, several)).train
    assert train.targets == [(1, 1), (0, 0)]
    numbers = pd.DataFrame({"text": ["a", "b"], "label": [0.5, 2.0]})
    train = read_task(Source(REGRESS.name, numbers, numbers)).train
    assert train.targets == [0.5, 2.0]
    tagged = [{"text": ["Ann", "sings"], "label": ["B-PER", "O"]}, {"text": "Bob sings", "label": "B-PER O"}]
    for form in (tagged, pl.DataFrame(tagged[:1]), pa.Table.from_pylist(tagged[:1]), Dataset.from_list(tagged[:1])):
        train = read_task(Source(TAG.name, form, form)).train
        assert train.words[0] == ["Ann", "sings"]
        assert train.places[0] == "train row 1"
    options = [{"text": "The sky is", "options": ["blue", "loud"], "label": 0}]
    for form in (options, pd.DataFrame(options), pl.DataFrame(options)):
        train = read_task(Source(CHOOSE.name, form, form)).train
        assert train.rows[0].options == ("blue", "loud")
    questions = [{"question": "Who sings?", "context": "Ann sings.", "answers": {"text": ["Ann"], "answer_start": [0]}}]
    of_list = read_task(Source(ANSWER.name, questions, questions))
    assert fingerprint(read_task(Source(ANSWER.name, pd.DataFrame(questions), questions)).train) == fingerprint(
        of_list.train
    )


def test_tags_of_memory_are_refused_with_their_row() -> None:
    rows: list[dict[str, Any]] = [{"text": ["a"], "label": ["O"]}, {"text": ["a", "b"], "label": ["O"]}]
    assert complaint(rows, TAG.name).startswith("train row 2: 2 words in 'text', but 1 tags in 'label'")
    rows = [{"text": ["a"], "label": [None]}]
    assert complaint(rows, TAG.name).startswith("train row 1: item 1 of 'label' is None; expected a text")


def test_texts_are_checked_one_by_one() -> None:
    assert texts_of(pd.Series(["a", "b"]), "texts") == ["a", "b"]
    with pytest.raises(DataError, match=r"^texts row 2: None is not a text; "):
        texts_of(["a", None], "texts")
    with pytest.raises(DataError, match=r"^texts is 'abc' \(str\); expected a list of texts"):
        texts_of("abc", "texts")


def test_rows_of_a_frame_have_its_index() -> None:
    rows = as_table_source(
        pd.DataFrame({"text": ["a", "b"], "label": ["x", None]}, index=[7, 3]),
        "dev",
        text="text",
        pair=None,
        label="label",
    )
    assert isinstance(rows, RowsInMemory)
    assert [record.place for record in rows.open()] == ["dev row 1 (index 7)", "dev row 2 (index 3)"]
    assert rows.columns == ("text", "label")
    mixed = pd.DataFrame({"text": ["a", 1], "label": [2, "x"]}, index=["p", "q"])
    assert as_table_source(mixed, "dev", text="text", pair=None, label="label").place(2) == "dev row 2 (index q)"  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"data row 2 \(index q\): 'text' is 1; expected text in quotes"):
        read_columns(mixed, ["text"])
    counted = as_table_source(mixed.reset_index(drop=True), "dev", text="text", pair=None, label="label")
    assert counted.place(2) == "dev row 2"  # type: ignore[union-attr]
