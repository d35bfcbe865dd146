"""``cloze tag``, and the commands that produce its model."""

import csv
import json
from pathlib import Path

import pytest

from cloze.predict import Model, load
from tests.cli.conftest import Cloze, Way, quietly

SENTENCES = "Mr. O\nDarcy I-PER\nleft O\nLondon I-LOC\n\nElizabeth I-PER\nBennet I-PER\nsmiled O\n\n"
TEXTS = ["Mr. Darcy left.", "She smiled."]


@pytest.fixture(scope="session")
def tuned(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagging")
    rows = folder / "rows.txt"
    rows.write_text(SENTENCES * 20, encoding="utf-8")
    small = ("--epochs", 1, "--batch", 4, "--length", 32, "--context")
    quietly("finetune", "tag", rows, "--model", way.pretrained, *small, "--out", folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def tagger(tuned: Path) -> Model:
    return load(tuned)


def test_scores(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.txt"
    rows.write_text(SENTENCES, encoding="utf-8")
    result = run("evaluate", "tag", rows, "--model", tuned, "--out", tmp_path / "scores")
    scores = ["metric", "f1", "precision", "recall", "accuracy", "2 rows; below 30 rows, the intervals are rough"]
    assert [line.split("\t")[0] for line in result.out.splitlines()][:6] == scores
    assert "label\tprecision\trecall\tf1\tsupport" in result.out.splitlines()
    assert result.err == f"cloze: note: {rows} has no -DOCSTART- lines: all of it is treated as one document\n"
    lines = (tmp_path / "scores" / "predictions.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["Mr.", "O"], ["Darcy", "B-PER"]]
    predictions = (tmp_path / "scores" / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert predictions[2].split("\t")[0] == f"{rows}:6"


def test_texts(run: Cloze, tuned: Path, tagger: Model) -> None:
    table = run("tag", *TEXTS, "--model", tuned)
    assert table.out.splitlines()[0] == "text\tentity\tlabel\tprobability\tstart\tend"
    found = [(str(number), one.text) for number, text in enumerate(tagger.tag(TEXTS), 1) for one in text.entities]
    assert [tuple(line.split("\t")[:2]) for line in table.out.splitlines()[1:]] == found
    rows = [json.loads(line) for line in run("tag", *TEXTS, "--model", tuned, "--json").out.splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert [row["tags"] for row in rows] == [[word.tag for word in text.words] for text in tagger.tag(TEXTS)]


def test_columns_of_a_table_are_kept(run: Cloze, tuned: Path, tagger: Model, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "body", "tags"), ("7", TEXTS[0], "mine"), ("8", TEXTS[1], "mine")])
    predictions = [[word.tag for word in text.words] for text in tagger.tag(TEXTS)]
    for ending in (".csv", ".tsv", ".jsonl"):
        output = tmp_path / f"out{ending}"
        result = run("tag", "--input", table, "--text", "body", "--model", tuned, "--output", output)
        assert result.out.startswith(f"{output}: 2 rows, ")
        text = output.read_text(encoding="utf-8")
        if ending == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines()]
            assert [row["predicted_tags"] for row in rows] == predictions
            assert all(isinstance(row["entities"], list) for row in rows)
        else:
            rows = list(
                csv.DictReader(
                    text.splitlines(),
                    delimiter="\t" if ending == ".tsv" else ",",
                    quoting=csv.QUOTE_NONE if ending == ".tsv" else csv.QUOTE_MINIMAL,
                )
            )
            assert [row["predicted_tags"].split() for row in rows] == predictions
            assert all(isinstance(json.loads(row["entities"]), list) for row in rows)
        assert [(row["id"], row["tags"]) for row in rows] == [("7", "mine"), ("8", "mine")]


def test_lists_of_words_are_tagged_as_they_are(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1, "text": ["Mr.", "Darcy"]}\n{"id": 2, "text": ["New York"]}\n', encoding="utf-8")
    rows = [json.loads(line) for line in run("tag", "--input", path, "--model", tuned, "--json").out.splitlines()]
    assert [(row["id"], row["words"]) for row in rows] == [(1, ["Mr.", "Darcy"]), (2, ["New York"])]
    path.write_text('{"text": "Mr. Darcy"}\n', encoding="utf-8")
    (row,) = (json.loads(line) for line in run("tag", "--input", path, "--model", tuned, "--json").out.splitlines())
    assert row["words"] == ["Mr", ".", "Darcy"]
    path.write_text('{"text": ["a"]}\n{"text": "b"}\n', encoding="utf-8")
    complaint = run("tag", "--input", path, "--model", tuned).complaint
    assert complaint.startswith(f"{path}:2: 'text' is 'b'; expected a list")


def test_column_files_keep_their_columns_and_documents(run: Cloze, tuned: Path, tagger: Model, tmp_path: Path) -> None:
    path, output = tmp_path / "in.conll", tmp_path / "out.conll"
    path.write_text("-DOCSTART- -X-\n\nMr. NN\nDarcy NNP\n\nHe PRP\n\n-DOCSTART- -X-\n\nIt PRP\n", encoding="utf-8")
    result = run("tag", "--input", path, "--model", tuned, "--output", output)
    assert (result.code, result.err) == (0, "")
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["-DOCSTART-", "O"], [], ["Mr.", "NN"], ["Darcy", "NNP"], [], ["He", "PRP"], [],
        ["-DOCSTART-", "O"], [], ["It", "PRP"], [],
    ]  # fmt: skip
    assert all(len(line.split()) == 3 for line in lines if line)
    run("tag", *TEXTS, "--model", tuned, "--output", output)
    words = [[word.text for word in text.words] for text in tagger.tag(TEXTS)]
    blocks = output.read_text(encoding="utf-8").strip("\n").split("\n\n")
    assert [[line.split()[0] for line in block.splitlines()] for block in blocks] == words


def test_columns_are_given_by_their_numbers(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.conllu"
    rows.write_text("# text = Mr. Darcy\n1\tMr.\tO\tNN\n2\tDarcy\tI-PER\tNNP\n", encoding="utf-8")
    result = run("evaluate", "tag", rows, "--text", 2, "--label", -2, "--model", tuned, "--out", tmp_path / "scores")
    assert result.code == 0
    lines = (tmp_path / "scores" / "predictions.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:4] for line in lines[:2]] == [["Mr.", "1", "NN", "O"], ["Darcy", "2", "NNP", "B-PER"]]
    output = tmp_path / "out.conll"
    run("tag", "--input", rows, "--text", 2, "--model", tuned, "--output", output)
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [line.split()[:4] for line in lines[:2]] == [["Mr.", "1", "O", "NN"], ["Darcy", "2", "I-PER", "NNP"]]
    result = run("tag", "--input", rows, "--text", "form", "--model", tuned)
    assert result.complaint.startswith(f"text is 'form', but {rows} has one word per line and columns without")


def test_plain_tags_are_shown_word_by_word(run: Cloze, way: Way, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("the DT\ndog NN\n\nit PRP\n\n" * 12, encoding="utf-8")
    small = ("--epochs", 1, "--batch", 8, "--length", 16)
    result = run("finetune", "tag", path, "--model", way.pretrained, *small, "--out", tmp_path / "run", "--json")
    assert list(json.loads(result.out))[1:3] == ["accuracy", "macro_f1"]
    table = run("tag", "the dog", "--model", tmp_path / "run").out.splitlines()
    assert table[0] == "text\tword\ttag\tprobability"
    assert [line.split("\t")[:2] for line in table[1:]] == [["1", "the"], ["1", "dog"]]


def test_mistakes(run: Cloze, way: Way, tuned: Path, tmp_path: Path) -> None:
    result = run("tag", "a", "--model", tuned, "--output", tmp_path / "out.xls")
    assert (result.code, result.complaint) == (
        2,
        f"--output {tmp_path / 'out.xls'}: expected .jsonl, .csv, .tsv or .conll",
    )
    assert "this model was not trained to tag" in run("tag", "a", "--model", way.tuned).complaint
    rows = tmp_path / "rows.txt"
    rows.write_text("a O\n\nb B-NONE\n", encoding="utf-8")
    complaint = run("evaluate", "tag", rows, "--model", tuned).complaint
    assert complaint.startswith(f"{rows}:3: label 'B-NONE' is not among the 5 labels of training")
