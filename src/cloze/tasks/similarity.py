"""Pairs of texts with a number for how alike they are: what vectors of texts are held to.

The rows are those of regression (STS-B's are); here nobody learns the numbers, they only judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError
from cloze.tasks.classification import LabelledTexts, read_own_texts
from cloze.tasks.metrics import spearman
from cloze.tasks.source import RowSettings

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class ScoredPairs:
    """Two texts each, and how alike people found them."""

    firsts: list[str]
    seconds: list[str]
    scores: list[float]


def read_scored_pairs(path: Path, rows: RowSettings) -> ScoredPairs:
    """Read a table by its columns for the texts, the pairs and the numbers."""
    if rows.pair is None:
        raise ConfigError(f"{path}: --pair is missing; name the column with the second texts")
    examples = read_own_texts("regress", rows.source("similarity", path), "train", None).examples
    assert isinstance(examples, LabelledTexts)
    assert examples.pairs is not None
    assert examples.targets is not None
    return ScoredPairs(examples.texts, examples.pairs, [float(target) for target in examples.targets])


def cosines(firsts: Vectors, seconds: Vectors) -> NDArray[np.float64]:
    """How alike two vectors are, row by row: (N, D), (N, D) -> (N,)."""
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    products: NDArray[np.float64] = (firsts.astype(np.float64) * seconds).sum(1)
    products /= np.maximum(lengths, 1e-12)
    return products


def agreement(firsts: Vectors, seconds: Vectors, scores: Sequence[float]) -> float:
    """Spearman's correlation of the cosines with people's numbers."""
    return spearman(scores, cosines(firsts, seconds).tolist())
