"""Retrieval data from tables, folders and memory, and the messages about bad data."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from cloze import RetrievalData, TrainingPairs, read_retrieval, read_training_pairs
from cloze.errors import ConfigError, DataError
from cloze.tasks.retrieval.examples import retrieval_source
from cloze.tasks.retrieval.judgements import read_run, write_run
from cloze.tasks.rows import RowSettings

ROWS = [
    {"query": "who?", "positive": "She.", "negative": "There."},
    {"query": "where?", "positive": "There.", "negative": "She."},
    {"query": "who?", "positive": "He.", "negative": ""},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    frame = pandas.DataFrame(rows)
    writers: dict[str, Callable[[], object]] = {
        ".csv": lambda: frame.to_csv(path, index=False),
        ".tsv": lambda: frame.to_csv(path, sep="\t", index=False),
        ".parquet": lambda: frame.to_parquet(path),
        ".jsonl": lambda: frame.to_json(path, orient="records", lines=True, force_ascii=False),
    }
    writers[path.suffix]()
    return path


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


CORPUS = [
    {"_id": "d1", "title": "People", "text": "She."},
    {"_id": "d2", "title": "", "text": "There."},
    {"_id": 3, "text": "He."},
]
QUERIES = [{"_id": "q1", "text": "who?"}, {"_id": "q2", "text": "where?"}, {"_id": "q3", "text": "why?"}]
QRELS = ["query-id\tcorpus-id\tscore", "q1\td1\t2", "q1\t3\t1", "q1\td2\t0", "q2\td2\t1", "q3\td1\t0"]


def write_folder(
    folder: Path,
    corpus: list[Any] = CORPUS,
    queries: list[Any] = QUERIES,
    qrels: list[str] = QRELS,
    name: str = "qrels/test.tsv",
) -> Path:
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "queries.jsonl", queries)
    write_lines(folder / name, qrels)
    return folder


# -- tables of pairs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_pairs_of_every_format(tmp_path: Path, ending: str) -> None:
    pairs = read_training_pairs(write_table(tmp_path / f"pairs.{ending}", ROWS))
    assert pairs.queries == ["who?", "where?", "who?"]
    assert pairs.positives == ["She.", "There.", "He."]
    assert pairs.negatives == [("There.",), ("She.",), ()]
    assert pairs.scores is None
    assert pairs.relevant["who?"] == {"She.", "He."}
    assert pairs.documents()[0] == ["who?", "She.", "There."]
    assert pairs.select([2, 0]).positives == ["He.", "She."]


@pytest.mark.parametrize(
    "data",
    [ROWS, pandas.DataFrame(ROWS), {name: [row[name] for row in ROWS] for name in ROWS[0]}],
    ids=["list", "frame", "columns"],
)
def test_pairs_in_memory(data: Any) -> None:
    assert read_training_pairs(data).negatives == [("There.",), ("She.",), ()]


def test_tuples_in_memory() -> None:
    expected = TrainingPairs(["a?", "b?"], ["a.", "b."], [(), ()], None, ["train row 1", "train row 2"])
    assert read_training_pairs((["a?", "b?"], ["a.", "b."])) == expected
    assert read_training_pairs([("a?", "a."), ("b?", "b.")]) == expected


def test_several_positives_negatives_and_scores() -> None:
    rows = [{"query": "q", "pos": ["a", "b"], "neg": ["c", "d"], "pos_scores": [0.9, 0.8], "neg_scores": [0.1, 0.2]}]
    pairs = read_training_pairs(rows)
    assert pairs.positives == ["a", "b"]
    assert pairs.negatives == [("c", "d"), ("c", "d")]
    assert pairs.scores == [(0.9, 0.1, 0.2), (0.8, 0.1, 0.2)]


def test_numbered_negatives() -> None:
    rows = [{"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}]
    assert read_training_pairs(rows).negatives == [("b", "c")]


def test_margin_scores_of_a_csv(tmp_path: Path) -> None:
    row = {"query": "q", "positive": "a", "negative": "b", "positive_score": 9.5, "negative_score": "-1"}
    assert read_training_pairs(write_table(tmp_path / "t.csv", [row])).scores == [(9.5, -1.0)]


def test_labels_of_zero_are_negatives() -> None:
    rows = [
        {"query": "q", "passage": "a", "label": 1},
        {"query": "q", "passage": "b", "label": 0},
        {"query": "r", "passage": "c", "label": 0},
    ]
    pairs = read_training_pairs(rows)
    assert (pairs.queries, pairs.positives, pairs.negatives) == (["q"], ["a"], [("b",)])
    data = read_retrieval(rows)
    assert data.qrels == {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": 0}}
    assert data.unanswerable == 1


def test_pairs_to_evaluate(tmp_path: Path) -> None:
    more = write_lines(tmp_path / "more.jsonl", [{"text": "She."}, {"text": "Unrelated."}])
    data = read_retrieval(ROWS, documents=more)
    assert list(data.queries.values()) == ["who?", "where?"]
    assert list(data.documents.values()) == ["She.", "There.", "He.", "Unrelated."]
    assert data.qrels == {"q1": {"d1": 1, "d2": 0, "d3": 1}, "q2": {"d2": 1, "d1": 0}}
    assert data.relevant("q1") == ["d1", "d3"]


def test_named_columns_and_no_header(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "pairs.tsv", ["who?\tShe.", "where?\tThere."])
    source = retrieval_source(path, rows=RowSettings(text="frage", pair="antwort", columns="frage,antwort"))
    assert read_training_pairs(source).positives == ["She.", "There."]


def test_bad_rows_are_skipped_and_counted() -> None:
    rows = [*ROWS, {"query": "", "positive": "x"}, {"query": "x", "positive": None}, {"query": "x", "positive": 3}]
    source = retrieval_source(rows, rows=RowSettings(on_bad_row="skip"))
    assert read_training_pairs(source).skipped == 3
    assert read_retrieval(source).skipped == 3


BAD_ROWS = [
    ([{"text": "a"}], "train has no column for the query: it has text; expected one of query, question, anchor, or"),
    ([{"query": "a", "txt": "b"}], r"no column for the passage: it has query, txt; .* name it with pair \(--pair\)"),
    ([{"query": " ", "passage": "b"}], "train row 1: 'query' is empty; fill it in, or pass on_bad_row='skip'"),
    ([{"query": "a", "passage": ""}], "train row 1: 'passage' is empty; fill it in"),
    ([{"query": "a", "passage": 5}], "train row 1: 'passage' is 5; expected text in quotes, or a list of texts"),
    ([{"query": "a", "passage": "b", "negative": ["c", 1]}], r"'negative' is \['c', 1\]; expected text in quotes"),
    ([{"query": "a", "passage": "b", "label": 0.5}], "'label' is 0.5; expected a whole number"),
    ([{"query": "a", "passage": "b", "label": "yes"}], "'label' is 'yes'; expected a number"),
    ([{"query": "a", "passage": "b", "label": 0}], "every label is 0"),
    (
        [{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": [1], "neg_scores": [1, 2]}],
        "'neg_scores' has 2 scores for 1 passages",
    ),
    (
        [{"query": "a", "pos": ["b"], "neg": ["c"], "pos_scores": ["x"], "neg_scores": [1]}],
        r"'pos_scores' is \['x'\]; expected a number, or a list of numbers",
    ),
    (
        [
            {"query": "a", "pos": ["b"], "label": 1, "pos_scores": [1], "neg_scores": []},
            {"query": "a", "pos": ["c"], "label": 0, "pos_scores": [1], "neg_scores": []},
        ],
        "both scores and labels of 0",
    ),
    ([], "train has no rows; expected at least one"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_pairs(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_training_pairs(rows)


def test_unknown_named_column() -> None:
    with pytest.raises(DataError, match="train has no column 'passag'; did you mean 'passage'"):
        read_training_pairs(retrieval_source([{"query": "a", "passage": "b"}], rows=RowSettings(pair="passag")))


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folder_of_beir(tmp_path: Path) -> None:
    data = read_retrieval(write_folder(tmp_path))
    assert data.documents == {"d1": "People She.", "d2": "There.", "3": "He."}
    assert data.queries == {"q1": "who?", "q2": "where?", "q3": "why?"}
    assert data.qrels == {"q1": {"d1": 2, "3": 1, "d2": 0}, "q2": {"d2": 1}, "q3": {"d1": 0}}
    assert (data.answerable, data.unanswerable, data.split) == (["q1", "q2"], 1, "test")


def test_pairs_of_a_folder(tmp_path: Path) -> None:
    pairs = read_training_pairs(write_folder(tmp_path, name="qrels/train.tsv"))
    assert pairs.queries == ["who?", "who?", "where?"]
    assert pairs.positives == ["People She.", "He.", "There."]
    assert pairs.negatives == [("There.",), ("There.",), ()]


def test_folder_of_trec(tmp_path: Path) -> None:
    folder = tmp_path / "trec"
    write_lines(folder / "collection.tsv", ["d1\tShe.", "d2\tThere."])
    write_lines(folder / "queries.tsv.gz", ["1\twho?", "2\twhere?"])
    write_lines(folder / "qrels.txt", ["1 0 d1 1", "2 0 d2 3"])
    data = read_retrieval(folder)
    assert data.documents == {"d1": "She.", "d2": "There."}
    assert data.queries == {"1": "who?", "2": "where?"}
    assert data.qrels == {"1": {"d1": 1}, "2": {"d2": 3}}
    assert data.split is None


def test_splits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    write_lines(folder / "qrels/dev.tsv", [QRELS[0], "q2\td2\t1"])
    assert read_retrieval(folder).split == "dev"
    data = read_retrieval(folder, split="test")
    assert data.split == "test"
    # The queries of a split are those with judgements.
    assert list(read_retrieval(folder, split="dev").queries) == ["q2"]
    with pytest.raises(ConfigError, match="no judgements for the split 'trian'; it has: dev, test"):
        read_retrieval(folder, split="trian")


BAD_FOLDERS: list[tuple[dict[str, Any], str]] = [
    ({"corpus": [*CORPUS, CORPUS[0]]}, "corpus.jsonl:4: the document 'd1' is already at .*corpus.jsonl:1; give every"),
    ({"queries": [*QUERIES, QUERIES[1]]}, "queries.jsonl:4: the query 'q2' is already at .*:2"),
    ({"corpus": [{"_id": "d1", "title": " ", "text": ""}]}, "corpus.jsonl:1: the text of document 'd1' is empty"),
    ({"queries": [{"_id": "q1", "text": ""}]}, "queries.jsonl:1: the text of query 'q1' is empty"),
    ({"corpus": [{"_id": "d1", "body": "x"}]}, "corpus.jsonl:1: no text; it has: _id, body; expected '_id' and 'text'"),
    ({"corpus": [{"name": "d1", "text": "x"}]}, "corpus.jsonl:1: no id; it has: name, text"),
    ({"corpus": [{"_id": 1.5, "text": "x"}]}, "corpus.jsonl:1: the id is 1.5; expected text or a whole number"),
    ({"corpus": [{"_id": "d1", "text": 7}]}, "corpus.jsonl:1: the text of document 'd1' is 7; expected text"),
    ({"qrels": [QRELS[0], "q1\td9\t1"]}, "test.tsv:2: document 'd9' is unknown; add its text, or pass --on-bad-row"),
    ({"qrels": [QRELS[0], "q9\td1\t1"]}, "test.tsv:2: query 'q9' is unknown"),
    ({"qrels": [QRELS[0], "q1\td1\thigh"]}, "test.tsv:2: the relevance is 'high'; expected a whole number"),
    ({"qrels": [QRELS[0], "q1\td1"]}, "test.tsv:2: 2 columns; expected query, document and relevance, or TREC's four"),
    ({"qrels": [QRELS[0], "q1\td1\t1", "q1\td1\t0"]}, "document 'd1' is judged twice for query 'q1'"),
    ({"qrels": [QRELS[0]]}, "test.tsv has no judgements"),
    ({"qrels": [QRELS[0], "q1\td1\t0"]}, "none of the 1 queries has a relevant document"),
    ({"corpus": []}, "corpus.jsonl is empty; expected text in it"),
]


@pytest.mark.parametrize(("files", "message"), BAD_FOLDERS, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_folders(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_retrieval(write_folder(tmp_path, **files))


def test_bad_lines_of_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, corpus=[*CORPUS, CORPUS[0], {"_id": "d7", "text": ""}], qrels=[*QRELS, "q1 d9 1"])
    assert read_retrieval(retrieval_source(folder, rows=RowSettings(on_bad_row="skip"))).skipped == 3


def test_folders_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file of documents; expected corpus.jsonl, or a table with ids and texts"):
        read_retrieval(tmp_path)
    write_folder(tmp_path, name="elsewhere.tsv")
    with pytest.raises(DataError, match=r"no relevance judgements; expected qrels/dev.tsv, or qrels.tsv"):
        read_retrieval(tmp_path)


BAD_DATA = [
    (RetrievalData({"q": "a"}, {}, {}), "data: there are no documents; expected at least one"),
    (RetrievalData({}, {"d": "a"}, {}), "data: there are no queries"),
    (RetrievalData({"q": " "}, {"d": "a"}, {"q": {"d": 1}}), "the text of queries 'q' is empty"),
    (RetrievalData({"q": "a"}, {"d": "a"}, {"x": {"d": 1}}), "the query 'x', which is not among the queries"),
    (RetrievalData({"q": "a"}, {"d": "a"}, {"q": {"x": 1}}), "the document 'x', which is not in the corpus"),
    (RetrievalData({"q": "a"}, {"d": "a"}, {}), "none of the 1 queries has a relevant document"),
]


@pytest.mark.parametrize(("data", "message"), BAD_DATA, ids=[message for _, message in BAD_DATA])
def test_bad_data_in_memory(data: RetrievalData, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_retrieval(data)


# -- runs --------------------------------------------------------------------------------------------------------------

DATA = RetrievalData({"q1": "who?"}, {"a b": "She.", "c": "There."}, {"q1": {"c": 1}})


def test_runs_are_read_as_written(tmp_path: Path) -> None:
    run = {"q1": {"c": 0.1 + 0.2, "a b": -1e-9}}
    write_run(tmp_path / "run.trec", run, "my model")
    assert read_run(tmp_path / "run.trec", DATA) == run
    assert (tmp_path / "run.trec").read_text().splitlines()[0].split("\t")[3:] == [
        "1",
        "0.30000000000000004",
        "my_model",
    ]


BAD_RUNS = [
    ("q1 Q0 c 1", "run.trec:1: 4 columns; expected query, Q0, document, rank, score and name"),
    ("q1 Q0 c 1 high x", "run.trec:1: the score is 'high'; expected a number"),
    ("q1 Q0 c 1 nan x", "the score is 'nan'"),
    ("q1 Q0 d 1 2 x", "document 'd' is not in the corpus"),
    ("q1 Q0 c 1 2 x\nq1 Q0 c 2 1 x", "run.trec:2: document 'c' is listed twice for query 'q1'"),
    ("q7 Q0 c 1 2 x", "none of its 1 queries is among the data's"),
]


@pytest.mark.parametrize(("text", "message"), BAD_RUNS, ids=[message for _, message in BAD_RUNS])
def test_bad_runs(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_run(write_lines(tmp_path / "run.trec", [text]), DATA)
