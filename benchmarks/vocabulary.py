"""Measure vocabulary training: reproducibility, and comparison with the trainer of the ``tokenizers`` library.

    python benchmarks/vocabulary.py [--part identity|trainer|quality|memory] [--megabytes 125] [--size 30522]

identity  five runs in fresh processes with different hash seeds, workers and threads: time, memory, SHA-256
trainer   the library's WordPiece trainer on the same text: time, memory
quality   both train without every 25th book; pieces per word on those books
memory    memory use for 10, 100 and 1,000 MB of text

Memory is the peak resident memory: "own" of the main process, "worker" of its largest worker process, "all" of all
processes together. The text is stored uncompressed, and both read it line by line. The text for ``memory`` is the
concatenation of all English, scientific and Chinese corpora (305 MB), repeated with every 50th word changed as often as
needed.
"""

import argparse
import hashlib
import json
import lzma
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
BOOKS = "corpus_en/books_en.txt.xz"
MEGABYTE = 1_000_000
# hash seed, workers, rayon threads
RUNS = (("0", 1, "1"), ("1", 2, "2"), ("77", 3, "1"), ("4321", 4, "2"), ("random", 2, "4"))


def learn(text: Path, out: Path, size: int, workers: int) -> dict[str, Any]:
    """Train a vocabulary with cloze in a separate process and return the measurements."""
    from cloze.corpus.learn_vocabulary import learn_vocabulary
    from cloze.corpus.settings import VocabularySettings
    from cloze.progress import Silent

    counting = 0.0

    class Listener(Silent):
        def say(self, message: str) -> None:  # noqa: ARG002 (it is what is said when all words are counted)
            nonlocal counting
            counting = resident(resource.RUSAGE_SELF)

    start, settings = time.perf_counter(), VocabularySettings(size=size, workers=workers)
    learned = learn_vocabulary([text], out, settings=settings, progress=Listener())
    seconds = time.perf_counter() - start
    # The workers end before merging starts. In the worst case, all of them reach their peak at the same time.
    peak = max(resident(resource.RUSAGE_SELF), counting + workers * resident(resource.RUSAGE_CHILDREN))
    digest = hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest()
    return {"seconds": seconds, "digest": digest, "different": learned.fit.distinct_words, "together": peak}


def resident(who: int) -> float:
    """Return the peak resident memory so far in megabytes."""
    return resource.getrusage(who).ru_maxrss * 1024 / MEGABYTE


def train_library(text: Path, out: Path, size: int) -> dict[str, Any]:
    """Train with the library in a separate process and return the measurements."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.trainers import WordPieceTrainer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    start = time.perf_counter()
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=size, min_frequency=2, limit_alphabet=1000, special_tokens=special, show_progress=False
    )
    with text.open(encoding="utf-8") as lines:
        tokenizer.train_from_iterator(lines, trainer)
    seconds = time.perf_counter() - start
    vocabulary = tokenizer.get_vocab()
    out.mkdir()
    (out / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", encoding="utf-8")
    return {"seconds": seconds}


def fresh(*words: object, **environment: str) -> dict[str, Any]:
    """Call this script in a new process and return the measurements that it prints."""
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def be_measured(words: list[str]) -> None:
    """Run as the process that ``fresh`` starts: measure and print."""
    kind, text, out, size, *workers = words
    if kind == "learn":
        figures = learn(Path(text), Path(out), int(size), int(workers[0]))
    else:
        figures = train_library(Path(text), Path(out), int(size))
    figures |= {"own": resident(resource.RUSAGE_SELF), "worker": resident(resource.RUSAGE_CHILDREN)}
    print(json.dumps(figures))


def write_lines(path: Path, lines: Iterable[bytes], limit: float) -> Path:
    """Write lines up to a number of bytes."""
    left = limit
    with path.open("wb") as file:
        for line in lines:
            if (left := left - len(line)) < 0:
                break
            file.write(line)
    return path


def read(path: Path) -> Iterator[bytes]:
    with lzma.open(path) as file:
        yield from file


def all_corpora(data: Path) -> Iterator[bytes]:
    """Yield every corpus repeatedly; from the second time on, every 50th word is changed."""
    paths = sorted(path for name in ("en", "sci", "zh") for path in (data / f"corpus_{name}").glob("*.txt.xz"))
    for number in cycle(range(26)):
        for path in paths:
            for line in read(path):
                yield line if number == 0 else changed(line, b"%c" % (97 + number))


def changed(line: bytes, letter: bytes) -> bytes:
    words = line.split(b" ")
    words[::50] = [word.strip() + letter for word in words[::50]]
    return b" ".join(words).rstrip() + b"\n"


def identity(data: Path, folder: Path, megabytes: float, size: int) -> None:
    text = write_lines(folder / "books.txt", read(data / BOOKS), megabytes * MEGABYTE)
    digests = set[str]()
    print("hash seed  workers  rayon threads  seconds  own MB  worker MB  all MB  SHA-256 of vocab.txt")
    for seed, workers, threads in RUNS:
        more = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        run = fresh("learn", text, folder / "ours", size, workers, **more)
        digests.add(run["digest"])
        print(
            f"{seed:>9}  {workers:7}  {threads:>13}  {run['seconds']:7.1f}  {run['own']:6.0f}  {run['worker']:9.0f}  "
            f"{run['together']:6.0f}  {run['digest'][:32]}",
            flush=True,
        )
    print("identical" if len(digests) == 1 else f"{len(digests)} DIFFERENT VOCABULARIES")


def trainer(data: Path, folder: Path, megabytes: float, size: int) -> None:
    text = write_lines(folder / "books.txt", read(data / BOOKS), megabytes * MEGABYTE)
    library = fresh("library", text, folder / "library", size)
    print(f"{'':28}  seconds  own MB  worker MB  all MB  time / library  memory / library")
    print(f"{'tokenizers, WordPieceTrainer':28}  {library['seconds']:7.1f}  {library['own']:6.0f}")
    for workers in (1, 2):
        ours = fresh("learn", text, folder / "ours", size, workers)
        print(
            f"{f'cloze, workers {workers}':28}  {ours['seconds']:7.1f}  {ours['own']:6.0f}  {ours['worker']:9.0f}  "
            f"{ours['together']:6.0f}  {ours['seconds'] / library['seconds']:14.2f}  "
            f"{ours['together'] / library['own']:16.2f}",
            flush=True,
        )


def quality(data: Path, folder: Path, megabytes: float, size: int) -> None:
    from cloze.corpus.documents import read_lines
    from cloze.corpus.learn_vocabulary import measure_fit
    from cloze.progress import Silent
    from cloze.text import read_vocabulary
    from cloze.text.word_counts import count_words

    limit = megabytes * MEGABYTE
    train = write_lines(folder / "train.txt", books(data, held_out=False), limit)
    test = write_lines(folder / "test.txt", books(data, held_out=True), limit)
    fresh("learn", train, folder / "ours", size, 2)
    fresh("library", train, folder / "library", size)
    counts = count_words(read_lines(test), lowercase=True, workers=1, total=None, progress=Silent())
    print(f"{counts.words:,} words of held-out books, {counts.different:,} different")
    print("            pieces  pieces / word  one piece    [UNK]")
    fits = {}
    for name in ("library", "ours"):
        pieces = read_vocabulary(folder / name / "vocab.txt")
        fits[name] = fit = measure_fit(counts, pieces)
        print(f"{name:10}  {len(pieces):6,}  {fit.pieces_per_word:13.4f}  {fit.one_piece:9.2%}  {fit.unknown:7.3%}")
    print(f"pieces per word, ours / library: {fits['ours'].pieces_per_word / fits['library'].pieces_per_word:.4f}")


def books(data: Path, held_out: bool) -> Iterator[bytes]:
    """Return the lines of every 25th book, or of all other books; the index lists the chapters per book."""
    index = (data / "corpus_en/books_en.index.tsv").read_text(encoding="utf-8").splitlines()
    facts = [dict(fact.split("=") for fact in line.split("\tA ")[1].split()) for line in index if "\tA " in line]
    book_of = [number for number, fact in enumerate(facts) for _ in range(int(fact["docs"]))]
    chapter, inside = 0, False
    for line in read(data / BOOKS):
        if line.strip():
            inside = True
            if (book_of[chapter] % 25 == 24) == held_out:
                yield line
        elif inside:
            chapter, inside = chapter + 1, False


def memory(data: Path, folder: Path, megabytes: float, size: int) -> None:
    print("text MB  different words  seconds  own MB  worker MB  all MB  (2 workers)")
    for step in (10, 100, 1000):
        amount = step * megabytes / 125
        text = write_lines(folder / "all.txt", all_corpora(data), amount * MEGABYTE)
        run = fresh("learn", text, folder / "ours", size, 2)
        print(
            f"{amount:7.0f}  {run['different']:15,}  {run['seconds']:7.1f}  {run['own']:6.0f}  {run['worker']:9.0f}  "
            f"{run['together']:6.0f}",
            flush=True,
        )


PARTS = {"identity": identity, "trainer": trainer, "quality": quality, "memory": memory}


def main() -> None:
    """Parse the arguments and run one part, or all of them."""
    if sys.argv[1:2] in (["learn"], ["library"]):
        be_measured(sys.argv[1:])
        return
    parser = argparse.ArgumentParser(description="Measure vocabulary learning.")
    add_data(parser)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument(
        "--megabytes", type=float, default=125.0, help="megabytes of training text; scales the sizes of the memory part"
    )
    parser.add_argument("--size", type=int, default=30_522)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, BOOKS)
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            print(f"-- {name}")
            with tempfile.TemporaryDirectory() as folder:
                part(arguments.data, Path(folder), arguments.megabytes, arguments.size)


if __name__ == "__main__":
    main()
