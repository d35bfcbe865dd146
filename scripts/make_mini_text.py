"""Create the training text of cloze-mini and its held-out books.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini

Sources: 296 books in the public domain and three OpenStax textbooks (CC BY 4.0). Whole books are held out, every
fortieth of the list, because a chapter is not a fair test if other chapters of the same book were used in training.
Documents are chapters and textbook modules, separated by blank lines.
"""

import lzma
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

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
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    chapters = documents(source / "books_en.txt.xz")
    held_out_names = []
    with (
        (target / "train.txt").open("w", encoding="utf-8") as train,
        (target / "held_out.txt").open("w", encoding="utf-8") as held_out,
    ):
        for number, (name, count) in enumerate(chapter_counts(source / "books_en.index.tsv")):
            chosen = number % EVERY == EVERY - 1
            if chosen:
                held_out_names.append(name)
            for chapter in islice(chapters, count):
                (held_out if chosen else train).write(chapter + "\n")
        left = sum(1 for _ in chapters)
        if left:
            raise SystemExit(f"{left} chapters do not belong to any book in the index")
        for module in documents(source / "textbooks_ccby.txt.xz"):
            train.write(module + "\n")
    (target / "held_out_books.txt").write_text("\n".join(held_out_names) + "\n", encoding="utf-8")
    print("\n".join(held_out_names))


if __name__ == "__main__":
    main()
