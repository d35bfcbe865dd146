"""Create the data that ships with ``cloze demo``: pre-training text, and the task "who wrote this paragraph?".

    python scripts/make_demo_data.py CORPUS_EN_FOLDER [--out src/cloze/demo/data]

The folder contains ``books_en.txt.xz`` (one paragraph per line, a blank line between chapters) and
``books_en.index.tsv`` (its books in order, with the number of chapters of each), compiled from the
public-domain repository mlschmitt/classic-books-markdown. The same input gives the same output,
because texts are selected by their hash. ``SOURCE.md``, next to the data, describes the selection.
"""

import argparse
import hashlib
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

Books = dict[tuple[str, str], list[list[str]]]  # (author, title) -> chapters -> paragraphs

SPLITS = {"train": 150, "dev": 50, "test": 100}  # number of paragraphs per author

DOYLE_STORIES = "The Adventure of the "
BOOKS: dict[str, dict[str, list[str]]] = {
    "Charles Dickens": {
        "train": ["Our Mutual Friend", "Great Expectations", "The Old Curiosity Shop"],
        "dev": ["Bleak House"],
        "test": ["David Copperfield"],
    },
    "Arthur Conan Doyle": {
        "train": [
            "A Study in Scarlet",
            "Silver Blaze",
            "The Man with the Twisted Lip",
            "The Resident Patient",
            "The Final Problem",
            DOYLE_STORIES + "Speckled Band",
            DOYLE_STORIES + "Dancing Men",
            DOYLE_STORIES + "Second Stain",
        ],
        "dev": [
            "The Reigate Puzzle",
            "The Stockbroker's Clerk",
            DOYLE_STORIES + "Six Napoleons",
            DOYLE_STORIES + "Blue Carbuncle",
            DOYLE_STORIES + "Three Students",
        ],
        "test": [
            "The Hound of the Baskervilles",
            DOYLE_STORIES + "Engineer's Thumb",
            DOYLE_STORIES + "Missing Three-Quarter",
        ],
    },
    "Jack London": {
        "train": ["The Mutiny of the Elsinore", "The House of Pride", "The Iron Heel"],
        "dev": ["The Call of the Wild"],
        "test": ["The Sea Wolf"],
    },
    "Jules Verne": {
        "train": ["Around the World in 80 Days", "Five Weeks in a Balloon"],
        "dev": ["Robur the Conqueror"],
        "test": ["From the Earth to the Moon"],
    },
    "Edith Wharton": {
        "train": ["The Age of Innocence", "Tales of Men and Ghosts"],
        "dev": ["Ethan Frome"],
        "test": ["Summer"],
    },
    "Fyodor Dostoyevsky": {
        "train": ["Crime and Punishment", "Poor Folk"],
        "dev": ["The Gambler"],
        "test": ["White Nights", "Notes from Underground"],
    },
}
OTHERS = [
    ("Jane Austen", "Emma"),
    ("George Eliot", "Silas Marner"),
    ("Robert Louis Stevenson", "Treasure Island"),
    ("Frances Hodgson Burnett", "The Secret Garden"),
    ("Oscar Wilde", "The Picture of Dorian Gray"),
    ("Lewis Carroll", "Alice's Adventures in Wonderland"),
]
# Characters who recur from book to book. They reveal the author even if another author uses the same name.
SERIES = {"Holmes", "Sherlock", "Watson", "Lestrade", "Gregson", "Hopkins", "Mycroft", "Moriarty", "Baker"}

AUTHOR_BYTES = 490_000  # bytes of pre-training text from each of the six authors
OTHER_BYTES = 430_000  # bytes from each of the other authors
SHORTEST, LONGEST = 300, 700  # number of characters of a labelled paragraph
RUN = 8  # length of word sequences that a held-out paragraph must not share with other text

SENTENCES = """\
He shook his [MASK] and said nothing.	head
She looked at him with tears in her [MASK].	eyes
He opened the [MASK] and went into the room.	door
I do not [MASK] what you mean.	know
He put his [MASK] in his pocket and took out a letter.	hand
The old [MASK] sat by the fire with his pipe.	man
It was getting [MASK], and she lit the lamp.	dark
She had never been so happy in all her [MASK].	life
He was the best friend I ever had in the [MASK].	world
We had no time to [MASK], and ran down to the boat.	lose
For a long [MASK] neither of them spoke.	time
"Good night, sir," said the boy, and went up to [MASK].	bed
"""


@dataclass(frozen=True)
class Paragraph:
    """A candidate paragraph for a split, with its label."""

    text: str
    author: str
    book: str

    @property
    def order(self) -> str:
        """A pseudo-random sort key that depends only on the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_books(folder: Path) -> Books:
    """Split the corpus into books and check that their sizes match the index."""
    with lzma.open(folder / "books_en.txt.xz", "rt", encoding="utf-8", newline="\n") as stream:
        documents = stream.read().strip("\n").split("\n\n")
    books: Books = {}
    begin = 0
    for line in (folder / "books_en.index.tsv").read_text(encoding="utf-8").splitlines():
        name, state = line.split("\t")
        included = re.fullmatch(r"A docs=(\d+) bytes=(\d+)", state)
        if not included:
            continue
        count, size = map(int, included.groups())
        chapters = documents[begin : begin + count]
        begin += count
        # The sizes in the index include the blank lines between chapters, two bytes each.
        if abs(sum(len(chapter.encode()) for chapter in chapters) + 2 * count - size) > 2:
            raise SystemExit(
                f"{name}: {size} bytes in the index, but a different size in the text; check the order of the books"
            )
        author, title = name.removesuffix(".md").split("/")
        books[author, title] = [clean(chapter) for chapter in chapters]
    return books


def clean(chapter: str) -> list[str]:
    """Unify the typography, so that a dash does not reveal the edition, and drop paragraphs with markup."""
    text = chapter.replace("\u2014", "--").replace("\u2026", "...").replace("\u2019", "'")
    text = re.sub(r"[\u201c\u201d]", '"', text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return [line for line in lines if line and not re.search(r"^Translated by|[\[\]{}*^_|\x80-\x9f]", line)]


def pretraining_chapters(books: Books) -> list[list[str]]:
    """Return the first chapters of the training books of the six authors and of all others, up to their shares."""
    chosen: list[list[str]] = []
    for author, splits in BOOKS.items():
        share = AUTHOR_BYTES // min(len(splits["train"]), 2)
        room = AUTHOR_BYTES
        for title in splits["train"]:
            part = take(books[author, title], min(share, room))
            room -= sum(map(size_of, part))
            chosen += part
    for key in OTHERS:
        chosen += take(books[key], OTHER_BYTES)
    return chosen


def take(chapters: list[list[str]], room: int) -> list[list[str]]:
    """Return as many whole chapters from the start as fit; fragments such as epigraphs are left out."""
    part: list[list[str]] = []
    for chapter in chapters:
        if size_of(chapter) > room:
            break
        if size_of(chapter) >= 1000:
            part.append(chapter)
            room -= size_of(chapter)
    return part


def size_of(chapter: list[str]) -> int:
    """Return the number of bytes of a chapter in the output file."""
    return sum(len(line.encode()) + 1 for line in chapter) + 1


def telling_names(books: Books) -> dict[str, set[str]]:
    """Return the names that only one of the six authors uses, both in a training book and in a dev or test book."""
    words = {
        (author, split): Counter(
            word
            for title in titles
            for chapter in books[author, title]
            for line in chapter
            for word in re.findall(r"[A-Za-z]+", line)
        )
        for author, splits in BOOKS.items()
        for split, titles in splits.items()
    }
    lower = {word for counts in words.values() for word in counts if word.islower()}
    telling = {}
    for author in BOOKS:
        others = {word for other in BOOKS if other != author for word in words[other, "train"]}
        held_out = set(words[author, "dev"]) | set(words[author, "test"])
        shared = (set(words[author, "train"]) & held_out) - others
        telling[author] = {word for word in shared if word[0].isupper() and word.lower() not in lower}
    return telling


def candidates(books: Books, author: str, split: str, avoid: set[str]) -> Iterator[Paragraph]:
    """Yield the suitable paragraphs of a split, alternating between books so that no book dominates."""
    surname = author.split()[-1]
    piles = []
    for title in BOOKS[author][split]:
        pile = [Paragraph(line, author, title) for chapter in books[author, title] for line in chapter]
        good = [paragraph for paragraph in pile if is_prose(paragraph.text, avoid | {surname})]
        piles.append(sorted(good, key=lambda paragraph: paragraph.order))
    turns = chain.from_iterable(zip_longest(*piles))
    return (paragraph for paragraph in turns if paragraph is not None)


def is_prose(text: str, avoid: set[str]) -> bool:
    """Return whether a line is a whole paragraph of the right length without a name that reveals its author."""
    return (
        SHORTEST <= len(text) <= LONGEST
        and text.isascii()
        and re.match(r"[\"'A-Z]", text) is not None
        and re.search(r"[.!?][\"']?$", text) is not None
        and not re.search(r"[A-Z]{3,}|\d{3,}", text)  # headings, tables and dates
        and not avoid & set(re.findall(r"[A-Za-z]+", text))
    )


def runs(text: str) -> set[tuple[str, ...]]:
    """Return all sequences of ``RUN`` consecutive words in a text, ignoring case and punctuation."""
    words = re.findall(r"[a-z]+", text.lower())
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


def labelled_splits(books: Books, pretraining: Iterable[list[str]]) -> dict[str, list[Paragraph]]:
    """Choose the paragraphs of each split; held-out paragraphs share no word sequence with the pre-training text."""
    telling = telling_names(books)
    read_before = set().union(*(runs(line) for chapter in pretraining for line in chapter))
    seen: set[tuple[str, ...]] = set()
    chosen: dict[str, list[Paragraph]] = {split: [] for split in SPLITS}
    for split, count in SPLITS.items():
        for author in BOOKS:
            some: list[Paragraph] = []
            for paragraph in candidates(books, author, split, telling[author] | SERIES):
                new = runs(paragraph.text)
                if new & seen or (split != "train" and new & read_before):
                    continue
                seen |= new
                some.append(paragraph)
                if len(some) == count:
                    break
            if len(some) < count:
                raise SystemExit(f"{author}: {len(some)} paragraphs are suitable for {split}; {count} are needed")
            chosen[split] += some
    return chosen


def write_all(out: Path, pretraining: list[list[str]], splits: dict[str, list[Paragraph]]) -> None:
    """Write the pre-training text and the labelled splits."""
    out.mkdir(parents=True, exist_ok=True)
    text = "\n".join("".join(f"{line}\n" for line in chapter) for chapter in pretraining)
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (out / "books.txt.xz").write_bytes(packed)
    print(f"books.txt.xz: {len(pretraining)} chapters, {len(text.encode())} bytes, {len(packed)} compressed")
    for split, paragraphs in splits.items():
        rows = [
            f"{paragraph.text}\t{paragraph.author}\t{paragraph.book}\n"
            for paragraph in sorted(paragraphs, key=lambda paragraph: paragraph.order)
        ]
        (out / f"authors_{split}.tsv").write_text("text\tlabel\tbook\n" + "".join(rows), encoding="utf-8")
        print(f"authors_{split}.tsv: {len(rows)} rows")
    (out / "sentences.txt").write_text(SENTENCES, encoding="utf-8")


def main() -> None:
    """Read the corpus, choose the texts and write the files."""
    parser = argparse.ArgumentParser(description="Make the data that ships with cloze demo.")
    parser.add_argument("folder", type=Path, help="the corpus_en folder")
    parser.add_argument("--out", type=Path, default=Path("src/cloze/demo/data"))
    arguments = parser.parse_args()
    books = read_books(arguments.folder)
    pretraining = pretraining_chapters(books)
    write_all(arguments.out, pretraining, labelled_splits(books, pretraining))


if __name__ == "__main__":
    main()
