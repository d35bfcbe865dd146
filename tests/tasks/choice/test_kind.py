"""Published and custom multiple-choice files, and their encoding."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from cloze.errors import DataError
from cloze.tasks.choice.kind import Choice, Choices, choice_items, each_unlabelled_choice
from cloze.tasks.registry import read_examples, read_task
from cloze.tasks.rows import Source
from cloze.text import SPECIAL, Tokenizer

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,anet_1,7,He opens the door. He,He opens the door.,He,gold,"goes in, slowly.",is a door.,sings.,sees the sea.,0\n'
    "1,anet_2,8,It rains. ,It rains.,,gold,They run.,They sing.,The sun.,A letter.,3\n"
)
ARC = (
    'Which is a liquid?,iron,water,"air, and more",wood,B\n'
    "How many legs has a cat?,2,3,4,,3\n"
    "Which is not there?,a,b,c,d,E\n"
    "Which is missing?,,,,,2\n"
)
ARC_JSON: dict[str, Any] = {
    "id": "Mercury_1",
    "question": {
        "stem": "Which is a liquid?",
        "choices": [{"text": "iron", "label": "1"}, {"text": "water", "label": "2"}, {"text": "wood", "label": "3"}],
    },
    "answerKey": "2",
}


def write(path: Path, content: str | list[dict[str, Any]]) -> Path:
    text = content if isinstance(content, str) else "".join(json.dumps(line) + "\n" for line in content)
    path.write_text(text, encoding="utf-8")
    return path


def read(task: str, path: Path, **options: Any) -> Choices:
    examples = read_examples(Source(task, path, **options), None)
    assert isinstance(examples, Choices)
    return examples


def complaint(task: str, path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(task, path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_swag_as_published(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", SWAG)
    write(tmp_path / "val.csv", SWAG)
    data = read_task(Source("swag", tmp_path))
    assert (data.kind.name, data.metrics, data.labels) == ("choose", ("accuracy",), None)
    assert isinstance(data.train, Choices)
    assert data.train.rows == [
        Choice(
            f"{tmp_path / 'train.csv'}:2",
            "He opens the door.",
            ("He goes in, slowly.", "He is a door.", "He sings.", "He sees the sea."),
            0,
        ),
        Choice(f"{tmp_path / 'train.csv'}:3", "It rains.", ("They run.", "They sing.", "The sun.", "A letter."), 3),
    ]
    assert data.dev.places[0] == f"{tmp_path / 'val.csv'}:2"
    bad = write(tmp_path / "bad.csv", SWAG.replace('slowly.",is a door.,sings.,sees the sea.,0', 'x",y,z,w,4'))
    assert complaint("swag", bad) == "bad.csv:2: label '4' is none of the 4 options; expected 0 to 3"


def test_arc_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "arc_easy_dev.csv", ARC)
    found = read("arc", path)
    assert [(row.prompt, row.options, row.target) for row in found.rows] == [
        ("Which is a liquid?", ("iron", "water", "air, and more", "wood"), 1),
        ("How many legs has a cat?", ("2", "3", "4"), 2),
    ]
    assert found.skipped == 2
    # With ``on_bad_row="stop"``, the first bad row is an error.
    assert complaint("arc", path, on_bad_row="stop") == (
        "arc_easy_dev.csv:3: label 'E' is none of the 4 options; expected A, B, C, D"
    )
    notes = read_task(Source("arc", path, path)).notes
    assert notes == ("2 bad training rows were skipped", "2 bad dev rows were skipped")
    lost = write(tmp_path / "lost.csv", "Which?,a,b,c,,D\n")
    assert complaint("arc", lost, on_bad_row="stop").startswith("lost.csv:1: label 'D' is none of the 3 options")


def test_arc_as_published(tmp_path: Path) -> None:
    fourth = {**ARC_JSON, "answerKey": "B"}
    write(tmp_path / "ARC-Challenge-Train.jsonl", [ARC_JSON, fourth])
    write(tmp_path / "ARC-Challenge-Dev.jsonl", [ARC_JSON])
    data = read_task(Source("arc", tmp_path))
    assert isinstance(data.train, Choices)
    assert data.train.rows[0].options == ("iron", "water", "wood")
    assert data.train.rows[0].target == 1
    assert (len(data.train), data.train.skipped, len(data.dev)) == (1, 1, 1)
    path = write(tmp_path / "odd.jsonl", [{**ARC_JSON, "question": "x"}])
    assert complaint("arc", path, on_bad_row="stop") == (
        "odd.jsonl:1: 'question' is 'x'; expected an object with stem and choices"
    )
    write(tmp_path / "ARC-Easy-Dev.jsonl", [ARC_JSON])
    assert complaint("arc", tmp_path).endswith(
        "has files of both ARC-Easy and ARC-Challenge; name a file, and another as dev (--dev)"
    )


def test_own_options_in_columns_or_a_list(tmp_path: Path) -> None:
    table = write(tmp_path / "a.csv", "q,one,two,three,right\nWhich?,a,b,,A\nWhat?,cat,dog,cow,cow\nWho?,x1,x2,x3,1\n")
    rows = read("choose", table, text="q", options="one, two,three", label="right").rows
    assert [(row.options, row.target) for row in rows] == [
        (("a", "b"), 0),
        (("cat", "dog", "cow"), 2),
        (("x1", "x2", "x3"), 1),
    ]
    listed = [
        {"text": "Which?", "options": ["a", "b"], "label": 1},
        {"text": "What?", "options": ["5", "1"], "label": 1},
    ]
    expected = [(("a", "b"), 1), (("5", "1"), 1)]
    lines = read("choose", write(tmp_path / "a.jsonl", listed)).rows
    assert [(row.options, row.target) for row in lines] == expected
    parquet.write_table(pyarrow.Table.from_pylist(listed), tmp_path / "a.parquet")
    assert [(row.options, row.target) for row in read("choose", tmp_path / "a.parquet").rows] == expected
    piped = write(tmp_path / "b.csv", "text,options,label\nWhich?,a|b | c,B\n")
    assert read("choose", piped).rows[0].options == ("a", "b", "c")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"options": ["a", "b"], "label": 2}, "label '2' is none of the 2 options; expected 0 to 1"),
        ({"options": ["a", "b"], "label": -1}, "label '-1' is none of the 2 options; expected 0 to 1"),
        (
            {"options": ["a", "b"], "label": "c"},
            "label 'c' is none of the 2 options; expected a letter from A, a number from 0, or the text of an option",
        ),
        (
            {"options": ["2", "3", "4"], "label": "2"},
            "label '2' may mean the options 0, 2 (counted from 0); "
            "identify the option in another way: by letter, number or text",
        ),
        ({"options": ["B", "A"], "label": "A"}, "label 'A' may mean the options 0, 1 (counted from 0)"),
        ({"options": ["x", "x"], "label": "x"}, "label 'x' may mean the options 0, 1 (counted from 0)"),
        ({"options": ["a"], "label": 0}, "1 options; expected at least 2 (in one column, separated by |)"),
        ({"options": ["a", ""], "label": 0}, "the options are ['a', '']; expected non-empty texts"),
        ({"options": ["a", 4], "label": 0}, "the options are ['a', 4]; expected non-empty texts"),
        (
            {"label": 0},
            "this row has no 'options'; it has: text, label; name the column or columns of the "
            "options with options (--options)",
        ),
        ({"options": ["a", "b"]}, "this row has no 'label'"),
    ],
)
def test_bad_rows_are_told_or_counted(tmp_path: Path, line: dict[str, Any], expected: str) -> None:
    good = {"text": "Which?", "options": ["a", "b"], "label": 1}
    path = write(tmp_path / "a.jsonl", [{"text": "What?", **line}, good])
    assert complaint("choose", path).startswith(f"a.jsonl:1: {expected}")
    kept = read("choose", path, on_bad_row="skip")
    assert (len(kept), kept.skipped) == (1, 1)


def test_gap_between_options_is_bad_since_letters_would_shift(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,a,b,c,label\nWhich?,x,,z,B\n")
    assert complaint("choose", path, options="a,b,c") == (
        "a.csv:2: the options are ['x', '', 'z']; expected non-empty texts"
    )
    assert complaint("choose", path, options="a,b,c", on_bad_row="skip").startswith(
        "a.csv: all 1 rows are bad; the first: a.csv:2: the options are"
    )


def test_rows_to_ask(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,options,more\nWhich?,a|b,1\n")
    ((choice, fields),) = each_unlabelled_choice(path, "text", "options")
    assert choice == Choice(f"{path}:2", "Which?", ("a", "b"))
    assert fields == {"text": "Which?", "options": "a|b", "more": "1"}


def test_items_have_a_sequence_for_every_option() -> None:
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL, "which", "cat", "dog", "cow"], lowercase=True, max_length=6)
    rows = [
        Choice("f:1", "Which", ("cat", "dog dog dog dog", "cow"), 2),
        Choice("f:2", "which which", ("dog", "cat"), 0),
    ]
    first, second = choice_items(Choices(rows), tokenizer)
    assert [one.tokens for one in first.encodings] == [
        ["[CLS]", "which", "[SEP]", "cat", "[SEP]"],
        ["[CLS]", "which", "[SEP]", "dog", "dog", "[SEP]"],
        ["[CLS]", "which", "[SEP]", "cow", "[SEP]"],
    ]
    assert first.encodings[1].dropped == 2
    assert [one.segments[-1] for one in second.encodings] == [1, 1]
    assert (first.target, second.target) == (2, 0)


def test_rows_are_chosen_and_read_without_their_labels() -> None:
    rows = [Choice(f"f:{number}", f"p{number}", ("a", "b"), 0) for number in range(4)]
    chosen = Choices(rows, skipped=2).select([3, 1])
    assert (chosen.places, len(chosen), chosen.skipped) == (["f:3", "f:1"], 2, 2)
    assert chosen.documents() == [["p3", "a", "b"], ["p1", "a", "b"]]
