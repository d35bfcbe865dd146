"""SIGHAN's training sentences as rows to fine-tune on, rows to choose a threshold on, and plain text.

    python scripts/make_sighan_rows.py ../shared/data/sighan_csc runs/zh

The first 1,100 are for thresholds (``dev.jsonl``, every other one put right); the others are for training, as pairs
(``train.jsonl``) and, put right, as text (``sighan.txt``). What stands in a test, of any year, is left out.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from cloze.tasks.correction_files import read_corrections

DEV = 1100
A_DOCUMENT = 10  # sentences


def main(data: Path, out: Path) -> None:
    """Write the three files."""
    rows = read_corrections(data / "merged", training=True)
    tests = [read_corrections(data / f"sighan{year}") for year in (13, 14, 15)]
    tested = {text for test in tests for text in (*test.sources, *test.targets)}
    pairs = [pair for pair in zip(rows.sources, rows.targets, strict=True) if not tested.intersection(pair)]
    dev = [(source if number % 2 else target, target) for number, (source, target) in enumerate(pairs[:DEV])]
    train = pairs[DEV:]
    write_rows(out / "dev.jsonl", dev)
    write_rows(out / "train.jsonl", train)
    targets = [target for _, target in train]
    documents = ("\n".join(targets[start : start + A_DOCUMENT]) for start in range(0, len(targets), A_DOCUMENT))
    (out / "sighan.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    print(f"{len(train)} rows to train on, {len(dev)} for thresholds, {len(rows.sources) - len(pairs)} left out")


def write_rows(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """A row a line, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
