"""Which vectors of which model agree with people: pooling, layers and whitening on STS-B's dev pairs.

    python benchmarks/embeddings.py cloze-mini runs/simcse --text ../shared/data/wikitext-2/train.raw.gz

For each model, Spearman's correlation of cosines with people's scores (times 100), how narrow the vectors lie, and how
much of their variance the first direction has. Whitening is fitted on the text, or without one on the pairs
themselves, whose scores it does not see; word2vec is learned from the same text. MiniLM, which was trained on a
thousand million pairs, is the mark to look up to.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from cloze.corpus.documents import read_documents
from cloze.predict import load
from cloze.predict.embeddings.comparison import report_embeddings
from cloze.tasks.classification.published import GLUE, read_split
from minilm import minilm  # beside this file
from public_data import add_data, find_data  # beside this file


def read_pairs(data: Path, rows: int | None) -> tuple[list[str], list[str], list[float]]:
    """STS-B's dev pairs."""
    found = list(islice(read_split(GLUE["sts-b"], data / "glue", "dev"), rows))
    return [row.text for row in found], [row.pair or "" for row in found], [float(row.label or 0) for row in found]


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="model folders; MiniLM comes last in any case")
    add_data(parser)
    parser.add_argument("--text", type=Path, help="whitening and word2vec learn from its lines")
    parser.add_argument("--lines", type=int, default=20_000, help="so many of them")
    parser.add_argument("--rows", type=int, help="pairs; all if left out")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.data = find_data(given.data, "glue/STS-B/dev.tsv")
    pairs = read_pairs(given.data, given.rows)
    lines: list[str] = []
    if given.text is not None:
        lines = list(islice((line for document in read_documents([given.text]) for line in document), given.lines))
    for name in [*given.models, str(minilm())]:
        report = report_embeddings(load(name), *pairs, fit_on=lines)
        if given.json:
            rows = [method.row() for method in report.methods]
            print(json.dumps({"model": name, "ways": rows, "advice": report.advice}))
            continue
        print(f"\n{name}, {len(pairs[0]):,} pairs\n{'vectors':<22}{'size':>6}{'spearman':>10}{'cosine':>9}{'first':>8}")
        for method in report.methods:
            score, lie = 100 * (method.spearman or 0.0), method.geometry
            print(f"{method.name:<22}{method.size:>6}{score:>10.2f}{lie.anisotropy:>9.3f}{lie.first_share:>8.3f}")
        print(report.advice)


if __name__ == "__main__":
    main()
