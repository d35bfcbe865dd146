"""The kind ``similarity``: text vectors trained without labels, scored by pairs of texts with human ratings.

The rated pairs have the rows of regression (as STS-B has them); the ratings are only used for scoring.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError
from cloze.tasks.classification.examples import LabelledTexts, read_own_texts
from cloze.tasks.kind import TaskKind
from cloze.tasks.memory import TableSource
from cloze.tasks.metrics import spearman
from cloze.tasks.rows import RowSettings

Vectors = NDArray[np.float32]

SIMILARITY = TaskKind(
    name="similarity",
    summary="Train text vectors whose cosines tell similar texts apart from others.",
    operation="embed",
    metrics=("spearman",),
    labelled=False,
    unlabelled_note="similarity has no labels to learn; it is for cloze finetune alone, and one run",
)


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with human similarity ratings."""

    firsts: list[str]
    seconds: list[str]
    scores: list[float]


def read_scored_pairs(path: TableSource, rows: RowSettings) -> ScoredPairs:
    """Read a table by its columns for the texts, the pairs and the numbers."""
    if rows.pair is None:
        raise ConfigError(f"{path}: --pair is missing; name the column with the second texts")
    examples = read_own_texts("number", rows.source(SIMILARITY.name, path), "train", None).examples
    assert isinstance(examples, LabelledTexts)
    assert examples.pairs is not None
    assert examples.targets is not None
    return ScoredPairs(examples.texts, examples.pairs, [float(target) for target in examples.targets])


def cosines(firsts: Vectors, seconds: Vectors) -> NDArray[np.float64]:
    """Return the cosine of two vectors, row by row: (N, D), (N, D) -> (N,)."""
    lengths = np.linalg.norm(firsts, axis=1) * np.linalg.norm(seconds, axis=1)
    products: NDArray[np.float64] = (firsts.astype(np.float64) * seconds).sum(1)
    products /= np.maximum(lengths, 1e-12)
    return products


def agreement(firsts: Vectors, seconds: Vectors, scores: Sequence[float]) -> float:
    """Return Spearman's correlation of the cosines with the ratings."""
    return spearman(scores, cosines(firsts, seconds).tolist())
