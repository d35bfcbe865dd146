"""Create the demo's task, "are these words in order?", from the books that ``make_demo_data`` holds out.

    python scripts/make_order_data.py CORPUS_EN_FOLDER [--out src/cloze/demo/data]

A sentence is left unchanged, or six consecutive words are shuffled. The words are the same either way, so a
bag-of-words model cannot solve the task: only the order matters. The same input gives the same output.
"""

import argparse
import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

from cloze.text import split_sentences
from make_demo_data import BOOKS, Books, read_books

ROWS = {"train": 3000, "dev": 600, "test": 1500, "unread": 600}
# Held out by make_mini_text.py, too: neither the demo's own model nor the shipped one has read them.
UNREAD = [
    ("Oscar Wilde", "The Canterville Ghost"),
    ("Jerome K. Jerome", "Three Men in a Boat"),
    ("Agatha Christie", "The Secret Adversary"),
    ("Peter Kropotkin", "The Conquest of Bread"),
]
SHORTEST, LONGEST = 9, 20  # number of words in a sentence
WINDOW = 6
LABELS = ("in order", "shuffled")


def sentences(books: Books, split: str) -> Iterator[tuple[str, str]]:
    """Yield narrative sentences from the books of a split, each with its book."""
    for author, title in _titles(split):
        for chapter in books[author, title]:
            for paragraph in chapter:
                for sentence in split_sentences(paragraph, "en"):
                    if is_plain(sentence):
                        yield sentence, title


def _titles(split: str) -> list[tuple[str, str]]:
    if split == "unread":
        return UNREAD
    return [(author, title) for author, splits in BOOKS.items() for title in splits[split]]


def is_plain(sentence: str) -> bool:
    """Return whether a sentence is complete, has a suitable length, and is long enough for a window."""
    words = sentence.split()
    return (
        SHORTEST <= len(words) <= LONGEST
        and sentence.isascii()
        and re.fullmatch(r"[A-Z][^\"()\d]*[.!?]", sentence) is not None
        and bool(windows(words))
    )


def windows(words: list[str]) -> list[int]:
    """Return the starts of six consecutive plain words; a misplaced capital or comma would reveal the shuffling."""
    plain = [re.fullmatch("[a-z]+", word) is not None for word in words]
    return [start for start in range(1, len(words) - WINDOW) if all(plain[start : start + WINDOW])]


def shuffled(sentence: str, generator: random.Random) -> str:
    """Return the sentence with one of its windows shuffled."""
    words = sentence.split()
    start = generator.choice(windows(words))
    window = words[start : start + WINDOW]
    while words[start : start + WINDOW] == window:
        generator.shuffle(window)
    return " ".join([*words[:start], *window, *words[start + WINDOW :]])


def rows(books: Books, split: str) -> list[tuple[str, str, str]]:
    """Choose and label sentences by their hash, equally many of each label."""
    unique = dict(sentences(books, split))
    ordered = sorted(unique, key=lambda sentence: hashlib.sha256(sentence.encode()).hexdigest())[: ROWS[split]]
    generator = random.Random(split)
    labelled = []
    for index, sentence in enumerate(ordered):
        label = LABELS[index % 2]
        text = sentence if label == "in order" else shuffled(sentence, generator)
        labelled.append((text, label, unique[sentence]))
    return labelled


def main() -> None:
    """Read the corpus, choose the sentences and write the files."""
    parser = argparse.ArgumentParser(description="Make the demo's task.")
    parser.add_argument("folder", type=Path, help="the corpus_en folder")
    parser.add_argument("--out", type=Path, default=Path("src/cloze/demo/data"))
    arguments = parser.parse_args()
    books = read_books(arguments.folder)
    for split, count in ROWS.items():
        found = rows(books, split)
        if len(found) < count:
            raise SystemExit(f"{split}: {len(found)} sentences are suitable; {count} are needed")
        lines = ["text\tlabel\tbook\n", *("\t".join(row) + "\n" for row in found)]
        (arguments.out / f"order_{split}.tsv").write_text("".join(lines), encoding="utf-8")
        print(f"order_{split}.tsv: {len(found)} rows")


if __name__ == "__main__":
    main()
