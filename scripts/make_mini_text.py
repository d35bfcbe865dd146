"""Create the training text of the shipped English models and its held-out part.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini [--wikipedia] [--keep N]

Sources: 296 books in the public domain, three OpenStax textbooks (CC BY 4.0) and, on request, articles of the English
Wikipedia (CC BY-SA 3.0). Whole books are held out, every fortieth of the list, because a chapter is not a fair test if
other chapters of the same book were used in training; and every fortieth article. Documents are chapters, textbook
modules and articles, separated by blank lines.
"""

import argparse
import lzma
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

EVERY = 40


def documents(path: Path) -> Iterator[str]:
    """Yield the documents of a compressed file without surrounding blank lines."""
    lines: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                lines.append(line)
            elif lines:
                yield "".join(lines)
                lines = []
    if lines:
        yield "".join(lines)


def chapter_counts(index: Path) -> list[tuple[str, int]]:
    """Return the names of the included books and their numbers of documents, in the order of the text file."""
    rows = re.findall(r"^(.+)\tA docs=(\d+) bytes=\d+$", index.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(name, int(count)) for name, count in rows]


def main() -> None:
    """Write train.txt, held_out.txt and the list of held-out books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the folder corpus_en")
    parser.add_argument("target", type=Path)
    parser.add_argument("--wikipedia", action="store_true", help="add Wikipedia articles (CC BY-SA 3.0)")
    parser.add_argument("--keep", type=int, default=1, metavar="N", help="keep every N-th training document only")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    held_out_names: list[str] = []
    with (
        (arguments.target / "train.txt").open("w", encoding="utf-8") as train,
        (arguments.target / "held_out.txt").open("w", encoding="utf-8") as held_out,
    ):
        numbered = enumerate(training_documents(arguments.source, arguments.wikipedia, held_out, held_out_names))
        train.writelines(text + "\n" for number, text in numbered if number % arguments.keep == 0)
    (arguments.target / "held_out_books.txt").write_text("\n".join(held_out_names) + "\n", encoding="utf-8")


def training_documents(source: Path, wikipedia: bool, held_out: TextIO, held_out_names: list[str]) -> Iterator[str]:
    """Yield the documents for training; write the others to ``held_out``, and append the names of their books."""
    chapters = documents(source / "books_en.txt.xz")
    for number, (name, count) in enumerate(chapter_counts(source / "books_en.index.tsv")):
        if number % EVERY == EVERY - 1:
            held_out_names.append(name)
            held_out.writelines(chapter + "\n" for chapter in islice(chapters, count))
        else:
            yield from islice(chapters, count)
    if left := sum(1 for _ in chapters):
        raise SystemExit(f"{left} chapters do not belong to any book in the index")
    yield from documents(source / "textbooks_ccby.txt.xz")
    if wikipedia:
        for number, article in enumerate(documents(source / "wikipedia_en.txt.xz")):
            if number % EVERY == EVERY - 1:
                held_out.write(article + "\n")
            else:
                yield article


if __name__ == "__main__":
    main()
