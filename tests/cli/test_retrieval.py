"""``cloze evaluate`` on vectors, with pages, and ``cloze mine``, resumed and with mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.tasks.retrieval.examples import read_training_pairs
from tests.cli.conftest import Cloze
from tests.model.made import model_folder, saved
from tests.tasks.retrieval.test_examples import QRELS, write_folder, write_lines

ROWS = [{"query": f"the cat word{number}", "passage": f"a mat word{number} sat"} for number in range(8)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(), tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["sequence"], labels=1), tmp_path_factory.mktemp("models") / "cross")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "pairs.jsonl", ROWS)


# -- evaluate ----------------------------------------------------------------------------------------------------------


def test_retrieval_with_every_flag(run: Cloze, tmp_path: Path, pairs: Path, model: Path, other: Path) -> None:
    more = write_lines(tmp_path / "more.jsonl", [{"text": "unrelated dog"}])
    out, page = tmp_path / "out", tmp_path / "page.html"
    result = run(
        *("evaluate", "retrieval", pairs, "--model", model, "--compare-with", other, "--documents", more),
        *("--out", out, "--report", page, "--metrics", "mrr@5,ndcg@3", "--query-prompt", "the ", "--precision", "fp32"),
        *("--reranker", other, "--rerank-top", 2),
    )
    assert result.code == 0, result.err
    assert f"metric\tvalue\t95 % interval\tBM25\t{model}\t{other}" in result.out
    assert "8 queries, 9 documents" in result.out
    assert f"against {model}: " in result.out
    assert f"against {other}: " in result.out
    assert "against BM25: " in result.out
    results = json.loads((out / "eval_results.json").read_text())
    assert list(results)[:2] == ["mrr@5", "ndcg@3"]
    assert len((out / "queries.jsonl").read_text().splitlines()) == 8
    assert {path.name for path in out.iterdir()} >= {"model.trec", "bm25.trec", "other1.trec", "other2.trec"}
    text = page.read_text()
    assert "Content-Security-Policy" in text
    # A run file takes the place of the other model.
    again = run("evaluate", "retrieval", pairs, "--model", model, "--compare-with", out / "bm25.trec", "--json")
    assert json.loads(again.out)["comparisons"][0]["name"] == str(out / "bm25.trec")


def test_folder_of_beir_and_its_splits(run: Cloze, tmp_path: Path, model: Path) -> None:
    folder = write_folder(tmp_path / "beir")
    write_lines(folder / "qrels" / "train.tsv", QRELS[:3])
    result = run("evaluate", "retrieval", folder, "--model", model)
    assert "2 queries of the split test, 3 documents" in result.out
    assert "1 queries have no relevant document and no score" in result.out
    assert (
        "1 queries of the split train" in run("evaluate", "retrieval", folder, "--model", model, "--split", "train").out
    )


def test_clustering(run: Cloze, tmp_path: Path, model: Path) -> None:
    rows = [{"topic": "ab"[number % 2], "body": ("the cat", "dog ran on")[number % 2]} for number in range(10)]
    path, page = write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "page.html"
    flags = ("--text", "body", "--label", "topic", "--model", model, "--report", page)
    result = run("evaluate", "clustering", path, *flags, "--json")
    found = json.loads(result.out)
    assert found["v_measure"] == pytest.approx(1.0)
    assert found["baseline"]["name"] == "TF-IDF k-means"
    assert page.exists()


def test_pairs_with_a_page(run: Cloze, tmp_path: Path, model: Path) -> None:
    rows = [{"a": "the cat", "b": text, "label": score} for text, score in (("the cat", 1), ("dog", 0), ("a mat", 0))]
    page = tmp_path / "page.html"
    path = write_lines(tmp_path / "rows.jsonl", rows)
    result = run("evaluate", "similarity", path, "--text", "a", "--pair", "b", "--model", model, "--report", page)
    assert result.code == 0, result.err
    assert page.exists()


MISTAKES = [
    (("evaluate", "retrieval", "PAIRS", "--compare-with", "MODEL"), "--compare-with MODEL: is the model itself"),
    (("evaluate", "retrieval", "PAIRS", "--metrics", "ndgc@10"), "unknown metric 'ndgc@10'"),
    (("evaluate", "retrieval", "PAIRS", "--rerank-top", "5"), "rerank_top is 5, but there is no reranker"),
    (("evaluate", "retrieval", "PAIRS", "--report", "page.txt"), "--report page.txt: expected .html"),
    (("evaluate", "retrieval", "PAIRS", "--reranker", "OTHER", "--rerank-top", "0"), "rerank_top is 0"),
    (("evaluate", "retrieval", "PAIRS", "--text", "frage"), "no column 'frage'"),
    (
        ("evaluate", "classify", "PAIRS", "--documents", "x"),
        "which only applies to retrieval; leave it out for classify",
    ),
    (
        ("evaluate", "classify", "PAIRS", "--precision", "int8"),
        "--precision is int8, which only applies to retrieval, cl",
    ),
    (("evaluate", "mlm", "PAIRS", "--report", "page.html"), "there is no page for mlm; use --out for its results"),
    (("evaluate", "clustering", "PAIRS", "--text", "query", "--label", "topic"), "has no 'topic'"),
    (("mine", "PAIRS", "--out", "mined.csv"), "--out mined.csv: expected .jsonl"),
    (("mine", "PAIRS", "--out", "mined.jsonl", "--depth", "2"), "depth is 2, which leaves fewer than 5 candidates"),
    (("mine", "PAIRS", "--out", "mined.jsonl", "--documents", "none.csv"), "none.csv does not exist"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes(
    run: Cloze,
    tmp_path: Path,
    pairs: Path,
    model: Path,
    other: Path,
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"PAIRS": str(pairs), "MODEL": str(model), "OTHER": str(other)}
    result = run(*(places.get(word, word) for word in words), *(() if words[1] == "mlm" else ("--model", model)))
    assert result.code == 2
    assert message.replace("MODEL", str(model)) in result.err.splitlines()[-1]
    assert not (tmp_path / "mined.jsonl").exists()


# -- mine --------------------------------------------------------------------------------------------------------------


def test_mined_file_is_read_by_training(run: Cloze, tmp_path: Path, pairs: Path, model: Path) -> None:
    out = tmp_path / "mined.jsonl"
    flags = ("--negatives", 2, "--depth", 5, "--relative-margin", 0.0001)
    result = run("mine", pairs, "--model", model, "--out", out, *flags)
    assert result.code == 0, result.err
    assert result.out.startswith(f"{out}: 8 rows of 8 queries; ")
    assert "candidates were left out as probable false negatives: their score is above the positive's" in result.out
    assert "less 0.0001 of it" in result.out
    assert "left out: " in result.out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert list(rows[0]) == ["query", "positive", "negatives", "positive_cosine", "negative_cosines"]
    mined = read_training_pairs(out)
    assert mined.positives == [row["passage"] for row in ROWS]
    assert mined.scores is None
    assert any(mined.negatives)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mined.jsonl", "pairs.jsonl"]


def test_reranker_scores_are_written(run: Cloze, tmp_path: Path, pairs: Path, model: Path, other: Path) -> None:
    out = tmp_path / "mined.jsonl"
    flags = ("--reranker", other, "--relative-margin", 0, "--depth", 7)
    found = json.loads(run("mine", pairs, "--model", model, "--out", out, *flags, "--json").out)
    assert found["rows"] == 8
    assert found["candidates"] == 8 * 7
    assert read_training_pairs(out).scores is not None


def test_interrupted_mining_resumes_with_the_same_rows(
    run: Cloze, tmp_path: Path, pairs: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloze.predict.mining import Miner

    monkeypatch.setattr("cloze.cli.retrieval._QUERIES_PER_PART", 3)
    monkeypatch.setattr("cloze.cli.retrieval._TEXTS_PER_PART", 3)
    flags = ("mine", pairs, "--model", model, "--negatives", 2, "--depth", 5, "--relative-margin", 0.0001)
    whole = tmp_path / "whole.jsonl"
    expected = run(*flags, "--out", whole)
    out, calls, mine = tmp_path / "mined.jsonl", [0], Miner.mine

    def failing(self: Any, queries: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError("killed")
        return mine(self, queries)

    monkeypatch.setattr(Miner, "mine", failing)
    assert run(*flags, "--out", out).code != 0
    assert not out.exists()
    assert run(*flags, "--out", out, "--skip", 1).code == 2  # other settings
    result = run(*flags, "--out", out)
    assert result.code == 0, result.err
    assert calls == [4]  # only the missing part
    assert out.read_bytes() == whole.read_bytes()
    counts = [text.splitlines()[1] for text in (expected.out, result.out)]
    assert counts[0] == counts[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mined.jsonl", "pairs.jsonl", "whole.jsonl"]


def test_negatives_of_a_folder_come_from_its_corpus(run: Cloze, tmp_path: Path, model: Path) -> None:
    folder = write_folder(tmp_path / "beir", name="qrels/train.tsv")
    out = tmp_path / "mined.jsonl"
    assert run("mine", folder, "--model", model, "--out", out, "--relative-margin", 0).code == 0
    assert len(out.read_text().splitlines()) == 3
