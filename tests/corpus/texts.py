"""Synthetic text with known boundaries: plain sentences that every splitter handles."""

import random

LINE = (
    "the old small river house garden morning letter captain doctor winter music window silver road "
    "sees finds keeps opens follows hears leaves remembers of in under behind without and but slowly again"
)
WORDS = LINE.split()


def make_documents(count: int, seed: int = 0, sentences: tuple[int, int] = (3, 9)) -> list[list[str]]:
    """Return documents of random sentences, reproducible by seed."""
    draw = random.Random(seed)
    return [[_sentence(draw) for _ in range(draw.randint(*sentences))] for _ in range(count)]


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(3, 12))).capitalize() + "."


def as_text(documents: list[list[str]]) -> str:
    """Format documents as paragraphs of several sentences per line, with a blank line between documents."""
    return "\n\n".join(" ".join(sentences[:2]) + "\n" + " ".join(sentences[2:]) for sentences in documents) + "\n"
