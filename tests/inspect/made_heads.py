"""Synthetic layouts, attention and corpora with known patterns."""

import numpy as np
from numpy.typing import NDArray

from cloze.inspect import HeadSettings
from cloze.inspect.patterns import PATTERNS, Layout, ScoreAccumulator, Scores, targets

QUICK = HeadSettings(sequences=40, shuffles=200, resamples=200, predictive_sequences=8, examples=1)


def made_layout(generator: np.random.Generator, length: int = 24) -> Layout:
    """Return a layout of [CLS] A [SEP] B [SEP] with repeated tokens and up to three predictive tokens per token."""
    ordinary = np.ones(length, bool)
    middle = int(generator.integers(length // 3, 2 * length // 3))
    ordinary[[0, middle, length - 1]] = False
    ids = generator.integers(0, length // 2, length)
    predictive = np.zeros((length, length), bool)
    for place in range(length):
        predictive[place, generator.choice(np.flatnonzero(ordinary), 3, replace=False)] = True
    np.fill_diagonal(predictive, False)
    return Layout(ordinary, (np.arange(length) > middle).astype(np.int64), ids[:, None] == ids, predictive)


def exact_head(layout: Layout, pattern: int) -> NDArray[np.float32]:
    """Return attention on the pattern's targets only, or uniform attention without targets: (T, T)."""
    wanted = targets(layout)[pattern].astype(np.float32)
    wanted[wanted.sum(-1) == 0] = 1.0
    weights: NDArray[np.float32] = wanted / wanted.sum(-1, keepdims=True)
    return weights


def random_heads(generator: np.random.Generator, heads: int, length: int) -> NDArray[np.float32]:
    """Return attention without any pattern: (K, T, T)."""
    return generator.dirichlet(np.full(length, 0.3), (heads, length)).astype(np.float32)


def tallied(settings: HeadSettings, *, sequences: int, seed: int, exact: bool, heads: int = 8) -> Scores:
    """Return the scores of synthetic heads: one exact head per pattern, or random ones."""
    generator, tally = np.random.default_rng(seed), ScoreAccumulator(settings)
    for _ in range(sequences):
        layout = made_layout(generator)
        if exact:
            tally.add(np.stack([exact_head(layout, index) for index in range(len(PATTERNS))]), layout)
        else:
            tally.add(random_heads(generator, heads, layout.length), layout)
    return tally.finish()


def made_documents(seed: int = 0, documents: int = 30, words: int = 40) -> list[list[str]]:
    """Return documents of four sentences, one per paragraph, in words that the test models know."""
    source = np.random.default_rng(seed)
    return [
        [
            " ".join(f"word{number}" for number in source.zipf(1.3, source.integers(6, 12)) % words) + "."
            for _ in range(4)
        ]
        for _ in range(documents)
    ]
