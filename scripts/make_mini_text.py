"""Make the text that cloze-mini is trained on, and the books that it never sees.

    python scripts/make_mini_text.py DATA/corpus_en runs/mini

Sources, by licence: 296 books in the public domain and three OpenStax textbooks (CC BY 4.0). Whole books are held out,
every fortieth of the list: a chapter of a book whose other chapters were read is no fair test. Documents are chapters
and textbook modules, with a blank line between them.
"""

import lzma
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

EVERY = 40


def documents(path: Path) -> Iterator[str]:
    """The documents of a compressed file, without the blank lines around them."""
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
    """Names of the included books and how many documents each has, in the order of the text file."""
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
            raise SystemExit(f"{left} chapters belong to no book of the index")
        for module in documents(source / "textbooks_ccby.txt.xz"):
            train.write(module + "\n")
    (target / "held_out_books.txt").write_text("\n".join(held_out_names) + "\n", encoding="utf-8")
    print("\n".join(held_out_names))


if __name__ == "__main__":
    main()
