"""Measure text preparation: speed per core compared with the original method, and memory by text size.

    python benchmarks/prepare.py [--part speed|memory|verify] [--megabytes 10] [--sizes 10 100 1000] [--data ...]

speed   CPU seconds on one core, from text with one sentence per line to examples of 128 tokens. cloze runs
        ``cloze prepare --lines sentences`` with one worker, which also finds word boundaries, and then one epoch of
        batches; the original method is in ``reference_examples.py``.
memory  ``cloze prepare`` with one worker per core on texts of several sizes: peak resident memory of the main process
        ("leader") and of all processes. A text of one shard (about 10 MB) is prepared by one process.
verify  Speed of comparing a finished corpus with its manifest.

The text consists of the English books, repeated as often as necessary. In each repetition the words of every line are
rotated by one, so that no two documents are equal.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
BOOKS = "corpus_en/books_en.txt.xz"
PIECES = "vocab/bert-base-uncased-vocab.txt"
MEGABYTE = 1_000_000
ONE_CORE = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

OURS = """
import json, sys, time
from pathlib import Path
from cloze.corpus.batches import PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import EngineSettings, ExampleSettings, MaskSettings, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.text import Tokenizer
begun = time.process_time()
settings = PrepareSettings(held_out=0, lines="sentences")
folder = prepare([sys.argv[1]], sys.argv[2], sys.argv[3], settings=settings, engine=EngineSettings(workers=1))
prepared = time.process_time()
corpus, tokenizer = Corpus.open(folder), Tokenizer.from_folder(folder)
batches = PretrainingBatches(corpus, tokenizer, batch=256, examples=ExampleSettings(), masks=MaskSettings(), seed=0)
tokens = sum(batches.at(step).token_count for step in range(batches.steps_in(0)))
print(json.dumps({"prepare": prepared - begun, "examples": time.process_time() - prepared, "tokens": tokens}))
"""
THEIRS = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from reference_examples import make_examples
begun = time.process_time()
tokens = make_examples(Path(sys.argv[1]), Path(sys.argv[2], "vocab.txt").read_text(encoding="utf-8").splitlines())
print(json.dumps({"seconds": time.process_time() - begun, "tokens": tokens}))
"""


def make_text(data: Path, path: Path, megabytes: int) -> None:
    """Write this many megabytes of the books; rotate the words of each line by one more in every repetition."""
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for line in _endless(data):
            written += file.write(line)
            if written >= megabytes * MEGABYTE:
                return


def _endless(data: Path) -> Iterator[str]:
    turn = 0
    while True:
        with lzma.open(data / BOOKS, "rt", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                place = turn % max(1, len(words))
                yield " ".join([*words[place:], *words[:place]]) + "\n" if turn else line
        turn += 1


def make_vocabulary(data: Path, folder: Path) -> None:
    from cloze.text import Tokenizer

    pieces = (data / PIECES).read_text(encoding="utf-8").splitlines()
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder)


def split_lines(path: Path, out: Path) -> None:
    """Write one sentence per line, as the original requires."""
    from cloze.text import split_sentences

    with path.open(encoding="utf-8") as file, out.open("w", encoding="utf-8") as written:
        for line in file:
            written.write("\n".join(split_sentences(line)) + "\n")


def run(program: str, *words: object) -> dict[str, Any]:
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, env={**os.environ, **ONE_CORE}, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure_speed(data: Path, scratch: Path, megabytes: int) -> None:
    make_text(data, scratch / "text", megabytes)
    split_lines(scratch / "text", scratch / "sentences")
    size = (scratch / "sentences").stat().st_size / MEGABYTE
    ours = run(OURS, scratch / "sentences", scratch / "vocab", scratch / "speed")
    theirs = run(THEIRS, scratch / "sentences", scratch / "vocab", Path(__file__).parent)
    total = ours["prepare"] + ours["examples"]
    rows = {
        "cloze prepare": (ours["prepare"], ""),
        "cloze, one epoch of examples": (ours["examples"], f"{ours['tokens']:,}"),
        "cloze, both": (total, ""),
        "the original's method": (theirs["seconds"], f"{theirs['tokens']:,}"),
    }
    print(f"{size:.1f} MB of sentences on one core        s     MB/s  tokens in examples")
    for name, (seconds, tokens) in rows.items():
        print(f"{name:32} {seconds:7.1f}  {size / seconds:7.2f}  {tokens}")
    print(f"ratio: cloze is {theirs['seconds'] / total:.1f} times as fast")


def resident(process: int) -> int:
    """Return the resident memory of a process in bytes."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def watch(process: "subprocess.Popen[bytes]", peaks: dict[str, int]) -> None:
    while process.poll() is None:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        except OSError:
            return
        leader = resident(process.pid)
        peaks["leader"] = max(peaks["leader"], leader)
        peaks["all"] = max(peaks["all"], leader + sum(resident(int(child)) for child in children))
        time.sleep(0.05)


def measure_memory(data: Path, scratch: Path, sizes: list[int]) -> None:
    print("text MB   leader MB   all MB       s     MB/s")
    first: dict[str, int] = {}
    for size in sizes:
        make_text(data, scratch / f"{size}.txt", size)
        words = [str(scratch / f"{size}.txt"), "--vocab", str(scratch / "vocab"), "--out", str(scratch / f"{size}")]
        begun = time.monotonic()
        command = [sys.executable, "-c", "from cloze.cli import main; main()", "prepare", *words, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peaks = {"leader": 0, "all": 0}
        watcher = threading.Thread(target=watch, args=(process, peaks))
        watcher.start()
        watcher.join()
        seconds = time.monotonic() - begun
        first = first or peaks
        print(
            f"{size:7}   {peaks['leader'] / MEGABYTE:9.0f}   {peaks['all'] / MEGABYTE:6.0f} "
            f"{seconds:7.1f}  {size / seconds:7.2f}   {peaks['all'] / first['all']:.2f} times the first"
        )


def measure_verifying(data: Path, scratch: Path, megabytes: int) -> None:
    from cloze.corpus.preparation.prepare import prepare
    from cloze.corpus.shards import Corpus, verify_corpus

    make_text(data, scratch / "verified.txt", megabytes)
    folder = prepare([scratch / "verified.txt"], scratch / "vocab", scratch / "verified")
    begun = time.perf_counter()
    Corpus.open(folder)
    opened = time.perf_counter()
    size = verify_corpus(folder) / MEGABYTE
    seconds = time.perf_counter() - opened
    print(
        f"opening {1000 * (opened - begun):.1f} ms; verifying {size:.1f} MB {seconds:.3f} s, {size / seconds:.0f} MB/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure text preparation.")
    parser.add_argument("--part", choices=["speed", "memory", "verify"], help="run only this part")
    add_data(parser)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, BOOKS, PIECES)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "vocab").mkdir()
        make_vocabulary(arguments.data, scratch / "vocab")
        if arguments.part in (None, "speed"):
            measure_speed(arguments.data, scratch, arguments.megabytes)
        if arguments.part in (None, "memory"):
            measure_memory(arguments.data, scratch, arguments.sizes)
        if arguments.part in (None, "verify"):
            measure_verifying(arguments.data, scratch, arguments.megabytes)


if __name__ == "__main__":
    main()
