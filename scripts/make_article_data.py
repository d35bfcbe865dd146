"""Create the bundled biomedical text: a few open-access articles for the guide to out-of-vocabulary words.

    python scripts/make_article_data.py BIOMEDICAL_TEXT [--out src/cloze/demo/data]

The input contains articles of the CRAFT corpus (UCDenver-ccp/CRAFT, CC BY): one paragraph per line, a blank line
between articles, and the title as the first line of each. The first articles are used, unabridged; ``SOURCE.md`` lists
them.
"""

import argparse
import lzma
from pathlib import Path

ARTICLES = 5


def main() -> None:
    """Write ``articles.txt.xz`` and print the titles."""
    parser = argparse.ArgumentParser(description="Make the biomedical text that ships with the package.")
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/cloze/demo/data"))
    arguments = parser.parse_args()
    with lzma.open(arguments.text, "rt", encoding="utf-8") as file:
        articles = file.read().split("\n\n")[:ARTICLES]
    text = "\n\n".join(article.strip("\n") for article in articles) + "\n"
    # The filter is fixed, so that the output is reproducible.
    (arguments.out / "articles.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    for article in articles:
        print(article.strip().split("\n", 1)[0], len(article.split()))


if __name__ == "__main__":
    main()
