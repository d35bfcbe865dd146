"""``cloze audit``: its output, and exit code 1 for a failed check."""

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.text import Tokenizer, learn_pieces
from tests.cli.conftest import DEMO, Cloze
from tests.corpus.texts import WORDS, as_text, make_documents


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of a hundred documents."""
    folder = tmp_path_factory.mktemp("audit")
    documents = make_documents(100)
    pieces = learn_pieces([sentence for document in documents for sentence in document], 120)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "vocabulary")
    (folder / "text.txt").write_text(as_text(documents), encoding="utf-8")
    return prepare([folder / "text.txt"], folder / "vocabulary", folder / "data", settings=PrepareSettings(0.1))


SMALL = ("--length", 32, "--batch", 8, "--tokens", 20_000)


def test_table_ends_in_a_verdict(data: Path, run: Cloze) -> None:
    result = run("audit", data, *SMALL)
    assert (result.code, result.err) == (0, "")
    rows = [line.split("\t") for line in result.out.splitlines()]
    assert rows[0] == ["", "measured", "95 % interval", "expected", ""]
    hidden = next(row for row in rows if row[0] == "hidden")
    low, _, high = hidden[2].split()
    assert float(low) < float(hidden[1]) < float(high)
    assert hidden[3:] == ["0.8000", "ok"]
    assert ["sequences over their budget", "0", "", "0", "ok"] in rows
    assert result.out.splitlines()[-1].endswith(" tokens: ok")


@pytest.mark.parametrize("masking", ["word", "ngram", "span", "entity", "correction"])
@pytest.mark.parametrize("objective", ["sop", "none"])
def test_every_way_passes(data: Path, run: Cloze, tmp_path: Path, objective: str, masking: str) -> None:
    (tmp_path / "entities.txt").write_text("old river\nsilver road\n", encoding="utf-8")
    (tmp_path / "similar.tsv").write_text("\n".join(f"{one}\t{' '.join(WORDS)}" for one in WORDS), encoding="utf-8")
    files = ("--entities", tmp_path / "entities.txt", "--similar", tmp_path / "similar.tsv")
    result = run("audit", data, *SMALL, "--objective", objective, "--masking", masking, *files, "--json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert found["ok"] is True
    assert found["tokens"] >= 20_000
    assert {"name", "measured", "low", "high", "expected", "ok"} == set(found["checks"][0])


def test_similar_words_are_learned_where_no_file_is_named(run: Cloze, data: Path, tmp_path: Path) -> None:
    with lzma.open(DEMO / "books.txt.xz", "rt", encoding="utf-8") as file:
        (tmp_path / "text.txt").write_text(file.read(400_000), encoding="utf-8")
    prepare([tmp_path / "text.txt"], data, tmp_path / "books")
    result = run("audit", tmp_path / "books", *SMALL, "--masking", "correction")
    assert (result.code, result.err) == (0, "")
    assert "for lack of a similar word" in result.out
    # Words of synthetic text have no typical context.
    assert "occurs in the same contexts as another" in run("audit", data, *SMALL, "--masking", "correction").complaint


def test_shares_are_those_of_the_flags(data: Path, run: Cloze) -> None:
    flags = ("--mask-rate", 0.3, "--mask-mix", 0.5, 0.25, 0.25, "--static", 3, "--seed", 5)
    result = run("audit", data, *SMALL, *flags, "--json")
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert checks["chosen"]["measured"] == pytest.approx(0.3, abs=0.02)
    assert checks["hidden"]["expected"] == 0.5
    assert result.code == 0


def test_what_is_wrong_ends_with_code_1(data: Path, run: Cloze, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PretrainingBatches.at

    def swap_labels(batches: PretrainingBatches, step: int) -> PretrainingBatch:
        batch = made(batches, step)
        return replace(batch, labels=1 - batch.labels)

    monkeypatch.setattr(PretrainingBatches, "at", swap_labels)
    result = run("audit", data, *SMALL)
    assert result.code == 1
    assert "NOT OK" in next(line for line in result.out.splitlines() if line.startswith("pairs with a wrong label"))
    assert "NOT OK: " in result.out.splitlines()[-1]
    assert json.loads(run("audit", data, *SMALL, "--json").out)["ok"] is False


def test_errors_are_reported(data: Path, run: Cloze, tmp_path: Path) -> None:
    assert "no entities; give a file of them with --entities" in run("audit", data, "--masking", "entity").complaint
    assert "not a prepared corpus" in run("audit", tmp_path).complaint
    assert "tokens is 0; expected at least 1" in run("audit", data, "--tokens", 0).complaint
    for masking in ("token", "correction"):
        output = run("audit", data, "--seed", -1, "--masking", masking)
        assert (output.code, "seed is -1; expected a whole number of at least 0" in output.complaint) == (2, True)


def test_a_recipe_is_audited_as_it_would_be_trained(data: Path, run: Cloze) -> None:
    spans, flags = (
        run("audit", data, *SMALL, *more, "--json").out
        for more in (("--recipe", "spanbert"), ("--objective", "none", "--masking", "span"))
    )
    without_time = [
        [check for check in json.loads(output)["checks"] if "second" not in check["name"]] for output in (spans, flags)
    ]
    assert without_time[0] == without_time[1]
    assert "unknown recipe 'spanbret'" in run("audit", data, "--recipe", "spanbret").complaint
