"""Commands that process files in parts: the same output as in one part, for any format, interrupted or not."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from cloze.cli import inputs, outputs
from cloze.predict import Model, load
from cloze.progress import Interrupted
from tests.cli.conftest import Cloze, Way

TEXTS = [f"the door {'and the sea ' * (number % 4)}was {number}" for number in range(11)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(inputs, "PART_ROWS", 4)
    path = tmp_path / "rows.jsonl"
    # In the first part, one column is empty and one contains only integers.
    rows = [
        {"id": n, "text": text, "note": None if n < 4 else "x", "size": 1 if n < 4 else 0.5}
        for n, text in enumerate(TEXTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def vectors(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.asarray(np.load(path))
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        rows = parquet.read_table(path).to_pylist()
    assert [(row["id"], row["text"], row["note"]) for row in rows[3:5]] == [(3, TEXTS[3], None), (4, TEXTS[4], "x")]
    return np.asarray([row["vector"] for row in rows], np.float32)


@pytest.mark.parametrize("ending", outputs.VECTOR_FILES)
def test_vectors_of_many_parts(ending: str, run: Cloze, way: Way, table: Path) -> None:
    output = table.with_name(f"vectors{ending}")
    result = run("embed", "--input", table, "--model", way.pretrained, "--output", output)
    assert (result.code, result.out) == (0, f"{output}: 11 vectors of 128\n")
    assert "rows: 11 of 11  rows/s" in result.err
    np.testing.assert_allclose(vectors(output), load(way.pretrained).embed(TEXTS), atol=1e-5)
    assert {path.name for path in table.parent.iterdir()} == {"rows.jsonl", output.name}


@pytest.mark.parametrize("ending", outputs.ROW_FILES)
def test_labels_of_many_parts(ending: str, run: Cloze, way: Way, table: Path) -> None:
    output = table.with_name(f"labels{ending}")
    assert run("classify", "--input", table, "--model", way.tuned, "--output", output).out == f"{output}: 11 rows\n"
    text = output.read_text(encoding="utf-8")
    if ending == ".jsonl":
        written_labels = [json.loads(line)["label"] for line in text.splitlines()]
    else:
        written_labels = [
            row["label"] for row in csv.DictReader(text.splitlines(), delimiter="\t" if ending == ".tsv" else ",")
        ]
    assert written_labels == [answer.label for answer in load(way.tuned).classify(TEXTS)]


def test_the_same_command_resumes(run: Cloze, way: Way, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed, calls = Model.embed, []

    def stops(self: Model, texts: list[str], *rest: object, **more: object) -> object:
        calls.append(texts)
        if len(calls) == 2:
            raise Interrupted(15, "stopped")
        return embed(self, texts, *rest, **more)

    monkeypatch.setattr(Model, "embed", stops)
    output = table.with_name("vectors.npy")
    words = ("embed", "--input", table, "--model", way.pretrained, "--output", output)
    stopped = run(*words)
    assert (stopped.code, output.exists()) == (143, False)
    assert "stopped after 4 rows" in stopped.err
    other = run(*words, "--pooling", "cls")
    assert "belongs to a job with other settings (pooling was None, is 'cls')" in other.complaint
    assert run(*words).code == 0
    assert [text for texts in calls[2:] for text in texts] == TEXTS[4:]
    np.testing.assert_allclose(np.load(output), embed(load(way.pretrained), TEXTS), atol=1e-5)


def test_lines_of_text_in_parts(run: Cloze, way: Way, table: Path) -> None:
    path = table.with_name("lines.txt")
    path.write_text("\n\n".join(TEXTS) + "\n", encoding="utf-8")
    output = table.with_name("vectors.npy")
    assert run("embed", "--input", path, "--model", way.pretrained, "--output", output).out.startswith(f"{output}: 11 ")


def test_a_bad_row_is_detected_before_the_work(run: Cloze, way: Way, table: Path) -> None:
    table.write_text(table.read_text(encoding="utf-8") + '{"text": ""}\n', encoding="utf-8")
    output = table.with_name("vectors.npy")
    result = run("embed", "--input", table, "--model", way.pretrained, "--output", output)
    assert (result.code, "rows.jsonl:12: 'text' is empty" in result.complaint) == (2, True)
    assert [path.name for path in table.parent.iterdir()] == ["rows.jsonl"]


def test_columns_that_come_later(run: Cloze, way: Way, table: Path) -> None:
    more = json.dumps({"text": "a", "id": 11, "note": "", "size": 1, "other": 1}) + "\n"
    table.write_text(table.read_text(encoding="utf-8") + more, encoding="utf-8")
    labels = table.with_name("labels.csv")
    assert run("classify", "--input", table, "--model", way.tuned, "--output", labels).code == 0
    with labels.open(encoding="utf-8", newline="") as file:
        assert [row["other"] for row in csv.DictReader(file)][-2:] == ["", "1"]
    output = table.with_name("vectors.parquet")
    assert run("embed", "--input", table, "--model", way.pretrained, "--output", output).code == 0
    assert [row["other"] for row in parquet.read_table(output).to_pylist()][-2:] == [None, 1]


@pytest.mark.parametrize("rows", [range(9, 10), range(4, 11)], ids=["within a part", "between parts"])
def test_columns_that_change_their_kind(rows: range, run: Cloze, way: Way, table: Path) -> None:
    text = table.read_text(encoding="utf-8")
    for number in rows:
        text = text.replace(f'"id": {number},', '"id": [1],')
    table.write_text(text, encoding="utf-8")
    result = run("embed", "--input", table, "--model", way.pretrained, "--output", table.with_name("v.parquet"))
    assert (result.code, "Parquet cannot store a column unchanged" in result.err) == (2, True)


def test_long_texts(run: Cloze, way: Way, tmp_path: Path) -> None:
    text = "the sea and the door " * 60
    found = {}
    for how in ("cut", "head-tail", "windows"):
        result = run("embed", text, "--model", way.pretrained, "--long-texts", how, "--json")
        found[how] = np.asarray(json.loads(result.out)["vector"])
        assert ("longer than" in result.err) == (how != "windows")
    assert not np.allclose(found["cut"], found["windows"], atol=1e-4)
    model = load(way.pretrained)
    (windows,) = model._encode_long([text], None, "windows")
    parts = [model.bert(*(np_to(one) for one in (window.ids, window.segments))).last[0] for window in windows]
    weighted = sum(part.mean(0) * len(part) for part in parts) / sum(len(part) for part in parts)
    np.testing.assert_allclose(found["windows"], weighted.detach().numpy(), atol=1e-5)


def np_to(values: list[int]) -> object:
    import torch

    return torch.tensor([values])


def test_a_header_of_several_lines(run: Cloze, way: Way, table: Path) -> None:
    path, output = table.with_name("rows.csv"), table.with_name("labels.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "two\nlines"), *((text, "a\nb") for text in TEXTS)])
    assert run("classify", "--input", path, "--model", way.tuned, "--output", output).code == 0
    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["text"], row["two\nlines"]) for row in rows] == [(text, "a\nb") for text in TEXTS]


def test_another_model_does_not_resume_the_job(
    run: Cloze, way: Way, table: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job is not resumed with another model, even if the folders share their weights."""
    load(way.pretrained).whiten(TEXTS, 3).save(tmp_path / "white")
    embed, output = Model.embed, table.with_name("vectors.jsonl")
    calls = []

    def stops(self: Model, texts: list[str], *rest: object, **more: object) -> object:
        calls.append(texts)
        if len(calls) == 2:
            raise Interrupted(15, "stopped")
        return embed(self, texts, *rest, **more)

    monkeypatch.setattr(Model, "embed", stops)
    words = ("embed", "--input", table, "--output", output)
    assert run(*words, "--model", way.pretrained).code == 143
    assert "belongs to a job with other settings (model was" in run(*words, "--model", tmp_path / "white").complaint
    assert run(*words, "--model", way.pretrained).code == 0
