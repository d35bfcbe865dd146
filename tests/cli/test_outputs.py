"""Predictions written to files: input columns are kept, and no partial file is written."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from cloze.predict import load
from cloze.predict.fill_mask import Floats
from tests.cli.conftest import Cloze, Way

TEXTS = ['He said "no", and left.', "The door, the door!"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "text", "label"), ("a1", TEXTS[0], "theirs"), ("a2", TEXTS[1], "theirs")])
    return path


@pytest.fixture
def expected(way: Way) -> Floats:
    return load(way.pretrained).embed(TEXTS)


def embed(run: Cloze, way: Way, table: Path, name: str) -> Path:
    output = table.with_name(name)
    result = run("embed", "--input", table, "--model", way.pretrained, "--output", output)
    assert result.out == f"{output}: 2 vectors of 128\n"
    return output


def test_vectors_as_array(run: Cloze, way: Way, table: Path, expected: Floats) -> None:
    assert np.array_equal(np.load(embed(run, way, table, "vectors.npy")), expected)


def test_vectors_as_lines(run: Cloze, way: Way, table: Path, expected: Floats) -> None:
    lines = embed(run, way, table, "vectors.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["id"], row["text"], row["label"]) for row in rows] == [
        ("a1", TEXTS[0], "theirs"),
        ("a2", TEXTS[1], "theirs"),
    ]
    assert np.array_equal(np.asarray([row["vector"] for row in rows], np.float32), expected)


def test_vectors_as_parquet(run: Cloze, way: Way, table: Path, expected: Floats) -> None:
    rows = parquet.read_table(embed(run, way, table, "vectors.parquet")).to_pylist()
    assert [(row["id"], row["text"]) for row in rows] == [("a1", TEXTS[0]), ("a2", TEXTS[1])]
    assert np.array_equal(np.asarray([row["vector"] for row in rows], np.float32), expected)


def classify(run: Cloze, way: Way, table: Path, name: str) -> Path:
    output = table.with_name(name)
    assert run("classify", "--input", table, "--model", way.tuned, "--output", output).out == f"{output}: 2 rows\n"
    return output


def test_labels_stand_beside_the_columns(run: Cloze, way: Way, table: Path) -> None:
    answers = load(way.tuned).classify(TEXTS)
    with classify(run, way, table, "labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # The file's own label keeps its column name.
    assert rows == [
        {
            "id": number,
            "text": text,
            "label": "theirs",
            "predicted_label": answer.label,
            "probability": str(answer.probability),
        }
        for number, text, answer in zip(("a1", "a2"), TEXTS, answers, strict=True)
    ]
    lines = classify(run, way, table, "labels.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["predicted_label"] for line in lines] == [answer.label for answer in answers]


def test_tabbed_labels_can_be_read_again(run: Cloze, way: Way, table: Path) -> None:
    output = classify(run, way, table, "labels.tsv")
    # Quotes are ordinary characters, as in GLUE.
    assert output.read_text(encoding="utf-8").splitlines()[1].split("\t")[1] == TEXTS[0]
    assert run("classify", "--input", output, "--model", way.tuned, "--json").code == 0


def test_labels_on_the_screen(run: Cloze, way: Way) -> None:
    answer = load(way.tuned).classify(["The door."])[0]
    words = ("classify", "The door.", "--model", way.tuned)
    report = json.loads(run(*words, "--json").out)
    assert report == {
        "text": "The door.",
        "label": answer.label,
        "probability": answer.probability,
        "probabilities": answer.probabilities,
    }
    assert run(*words).out.splitlines()[1] == f"{answer.label}\t{answer.probability:.4f}\tThe door."


@pytest.mark.parametrize("command", ["embed", "classify"])
def test_unknown_ending_is_refused(run: Cloze, way: Way, table: Path, command: str) -> None:
    output = table.with_name("out.xyz")
    result = run(command, "--input", table, "--model", way.tuned, "--output", output)
    assert (result.code, f"--output {output}: " in result.complaint) == (2, True)
    assert not output.exists()


def test_failed_writing_leaves_the_old_file(run: Cloze, way: Way, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = table.with_name("vectors.npy")
    output.write_bytes(b"before")

    def fail(file: object, array: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    result = run("embed", "--input", table, "--model", way.pretrained, "--output", output)
    assert (result.code, result.complaint) == (
        2,
        f"{output}: cannot be written (No space left on device); choose another location",
    )
    assert output.read_bytes() == b"before"
    assert {path.name for path in table.parent.iterdir()} == {"rows.csv", "vectors.npy"}
