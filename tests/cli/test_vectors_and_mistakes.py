"""``embed`` options, ``score``, ``fill --joint``, ``correct`` and their evaluation, on the command line."""

import json
from itertools import pairwise
from pathlib import Path

import numpy
import pytest

from cloze.predict import load
from tests.cli.conftest import Cloze, Way

LINES = [
    f"He took the {word} and went to the {other}."
    for word in ("book", "hat", "boat", "dog")
    for other in ("sea", "inn")
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_whitened_folder(run: Cloze, way: Way, lines: Path, tmp_path: Path) -> None:
    words = ("embed", "--model", way.pretrained, "--whiten", lines, "--dimensions", 3, "--out", tmp_path / "white")
    assert run(*words).out == f"{tmp_path / 'white'}: vectors of 3 dimensions, whitened on 8 texts\n"
    report = json.loads(run(*words, "--json").out)
    assert report == {"folder": str(tmp_path / "white"), "texts": 8, "size": 3}
    vectors = [
        json.loads(line)["vector"]
        for line in run("embed", *LINES, "--model", tmp_path / "white", "--json").out.splitlines()
    ]
    numpy.testing.assert_allclose(numpy.mean(vectors, 0), 0, atol=1e-3)


def test_layers_and_words(run: Cloze, way: Way) -> None:
    model = load(way.pretrained)
    (line,) = run("embed", LINES[0], "--model", way.pretrained, "--layer", "1,-1", "--json").out.splitlines()
    numpy.testing.assert_allclose(json.loads(line)["vector"], model.embed(LINES[:1], layer=(1, -1))[0], atol=1e-6)
    (line,) = run("embed", LINES[0], "--model", way.pretrained, "--word", "book", "--json").out.splitlines()
    numpy.testing.assert_allclose(json.loads(line)["vector"], model.word("book", LINES[0]), atol=1e-6)


def test_report(run: Cloze, way: Way, lines: Path, tmp_path: Path) -> None:
    out = run("embed", "--input", lines, "--model", way.pretrained, "--report").out.splitlines()
    assert out[0].split("\t") == ["vectors", "size", "anisotropy", "first_share", "first_ten_share", "uniformity"]
    assert out[-1].startswith("Two random texts have a cosine of ")
    rows = "".join(f"{one}\t{other}\t{number}\n" for number, (one, other) in enumerate(pairwise(LINES)))
    (tmp_path / "pairs.tsv").write_text("one\ttwo\tscore\n" + rows, encoding="utf-8")
    columns = ("--text", "one", "--pair", "two", "--label", "score")
    words = ("embed", "--input", tmp_path / "pairs.tsv", *columns, "--model", way.pretrained, "--report", "--json")
    report = json.loads(run(*words).out)
    assert {"vectors", "size", "spearman", "anisotropy"} <= report["ways"][0].keys()
    assert report["advice"]


def test_blanks_together(run: Cloze, way: Way) -> None:
    words = ("fill", "He [MASK] the [MASK].", "--model", way.pretrained, "--joint", "--top", 2)
    report = json.loads(run(*words, "--json").out)
    expected = load(way.pretrained).fill_together("He [MASK] the [MASK].", 2)
    assert report["ways"][0]["tokens"] == list(expected[0].tokens)
    assert report["ways"][0]["log_probability"] == pytest.approx(expected[0].log_probability, abs=1e-5)
    header, *rows = run(*words).out.splitlines()
    assert header == "He [MASK] the [MASK].\tlog-probability"
    assert len(rows) == 2


def test_scores(run: Cloze, way: Way) -> None:
    (line,) = run("score", LINES[0], "--model", way.pretrained, "--json", "--tokens").out.splitlines()
    report, (expected,) = json.loads(line), load(way.pretrained).score(LINES[:1])
    assert report["log_probability"] == pytest.approx(expected.total, abs=1e-3)
    assert [token for token, _ in report["tokens"]] == list(expected.tokens)
    out = run("score", LINES[0], "--model", way.pretrained, "--tokens").out.splitlines()
    assert out[0].split("\t") == ["log-probability", "perplexity", "per word", "per character", "tokens", "text"]
    assert len(out) == 3 + len(expected.tokens)


def test_corrections(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("correct", LINES[0], "--model", way.pretrained, "--threshold", 0)
    report = json.loads(run(*words, "--json").out)
    assert report.keys() == {"source", "target", "errors", "confidences"}
    assert report["source"] == LINES[0]
    assert report["errors"], "with threshold 0, every correction is applied"
    assert len(report["errors"]) == len(report["confidences"])
    assert all(LINES[0][place:].startswith(wrong) for wrong, _, place in report["errors"])
    header, row = run(*words).out.splitlines()
    assert header == "text\tcorrections"
    assert row.split("\t")[0] == report["target"]
    (tmp_path / "rows.csv").write_text(f"id,text\n7,{LINES[1]}\n", encoding="utf-8")
    output = tmp_path / "out.jsonl"
    run("correct", "--input", tmp_path / "rows.csv", "--output", output, "--model", way.pretrained)
    assert json.loads(output.read_text(encoding="utf-8")) | {"id": "7"} == json.loads(
        output.read_text(encoding="utf-8")
    )


def test_corrections_are_scored(run: Cloze, way: Way, tmp_path: Path) -> None:
    rows = [{"source": "He took teh book.", "target": "He took the book."}, {"source": LINES[0], "target": LINES[0]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = ("evaluate", "correction", path, "--model", way.pretrained)
    report = json.loads(run(*words, "--json", "--out", tmp_path / "scores").out)
    assert report["rows"] == 2
    assert {"correction_f1", "detection_f1", "character_detection_f1", "false_alarms"} <= report.keys()
    written = (tmp_path / "scores" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(written[0])["expected"] == "He took the book."
    assert run(*words).out.splitlines()[0] == "metric\tvalue\t95 % interval"


def test_similarity_is_trained(run: Cloze, way: Way, lines: Path, tmp_path: Path) -> None:
    words = ("finetune", "similarity", lines, "--model", way.pretrained, "--out", tmp_path / "run", "--epochs", 1)
    report = json.loads(run(*words, "--batch", 4, "--length", 32, "--vectors", "cls", "--json").out)
    assert report["rows"] == 8
    assert load(tmp_path / "run").embedding.pooling == "cls"
    several = run(*words, "--seeds", 2)
    assert (several.code, several.complaint) == (2, "similarity is one run; leave out --grid, --seeds and --folds")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--layer", "last"), "--layer 'last': expected a number, or several separated by commas"),
        (("--whiten", "a.txt"), "--whiten needs --out FOLDER for the whitened model, or --report to try it"),
        (("--dimensions", 999), "dimensions is 999, but the vectors have 128; expected 1 to 128"),
        (
            ("--prompt", "queries"),
            "unknown prompt 'queries'; did you mean 'query'?; or give the text itself, such as 'query: '",
        ),
        (("--out", "x"), "--out only applies to the whitened model; add --whiten FILE, or use --output for vectors"),
    ],
)
def test_flags_that_do_not_go_together(words: tuple[object, ...], complaint: str, run: Cloze, way: Way) -> None:
    result = run("embed", "a text", "--model", way.pretrained, *words)
    assert (result.code, result.complaint) == (2, complaint)
