"""The bundled data match their description in SOURCE.md."""

import lzma
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from cloze.tasks.classification.kind import find_labels
from cloze.tasks.rows import Row, read_rows

DATA = Path(str(files("cloze.demo"))) / "data"
ROWS = {"train": 900, "dev": 300, "test": 600}
AUTHORS = (
    "Arthur Conan Doyle",
    "Charles Dickens",
    "Edith Wharton",
    "Fyodor Dostoyevsky",
    "Jack London",
    "Jules Verne",
)
RUN = 8


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Row]]:
    return {split: list(read_rows(DATA / f"authors_{split}.tsv", text="text", label="label")) for split in ROWS}


@pytest.fixture(scope="module")
def books() -> str:
    return lzma.decompress((DATA / "books.txt.xz").read_bytes()).decode("utf-8")


def runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]+", text.lower())
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


def test_sizes(books: str) -> None:
    assert 4_900_000 < len(books.encode()) < 6_000_000
    assert (DATA / "books.txt.xz").stat().st_size < 2_000_000
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 3_100_000
    assert (DATA / "SOURCE.md").is_file()


def test_books_are_chapters_of_paragraphs(books: str) -> None:
    chapters = books.split("\n\n")
    assert len(chapters) == 332
    assert all(len(chapter) > 900 and "\n\n" not in chapter for chapter in chapters)
    assert books.endswith("\n")
    assert not re.search(r"\n\n\n|[\t\r\x80-\x9f\[\]*_]", books)


def test_rows_are_balanced(splits: dict[str, list[Row]]) -> None:
    for split, count in ROWS.items():
        rows = splits[split]
        assert len(rows) == count
        assert find_labels(rows).names == AUTHORS
        assert set(Counter(row.label for row in rows).values()) == {count // len(AUTHORS)}
        assert all(list(row.fields) == ["text", "label", "book"] for row in rows)
        assert all(300 <= len(row.text) <= 700 for row in rows)


def test_no_book_is_in_two_splits(splits: dict[str, list[Row]]) -> None:
    titles = [{row.fields["book"] for row in rows} for rows in splits.values()]
    assert sum(map(len, titles)) == len(set.union(*titles))


def test_no_name_reveals_the_author(splits: dict[str, list[Row]]) -> None:
    for row in (row for rows in splits.values() for row in rows):
        assert row.label is not None
        words = set(re.findall(r"[A-Za-z]+", row.text))
        assert not words & {row.label.split()[-1], "Holmes", "Sherlock", "Watson", "Lestrade"}


def test_nothing_leaks(splits: dict[str, list[Row]], books: str) -> None:
    held_out = [row.text for split in ("dev", "test") for row in splits[split]]
    assert not any(text in books for text in held_out)
    read_before: set[tuple[str, ...]] = set().union(*(runs(line) for line in books.split("\n")))
    assert not any(runs(text) & read_before for text in held_out)


def test_no_two_paragraphs_are_alike(splits: dict[str, list[Row]]) -> None:
    seen: set[tuple[str, ...]] = set()
    for row in (row for rows in splits.values() for row in rows):
        assert not runs(row.text) & seen, row.place
        seen |= runs(row.text)


def test_sentences_hide_one_word_of_the_books(books: str) -> None:
    lines = (DATA / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 12
    for line in lines:
        sentence, word = line.split("\t")
        assert sentence.count("[MASK]") == 1
        assert len(re.findall(rf"\b{word}\b", books)) > 50


ORDER_ROWS = {"train": 3000, "dev": 600, "test": 1500}


@pytest.fixture(scope="module")
def orders() -> dict[str, list[Row]]:
    return {split: list(read_rows(DATA / f"order_{split}.tsv", text="text", label="label")) for split in ORDER_ROWS}


def test_order_rows_are_balanced_and_share_no_book(orders: dict[str, list[Row]]) -> None:
    for split, count in ORDER_ROWS.items():
        assert Counter(row.label for row in orders[split]) == {"in order": count // 2, "shuffled": count // 2}
    titles = {split: {str(row.fields["book"]) for row in rows} for split, rows in orders.items()}
    assert not titles["train"] & (titles["dev"] | titles["test"])
    assert not titles["dev"] & titles["test"]


def test_order_rows_differ_only_in_order(orders: dict[str, list[Row]]) -> None:
    for row in (row for rows in orders.values() for row in rows):
        words = row.text.split()
        assert 9 <= len(words) <= 20
        assert re.fullmatch(r"[A-Z][^\"()\d]*[.!?]", row.text)
        # Both kinds of sentences contain six consecutive plain words, so that intact and shuffled ones look alike.
        assert re.search(r" [a-z]+( [a-z]+){5} ", row.text)


def test_order_test_sentences_were_not_read_before(orders: dict[str, list[Row]], books: str) -> None:
    intact = [row.text for split in ("dev", "test") for row in orders[split] if row.label == "in order"]
    assert not [text for text in intact if text in books]
