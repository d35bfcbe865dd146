"""Draw passages of the project's prose at random, for readers who judge its English.

    python scripts/sample_passages.py --seed 1 --count 60 [--kind docstring comment ...] [--chinese]

The count is divided evenly among docstrings, comments, help texts, messages and documentation. The same seed draws the
same passages from the same tree.
"""

import argparse
import random
import re
import textwrap
from collections.abc import Sequence

from passages import SOURCES, Passage, Source, passages

FEWEST_WORDS = 3  # shorter passages ("(B, T)", "unused") contain too little to judge
FEWEST_IN_TABLE = 8  # table rows with fewer words are mostly figures
_WORD = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff]")
_EXPRESSION = re.compile(r"\{[^{}]*\}")


def draw(found: Sequence[Passage], count: int, seed: int, kinds: Sequence[Source] = SOURCES) -> list[Passage]:
    """Return ``count`` different passages, spread as evenly over the kinds as possible, sorted by location."""
    generator = random.Random(seed)
    distinct = {passage.text: passage for passage in reversed(found) if is_prose(passage)}
    pools = {kind: [passage for passage in distinct.values() if passage.source == kind] for kind in kinds}
    for pool in pools.values():
        pool.sort()
        generator.shuffle(pool)
    drawn: list[Passage] = []
    while len(drawn) < count and any(pools.values()):
        drawn += [pool.pop() for pool in pools.values() if pool][: count - len(drawn)]
    return sorted(drawn, key=lambda passage: (SOURCES.index(passage.source), passage))


def is_prose(passage: Passage) -> bool:
    """Return whether a passage has enough words of its own to be judged."""
    words = len(_WORD.findall(_EXPRESSION.sub("", passage.text)))
    return words >= (FEWEST_IN_TABLE if passage.text.startswith("|") else FEWEST_WORDS)


def show(number: int, passage: Passage) -> str:
    """Format a passage for a reader: its number, location and kind, then the text and the code it belongs to."""
    parts = [f"{number}. {passage.path}:{passage.line} ({passage.source})"]
    code = textwrap.indent(textwrap.dedent(passage.context), "    | ") if passage.context else ""
    text = textwrap.indent(passage.text, "    ")
    parts += [code, text] if passage.source == "docstring" else [text, code]
    return "\n".join(part for part in parts if part)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the sample."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="random seed of the sample")
    parser.add_argument("--count", type=int, default=60, help="number of passages; default: 60")
    parser.add_argument("--kind", nargs="+", choices=SOURCES, default=None, help="draw only these kinds; default: all")
    parser.add_argument(
        "--chinese", action="store_true", help="draw from the Chinese pages instead of all English prose"
    )
    chosen = parser.parse_args(arguments)
    kinds = chosen.kind or (("docs",) if chosen.chinese else SOURCES)
    sample = draw(passages(chinese=chosen.chinese), chosen.count, chosen.seed, kinds)
    print("\n\n".join(show(number, passage) for number, passage in enumerate(sample, start=1)))


if __name__ == "__main__":
    main()
