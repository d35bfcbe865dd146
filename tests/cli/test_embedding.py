"""``cloze embed`` and ``cloze correct`` on a small model: all flags take effect, columns are kept, any file is read."""

import csv
import json
import os
from datetime import date
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from cloze.cli import inputs, outputs
from cloze.cli.inputs import Inputs, gather_texts
from cloze.errors import ConfigError
from cloze.predict import load
from tests.cli.conftest import Cloze
from tests.model.made import model_folder, saved

TEXTS = ["the cat sat", "a dog ran on the mat", "the mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("small") / "model")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--report", "--word", "cat"), "--word has no effect with --report; leave out one of the two"),
        (("--report", "--output", "v.npy"), "--report prints a table instead of vectors; leave out --output"),
        (
            ("--report", "--whiten", "a.txt", "--out", "x"),
            "--out writes the whitened model, --report tries it; use one of the two",
        ),
        (
            ("--whiten", "a.txt", "--out", "x"),
            "--out writes the whitened model but no vectors; to embed texts with it, use --model x afterwards",
        ),
        (("--word", "cat", "--pair", "a mat"), "--pair has no effect with --word; leave out one of the two"),
        (
            ("--word", "cat", "--pooling", "max"),
            "--pooling has no effect with --word; leave out one of the two",
        ),
        (("--report", "--layer", "2"), "--layer has no effect with --report; leave out one of the two"),
        (
            ("--whiten", "a.txt", "--out", "x", "--long-texts", "windows"),
            "--long-texts has no effect with --out; leave out one of the two",
        ),
        (("--output", "v.csv"), "--output v.csv: expected .npy, .jsonl or .parquet"),
    ],
)
def test_flags_that_would_go_unheard(words: tuple[str, ...], complaint: str, run: Cloze) -> None:
    result = run("embed", "the cat", "--model", "nowhere", *words)  # detected before the model is loaded
    assert (result.code, result.complaint) == (2, complaint)


def test_corrections_know_their_output_before_the_work(run: Cloze) -> None:
    result = run("correct", "the cat", "--model", "nowhere", "--output", "rows.parquet")
    assert (result.code, result.complaint) == (2, "--output rows.parquet: expected .jsonl, .csv or .tsv")


def test_a_second_text_as_an_argument(folder: Path, run: Cloze) -> None:
    words = ("embed", TEXTS[0], "--pair", TEXTS[1], "--model", folder, "--json")
    expected = load(folder).embed(TEXTS[:1], TEXTS[1:2])[0]
    np.testing.assert_allclose(json.loads(run(*words).out)["vector"], expected, atol=1e-6)
    printed = run("embed", *TEXTS, "--pair", TEXTS[1], "--model", folder).complaint
    assert printed == "--pair with 3 texts; give one text, or --input with a column of pairs"


def test_layers_from_the_back(folder: Path, run: Cloze) -> None:
    printed = run("embed", TEXTS[0], "--model", folder, "--layer", "-2,-1", "--json").out
    expected = load(folder).embed(TEXTS[:1], layer=(-2, -1))[0]
    np.testing.assert_allclose(json.loads(printed)["vector"], expected, atol=1e-6)


def test_lines_have_no_second_column(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the cat\n", encoding="utf-8")
    message = "lines of text have no column 'second' for --pair; give CSV, TSV, JSONL or Parquet$"
    with pytest.raises(ConfigError, match=message):
        gather_texts(None, path, pair="second")


@pytest.mark.parametrize("name", ["ROWS.CSV", "rows.ndjson", "rows.json"])
def test_tables_by_any_name_of_theirs(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    lines = ["text,id", "the cat,1"] if name.endswith("CSV") else ['{"text": "the cat", "id": 1}']
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert gather_texts(None, path).texts == ["the cat"]


@pytest.mark.parametrize("many", [False, True])
def test_what_was_written_as_json(many: bool, folder: Path, run: Cloze, tmp_path: Path) -> None:
    source, output = tmp_path / "lines.txt", tmp_path / "v.npy"
    source.write_text("\n".join(TEXTS), encoding="utf-8")
    texts = ("--input", source) if many else TEXTS
    printed = json.loads(run("embed", *texts, "--model", folder, "--output", output, "--json").out)
    assert printed == {"file": str(output), "vectors": 3, "size": 16}


def test_a_pipe_is_read_once(folder: Path, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 2)
    pipe, output = tmp_path / "pipe", tmp_path / "v.npy"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=("\n".join(TEXTS),), daemon=True)
    writer.start()
    assert run("embed", "--input", pipe, "--model", folder, "--output", output).out == f"{output}: 3 vectors of 16\n"
    np.testing.assert_allclose(np.load(output), load(folder).embed(TEXTS), atol=1e-5)
    writer.join(10)


def test_the_input_is_not_written_over(folder: Path, run: Cloze, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "the cat"}\n', encoding="utf-8")
    printed = run("embed", "--input", path, "--model", folder, "--output", path).complaint
    assert printed == f"--output {path}: this is the --input itself; choose another location"
    assert path.read_text(encoding="utf-8") == '{"text": "the cat"}\n'


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_column_of_vectors_stays(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"v{ending}"
    outputs.write_vectors(path, Inputs(["a"], None, [{"text": "a", "vector": "theirs"}]), np.ones((1, 2), np.float32))
    if ending == ".jsonl":
        row = json.loads(path.read_text(encoding="utf-8"))
    else:
        (row,) = parquet.read_table(path).to_pylist()
    assert row == {"text": "a", "vector": "theirs", "predicted_vector": [1.0, 1.0]}


def test_columns_stay_beside_corrections(folder: Path, run: Cloze, tmp_path: Path) -> None:
    path, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"source": "the cat", "target": "theirs"}\n', encoding="utf-8")
    words = ("correct", "--input", path, "--text", "source", "--output", output, "--model", folder, "--json")
    printed = json.loads(run(*words).out)
    assert printed == {"file": str(output), "rows": 1, "corrected": printed["corrected"]}
    row = json.loads(output.read_text(encoding="utf-8"))
    assert (row["source"], row["target"]) == ("the cat", "theirs")
    assert {"predicted_source", "predicted_target", "errors", "confidences"} < row.keys()


@pytest.mark.parametrize("ending", outputs.ROW_FILES)
def test_dates_become_texts(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    outputs.write_rows(path, [{"day": date(2020, 1, 2), "days": [date(2020, 1, 3)]}])
    text = path.read_text(encoding="utf-8")
    assert "2020-01-02" in text
    assert "2020-01-03" in text


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_cells_without_kinds(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    outputs.write_rows(path, [{"a": None, "errors": [["teh", "the", 3]], "shares": {"x": 0.5}, "n": 2}])
    with path.open(encoding="utf-8", newline="") as file:
        if ending == ".csv":
            (row,) = csv.DictReader(file)
        else:
            (row,) = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert (row["a"], row["n"]) == ("", "2")
    assert json.loads(row["errors"]) == [["teh", "the", 3]]
    assert json.loads(row["shares"]) == {"x": 0.5}


def test_whitening_of_another_pooling(folder: Path, run: Cloze, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"the cat word{number}" for number in range(40)), encoding="utf-8")
    words = ("embed", "--whiten", lines, "--out", tmp_path / "white", "--dimensions", 3, "--model", folder)
    assert run(*words, "--pooling", "cls").code == 0
    whitened = load(tmp_path / "white")
    assert whitened.embedding.pooling == "cls"
    found = whitened.embed(lines.read_text(encoding="utf-8").splitlines())
    np.testing.assert_allclose(np.cov(found, rowvar=False, bias=True), np.eye(3), atol=1e-2)
    assert "unknown pooling 'clss'" in run(*words, "--pooling", "clss").complaint


def test_a_table_through_a_pipe(folder: Path, run: Cloze, tmp_path: Path) -> None:
    pipe, output = tmp_path / "rows.jsonl", tmp_path / "v.npy"
    os.mkfifo(pipe)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    writer = Thread(target=pipe.write_text, args=(rows,), daemon=True)
    writer.start()
    assert run("embed", "--input", pipe, "--model", folder, "--output", output).out == f"{output}: 3 vectors of 16\n"
    writer.join(10)


def test_a_way_out_that_this_command_has(folder: Path, run: Cloze, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": " "}\n', encoding="utf-8")
    printed = run("embed", "--input", path, "--model", folder, "--output", tmp_path / "v.npy").complaint
    assert printed == f"{path}:1: 'text' is empty; fill it in, or remove the row"


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_answers_have_one_name_that_nobody_has(
    ending: str, folder: Path, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 2)
    path, output = tmp_path / "rows.jsonl", tmp_path / f"v{ending}"
    rows: list[dict[str, object]] = [{"text": text} for text in TEXTS]
    rows[-1] |= {"vector": "theirs", "predicted_vector": "too"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run("embed", "--input", path, "--model", folder, "--output", output).code == 0
    if ending == ".jsonl":
        found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    else:
        found = parquet.read_table(output).to_pylist()
    assert all(len(row["predicted_predicted_vector"]) == 16 for row in found)
    assert (found[-1]["vector"], found[-1]["predicted_vector"]) == ("theirs", "too")


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
def test_values_that_files_can_hardly_keep(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    outputs.write_rows(path, [{"half": "a\ud800", "none": float("nan"), "deep": {"x": [float("inf")]}, "many": 10**30}])
    text = path.read_text(encoding="utf-8")
    assert "\\ud800" in text
    assert str(10**30) in text
    if ending == ".jsonl":
        row = json.loads(text, parse_constant=pytest.fail)
        assert row == {"half": "a\ud800", "none": None, "deep": {"x": [None]}, "many": 10**30}


@pytest.mark.parametrize("value", ['"\\ud800"', "{}", "1" + "0" * 30, '[1, "a"]'])
def test_what_parquet_cannot_keep_is_known_before_the_work(
    value: str, folder: Path, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = tmp_path / "rows.jsonl", tmp_path / "v.parquet"
    path.write_text(f'{{"text": "the cat", "kept": {value}}}\n', encoding="utf-8")
    monkeypatch.setattr("cloze.predict.Model.embed", lambda *_, **__: pytest.fail("the work has begun"))
    result = run("embed", "--input", path, "--model", folder, "--output", output)
    assert (result.code, "v.parquet: Parquet cannot store a column unchanged (" in result.complaint) == (2, True)
    assert not output.exists()


def test_columns_of_parquet_stay_of_their_kinds(
    folder: Path, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 2)
    table = arrow.table(
        {
            "text": arrow.array(TEXTS),
            "small": arrow.array([1, 2, 3], arrow.int32()),
            "half": arrow.array([0.5, None, 1.5], arrow.float32()),
            "empty": arrow.array([None, None, None], arrow.string()),
            "kind": arrow.array(["a", "b", "a"]).dictionary_encode(),
            "map": arrow.array([[("a", 1)], [], None], arrow.map_(arrow.string(), arrow.int8())),
        }
    )
    path, output = tmp_path / "rows.parquet", tmp_path / "v.parquet"
    parquet.write_table(table, path)
    assert run("embed", "--input", path, "--model", folder, "--output", output).code == 0
    found = parquet.read_table(output).drop_columns("vector")
    assert found.schema == parquet.read_schema(path).remove_metadata()
    assert found.to_pylist() == table.to_pylist()


def test_times_finer_than_pythons(folder: Path, run: Cloze, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    times = arrow.array([1, 2, 3], arrow.timestamp("ns"))
    parquet.write_table(arrow.table({"text": TEXTS, "at": times}), path)
    result = run("embed", "--input", path, "--model", folder, "--output", tmp_path / "v.npy")
    if result.code:  # with pandas, which supports nanoseconds, the file can be read
        assert "rows.parquet: cannot be read after row 0" in result.complaint


@pytest.mark.parametrize("ending", outputs.ROW_FILES)
def test_blanks_and_scores_of_a_file(
    ending: str, folder: Path, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "PART_ROWS", 2)
    model, path, output = load(folder), tmp_path / "rows.csv", tmp_path / f"out{ending}"
    blanks = ["the [MASK] sat", "a [MASK]", "[MASK] on the mat"]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "body"), *enumerate(blanks)])
    common = ("--input", path, "--text", "body", "--output", output, "--model", folder)
    assert run("fill", *common, "--top", 2).out == f"{output}: 3 rows\n"
    rows = read_rows(output)
    assert [row["id"] for row in rows] == ["0", "1", "2"]
    expected = [[[word.token for word in blank] for blank in model.fill(text, 2)] for text in blanks]
    assert [[[word["token"] for word in blank] for blank in row["blanks"]] for row in rows] == expected
    assert run("fill", *common, "--joint", "--json").out == f'{{"file": "{output}", "rows": 3}}\n'
    assert [row["ways"][0]["text"] for row in read_rows(output)] == [model.fill_together(one)[0].text for one in blanks]
    assert run("score", *common, "--tokens").code == 0
    for row, one in zip(read_rows(output), model.score(blanks), strict=True):
        assert float(row["log_probability"]) == pytest.approx(one.total, abs=1e-4)
        assert [token for token, _ in row["tokens"]] == list(one.tokens)


def test_pairs_of_a_file(folder: Path, run: Cloze, tmp_path: Path) -> None:
    model, path, output = load(folder), tmp_path / "rows.csv", tmp_path / "out.jsonl"
    pairs = [("the cat", "sat on the mat"), ("a dog", "the"), ("a", "the cat sat on the mat")]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("first", "second"), *pairs])
    expected = [model.follows(*pair) for pair in pairs]
    assert model.follows_all(*zip(*pairs, strict=True)) == pytest.approx(expected, abs=1e-6)
    assert run("follows", "--input", path, "--output", output, "--model", folder).out == f"{output}: 3 rows\n"
    assert [row["probability"] for row in read_rows(output)] == pytest.approx(expected, abs=1e-6)
    printed = run("follows", "--input", path, "--model", folder, "--json").out.splitlines()
    assert [(row["first"], row["second"]) for row in map(json.loads, printed)] == pairs
    assert run("follows", *pairs[0], "--model", folder).out == f"{expected[0]:.4f}\n"
    for words in ((), ("one",), ("one", "two", "--input", path)):
        assert run("follows", *words, "--model", "nowhere").complaint.startswith("expected two texts")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file whose cells may contain JSON."""
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        if path.suffix == ".csv":
            rows = list(csv.DictReader(file))
        else:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        {name: json.loads(cell) if cell[:1] in ("[", "{") and name != "body" else cell for name, cell in row.items()}
        for row in rows
    ]
