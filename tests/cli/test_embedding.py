"""``cloze embed`` and ``cloze correct`` on a small model: no flag goes unheard, columns stay, any file is read."""

import csv
import json
import os
from datetime import date
from pathlib import Path
from threading import Thread

import numpy as np
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
        (("--report", "--word", "cat"), "--report compares vectors of texts; leave out --word"),
        (("--report", "--output", "v.npy"), "--report prints a table, and no vectors; leave out --output"),
        (
            ("--report", "--whiten", "a.txt", "--out", "x"),
            "--out writes the whitened model, --report tries it; use one of the two",
        ),
        (
            ("--whiten", "a.txt", "--out", "x"),
            "--out writes the whitened model, and no vectors; ask it for them with --model x",
        ),
        (("--word", "cat", "--pair", "a mat"), "--word is looked for in single texts; leave out --pair"),
        (("--output", "v.csv"), "--output v.csv: .npy, .jsonl or .parquet was expected"),
    ],
)
def test_flags_that_would_go_unheard(words: tuple[str, ...], complaint: str, run: Cloze) -> None:
    result = run("embed", "the cat", "--model", "nowhere", *words)  # known before the model is loaded
    assert (result.code, result.complaint) == (2, complaint)


def test_corrections_know_their_output_before_the_work(run: Cloze) -> None:
    result = run("correct", "the cat", "--model", "nowhere", "--output", "rows.parquet")
    assert (result.code, result.complaint) == (2, "--output rows.parquet: .jsonl, .csv or .tsv was expected")


def test_a_second_text_as_an_argument(folder: Path, run: Cloze) -> None:
    words = ("embed", TEXTS[0], "--pair", TEXTS[1], "--model", folder, "--json")
    expected = load(folder).embed(TEXTS[:1], TEXTS[1:2])[0]
    np.testing.assert_allclose(json.loads(run(*words).out)["vector"], expected, atol=1e-6)
    told = run("embed", *TEXTS, "--pair", TEXTS[1], "--model", folder).complaint
    assert told == "--pair with 3 texts; give one text, or --input with a column of pairs"


def test_layers_from_the_back(folder: Path, run: Cloze) -> None:
    told = run("embed", TEXTS[0], "--model", folder, "--layer", "-2,-1", "--json").out
    expected = load(folder).embed(TEXTS[:1], layer=(-2, -1))[0]
    np.testing.assert_allclose(json.loads(told)["vector"], expected, atol=1e-6)


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
    told = json.loads(run("embed", *texts, "--model", folder, "--output", output, "--json").out)
    assert told == {"file": str(output), "vectors": 3, "size": 16}


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
    told = run("embed", "--input", path, "--model", folder, "--output", path).complaint
    assert told == f"--output {path}: this is the --input itself; choose another place"
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
    told = json.loads(run(*words).out)
    assert told == {"file": str(output), "rows": 1, "corrected": told["corrected"]}
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
