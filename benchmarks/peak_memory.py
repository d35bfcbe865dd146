"""What ``cloze plan`` says a training will take of memory, beside what the training then takes.

    python benchmarks/peak_memory.py [--vocab FILE] [--only large]

Base at 512 tokens, and large at 512 tokens with checkpointing, in the paper's vocabulary size: the plan's peak, and the
largest resident set of ``cloze pretrain`` with the same flags over twenty steps, checkpoint and saved model included:
batches differ in size, and what is kept from one to the next shows after some.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cloze.corpus.preparation.prepare import prepare
from cloze.demo.flow import DATA
from cloze.text import Tokenizer
from public_data import add_data, find_data  # beside this file

ROOT = Path(__file__).parents[1]
SHAPES = {
    "base, 512 tokens": ("base", "--length", "512", "--batch", "4"),
    "base, 512, checkpointing": ("base", "--length", "512", "--batch", "4", "--checkpointing"),
    "large, 512, checkpointing": ("large", "--length", "512", "--batch", "2", "--checkpointing"),
}
GIB = 2**30


def planned(data: Path, flags: tuple[str, ...]) -> float:
    """Bytes that ``cloze plan`` expects."""
    command = [sys.executable, "-m", "cloze", "plan", str(data), "--preset", *flags, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["peak_bytes"])


def taken(data: Path, flags: tuple[str, ...], out: Path, steps: int) -> float:
    """The largest resident set of the training itself."""
    command = [sys.executable, "-m", "cloze", "pretrain", str(data), "--preset", *flags, "--steps", str(steps)]
    child = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return 1024 * usage.ru_maxrss


VOCABULARY = "vocab/bert-base-uncased-vocab.txt"


def main() -> None:
    """Print a row for every shape."""
    parser = argparse.ArgumentParser(description="Peak memory: planned and taken.")
    add_data(parser)
    parser.add_argument("--vocab", type=Path, help="a vocab.txt of 30,522 pieces; that of --data if left out")
    parser.add_argument("--only", default="", help="shapes whose names begin so")
    parser.add_argument("--steps", type=int, default=20, help="of the training")
    asked = parser.parse_args()
    vocab = asked.vocab or find_data(asked.data, VOCABULARY) / VOCABULARY
    print(f"{'':<28} {'plan GB':>9} {'taken GB':>9}  ratio")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        pieces = vocab.read_text(encoding="utf-8").splitlines()
        (scratch / "vocab").mkdir()
        Tokenizer.from_vocabulary(pieces, lowercase=True).save(scratch / "vocab")
        data = prepare([DATA / "books.txt.xz"], scratch / "vocab", scratch / "data")
        for number, (shape, flags) in enumerate(SHAPES.items()):
            if not shape.startswith(asked.only):
                continue
            plan, real = planned(data, flags), taken(data, flags, scratch / str(number), asked.steps)
            print(f"{shape:<28} {plan / GIB:9.2f} {real / GIB:9.2f}  {plan / real:5.2f}", flush=True)


if __name__ == "__main__":
    main()
