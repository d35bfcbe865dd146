"""Create Chinese training text for a correction model: one file, with blank lines between documents.

    python scripts/make_chinese_text.py ../shared/data runs/zh/text.txt

It consists of everyday prose (a weekly, news, reviews, questions, encyclopedia articles, half of the retold classics, a
little of manuals and laws) and SIGHAN's corrected training sentences, six times, because they are the only text written
by learners. It contains no sentence of SIGHAN's test sets.
"""

import json
import lzma
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from cloze.tasks.correction.examples import read_corrections

# Maximum number of characters per corpus.
CORPORA = {"zh_weekly": 10**9, "zh_apachecn_ds": 700_000, "zh_laws": 300_000, "zh_classics_modern": 4_000_000}
QUESTIONS = ("LCQMC/dev.txt", "LCQMC/test.txt", "AFQMC/train.txt.xz")
TIMES = 6  # how often SIGHAN's sentences are repeated


def opened(path: Path) -> IO[str]:
    """Open a text file, compressed or not."""
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8")


def corpus(path: Path, limit: int, draw: random.Random) -> Iterator[str]:
    """Return the documents of a corpus in shuffled order."""
    documents = opened(path).read().split("\n\n")
    draw.shuffle(documents)
    taken = 0
    for document in documents:
        if taken >= limit:
            return
        yield document.strip()
        taken += len(document)


def grouped(lines: Iterable[str], size: int) -> Iterator[str]:
    """Group lines into documents of a given number of lines."""
    kept = [line.strip() for line in lines if line.strip()]
    for start in range(0, len(kept), size):
        yield "\n".join(kept[start : start + size])


def news(path: Path) -> Iterator[str]:
    """Return the sentences of a file that has one character and its tag per line."""
    sentence: list[str] = []
    for line in opened(path):
        if line.strip():
            sentence.append(line.split()[0])
        elif sentence:
            yield "".join(sentence)
            sentence = []


def questions(folder: Path) -> list[str]:
    """Return each question once."""
    cells = [line.rstrip("\n").split("\t")[:2] for name in QUESTIONS for line in opened(folder / name)]
    return list(dict.fromkeys(cell for row in cells for cell in row))


def contexts(path: Path) -> Iterator[str]:
    """Return the paragraphs of a question-answering file."""
    for article in json.load(opened(path))["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"]


def sighan(folder: Path) -> list[str]:
    """Return the corrected training sentences that are not in any test set."""
    tests = [read_corrections(folder / f"sighan{year}") for year in (13, 14, 15)]
    tested = {text for test in tests for text in (*test.sources, *test.targets)}
    return [text for text in read_corrections(folder / "merged", training=True).targets if text not in tested]


def main(data: Path, out: Path) -> None:
    """Write the text."""
    draw = random.Random(1)
    documents = [
        one for name, most in CORPORA.items() for one in corpus(data / "corpus_zh" / f"{name}.txt.xz", most, draw)
    ]
    documents += grouped(news(data / "ner_zh_msra" / "train.txt.xz"), 20)
    reviews = [line.rstrip("\n").split("\t", 1)[1] for line in opened(data / "chnsenticorp" / "train.tsv.xz")]
    documents += grouped(reviews[1:], 10)
    documents += grouped(questions(data / "zh_pairs"), 30)
    for path in sorted((data / "zh_qa").glob("cmrc*")):
        documents += grouped(contexts(path), 1)
    documents += TIMES * list(grouped(sighan(data / "sighan_csc"), 10))
    draw.shuffle(documents)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    print(f"{len(documents):,} documents, {sum(map(len, documents)):,} characters")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
