"""``cloze heads``: the table, the file, the pictures, and its error messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.cli import main
from cloze.errors import ClozeError, ConfigError
from cloze.inspect import HeadSettings
from cloze.inspect.patterns import PATTERNS
from cloze.inspect.survey import Survey, survey_heads
from cloze.inspect.survey_report import example_line, summary_lines, table_rows, write_survey
from tests.cli.conftest import quiet_neighbours as quiet_neighbours  # a fixture
from tests.inspect.made_heads import QUICK, made_documents
from tests.inspect.test_survey import made_model, with_shifted_head


@pytest.fixture(scope="module")
def survey() -> Survey:
    """The survey of a model in which layer 0, head 1 attends to the next token."""
    return survey_heads(made_model(with_shifted_head(1)), made_documents(), QUICK)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder and a text."""
    folder = tmp_path_factory.mktemp("heads")
    made_model(with_shifted_head(1)).save(folder / "model")
    text = "\n\n".join("\n".join(document) for document in made_documents())
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder


def test_file(survey: Survey, tmp_path: Path) -> None:
    write_survey(survey, "made", tmp_path / "new" / "folder")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "heads.json",
        "heads.png",
        "heads.svg",
    ]
    # The browser's JSON parser, which reads the file, does not accept NaN.
    text = (tmp_path / "new" / "folder" / "heads.json").read_text(encoding="utf-8")
    value: dict[str, Any] = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert (value["model"], value["layers"], value["heads_a_layer"]) == ("made", 2, 2)
    assert value["counts"]["next"] == 1
    head = value["heads"][1]
    assert (head["layer"], head["head"], head["label"], head["labels"]) == (0, 1, "next", ["next"])
    assert head["scores"].keys() == {*PATTERNS, "broad"}
    low, high = head["intervals"]["next"]
    assert head["nulls"]["shuffled_high"]["next"] < low <= head["scores"]["next"] <= high
    example = head["examples"][0]
    assert len(example["weights"]) == len(example["tokens"]) == len(example["segments"])
    assert example["pattern"] == "next"


def test_pictures_are_the_same_for_the_same_survey(survey: Survey, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_survey(survey, "made", tmp_path / name)
    for name in ("heads.png", "heads.svg", "heads.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "the next token of the sentence" in (tmp_path / "one" / "heads.json").read_text(encoding="utf-8")


def test_table_and_findings(survey: Survey) -> None:
    rows = list(table_rows(survey))
    assert [row[:3] for row in rows] == [(one.layer, one.head, one.label) for one in survey.reports]
    assert rows[1][3] == f"{survey.scores.score[0, 1]:.2f}"
    summary = "\n".join(summary_lines(survey))
    assert "labels of 4 heads (a head may have several): next 1" in summary
    assert "no head is significantly above its null for: previous, same, other, predictive, separators, self" in summary
    assert "measured by the change of the last states, on 8 sequences" in summary


def test_example_in_a_line(survey: Survey) -> None:
    example = survey.reports[1].examples[0]
    expected = f"{example.tokens[example.origin]} -> {example.tokens[example.origin + 1]} {example.share:.2f}, "
    assert example_line(example).startswith(expected)


def test_place_that_cannot_be_written(survey: Survey, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ClozeError, match=r"file: cannot be created \(File exists\); choose another --out"):
        write_survey(survey, "made", tmp_path / "file")


SHORT = ("--sequences", "20", "--shuffles", "200", "--resamples", "100", "--predictive-sequences", "2")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command and return its output."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_command(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found"
    output = run(capsys, "heads", files / "text.txt", "--model", files / "model", "--out", out, *SHORT)
    assert "0\t1\tnext\t" in output
    assert "next\tlayer 0, head 1\t" in output
    assert f"{out}: heads.json, heads.png, heads.svg" in output
    assert (out / "heads.json").is_file()


def test_command_prints_json(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    related = tmp_path / "related.txt"
    related.write_text("word1 word2\n", encoding="utf-8")
    where = ("--model", files / "model", "--out", tmp_path / "found", "--related", related)
    output = run(capsys, "heads", files / "text.txt", *where, *SHORT, "--json")
    assert json.loads(output) == json.loads((tmp_path / "found" / "heads.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rows.jsonl",), "rows.jsonl: is a table; expected plain text, with a blank line between documents"),
        (("a.txt", "--out", __file__), f"--out {__file__}: {__file__} is a file; choose another folder"),
    ],
)
def test_command_refuses_before_the_work(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["heads", *words, "--model", "nowhere"])
    assert (end.value.code, message in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": 7}, "sequences is 7; expected at least 8"),
        ({"max_length": 7}, "max_length is 7; expected at least 8"),
        ({"resamples": 99}, "resamples is 99; expected at least 100"),
        ({"examples": -1}, "examples is -1; expected at least 0"),
        ({"effect": 0.0}, "effect is 0.0; expected a fraction between 0 and 1"),
        ({"broad": 1.0}, "broad is 1.0; expected a fraction between 0 and 1"),
        ({"shuffles": 100}, "shuffles is 100, too few for a false_rate of 0.01; expected at least 200"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HeadSettings(**changes)
