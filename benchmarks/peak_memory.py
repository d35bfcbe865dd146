"""Compare the memory that ``cloze plan`` predicts for a training run with the memory that the run uses.

    python benchmarks/peak_memory.py [--vocab FILE] [--only large]

The shapes are base at 512 tokens, and base and large at 512 tokens with activation checkpointing, with the paper's
vocabulary size. Prints the predicted peak, the peak resident memory of ``cloze pretrain`` with the same flags, and
their ratio. A run takes twenty steps, because batches differ in size, and writes a checkpoint and a model.
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
from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
SHAPES = {
    "base, 512 tokens": ("base", "--length", "512", "--batch", "4"),
    "base, 512, checkpointing": ("base", "--length", "512", "--batch", "4", "--checkpointing"),
    "large, 512, checkpointing": ("large", "--length", "512", "--batch", "2", "--checkpointing"),
}
GIB = 2**30


def planned(data: Path, flags: tuple[str, ...]) -> float:
    """Return the peak memory that ``cloze plan`` predicts, in bytes."""
    command = [sys.executable, "-m", "cloze", "plan", str(data), "--preset", *flags, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["peak_bytes"])


def taken(data: Path, flags: tuple[str, ...], out: Path, steps: int) -> float:
    """Return the peak resident memory of the training process in bytes."""
    command = [sys.executable, "-m", "cloze", "pretrain", str(data), "--preset", *flags, "--steps", str(steps)]
    child = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return 1024 * usage.ru_maxrss


VOCABULARY = "vocab/bert-base-uncased-vocab.txt"


def main() -> None:
    """Parse the arguments and print one row per shape."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured peak memory of training.")
    add_data(parser)
    parser.add_argument("--vocab", type=Path, help="a vocab.txt of 30,522 pieces (default: the one in --data)")
    parser.add_argument("--only", default="", help="run only shapes whose names start with this")
    parser.add_argument("--steps", type=int, default=20, help="training steps per run")
    arguments = parser.parse_args()
    vocab = arguments.vocab or find_data(arguments.data, VOCABULARY) / VOCABULARY
    print(f"{'':<28} {'plan GB':>9} {'used GB':>9}  ratio")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        pieces = vocab.read_text(encoding="utf-8").splitlines()
        (scratch / "vocab").mkdir()
        Tokenizer.from_vocabulary(pieces, lowercase=True).save(scratch / "vocab")
        data = prepare([DATA / "books.txt.xz"], scratch / "vocab", scratch / "data")
        for number, (shape, flags) in enumerate(SHAPES.items()):
            if not shape.startswith(arguments.only):
                continue
            plan, real = planned(data, flags), taken(data, flags, scratch / str(number), arguments.steps)
            print(f"{shape:<28} {plan / GIB:9.2f} {real / GIB:9.2f}  {plan / real:5.2f}", flush=True)


if __name__ == "__main__":
    main()
