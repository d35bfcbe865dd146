"""Compare sentence vectors with human similarity scores: pooling, layers and whitening on STS-B's dev pairs.

    python benchmarks/embeddings.py cloze-mini runs/simcse --text ../shared/data/wikitext-2/train.raw.gz

Columns per model: size of the vectors, Spearman correlation of cosines with human scores (times 100), mean cosine
between vectors, and the share of their variance along the first direction. Whitening is fitted on the text, or without
one on the dev pairs (without their scores); word2vec is trained on the same text. MiniLM, trained on a billion pairs,
is the upper reference.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from cloze.corpus.documents import read_documents
from cloze.predict import load
from cloze.predict.embeddings.vector_quality import report_embeddings
from cloze.tasks.classification.published import GLUE, read_split
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/


def read_pairs(data: Path, rows: int | None) -> tuple[list[str], list[str], list[float]]:
    """Read STS-B's dev pairs and their scores."""
    found = list(islice(read_split(GLUE["sts-b"], data / "glue", "dev"), rows))
    return [row.text for row in found], [row.pair or "" for row in found], [float(row.label or 0) for row in found]


def main() -> None:
    """Parse the arguments and print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="model folders; MiniLM is always added as the last one")
    add_data(parser)
    parser.add_argument("--text", type=Path, help="text whose lines whitening and word2vec are fitted on")
    parser.add_argument("--lines", type=int, default=20_000, help="maximum lines of --text")
    parser.add_argument("--rows", type=int, help="number of dev pairs (default: all)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "glue/STS-B/dev.tsv")
    pairs = read_pairs(arguments.data, arguments.rows)
    lines: list[str] = []
    if arguments.text is not None:
        lines = list(
            islice((line for document in read_documents([arguments.text]) for line in document), arguments.lines)
        )
    for name in [*arguments.models, str(minilm())]:
        report = report_embeddings(load(name), *pairs, fit_on=lines)
        if arguments.json:
            print(
                json.dumps(
                    {"model": name, "ways": [variant.row() for variant in report.methods], "advice": report.advice}
                )
            )
            continue
        print(f"\n{name}, {len(pairs[0]):,} pairs\n{'vectors':<22}{'size':>6}{'spearman':>10}{'cosine':>9}{'first':>8}")
        for variant in report.methods:
            score, lie = 100 * (variant.spearman or 0.0), variant.geometry
            print(f"{variant.name:<22}{variant.size:>6}{score:>10.2f}{lie.anisotropy:>9.3f}{lie.first_share:>8.3f}")
        print(report.advice)


if __name__ == "__main__":
    main()
