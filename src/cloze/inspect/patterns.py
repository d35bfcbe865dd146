"""Attention patterns and their null distributions.

A pattern is a boolean matrix of targets, true where the row's token would attend to the column's token if a head did
nothing else. Six patterns are those described for BERT's heads: next word, previous word, same or related words, the
same in the other sentence, predictive words, separators. Attention of a token to itself is the seventh; without it,
such heads would be forced into one of the six. A head's score is the attention on targets, averaged over the tokens
that have targets: 1 if all attention goes there.

The null is the score of the same attention with shuffled targets. Only the targets change, so that the null keeps
whatever is specific to a head, such as the number of tokens it attends to or its share on special tokens:

- next, previous: permute the ordinary tokens, and with them their order;
- same, other: permute the token identities. Sentence boundaries stay, so that attending to the other sentence as such
  earns nothing;
- predictive: give each token the targets of another token at the same distances, so that a head that attends to its
  neighbours, which are often predictive, is not labelled predictive for that alone;
- separators: take the same number of random positions as separators;
- self: give each token another ordinary token in place of itself.

Dimensions: R shuffles, T tokens, N ordinary tokens (all but [CLS] and [SEP]).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cloze.text import Encoding

BoolArray = NDArray[np.bool_]
Pattern = Literal["next", "previous", "same", "other", "predictive", "separators", "self"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
# "broad" and "mixed" are labels without targets: nearly uniform attention, and no label at all.
DESCRIPTIONS: dict[str, str] = {
    "next": "the next token of the sentence",
    "previous": "the token before, in the same sentence",
    "same": "the same or related tokens, wherever they stand, the token itself aside",
    "other": "the same or related tokens of the other sentence",
    "predictive": "the tokens that predict this one, beyond what their distance explains",
    "separators": "[CLS] and [SEP]",
    "self": "the token itself",
    "broad": "all tokens about equally",
    "mixed": "no pattern that stands out from its null",
}


@dataclass(frozen=True)
class Layout:
    """The structure of one sequence, from which the targets of every pattern follow."""

    ordinary: BoolArray  # (T,), false at [CLS] and [SEP]
    segments: NDArray[np.int64]  # (T,)
    related: BoolArray  # (T, T), true where two tokens are the same or related
    predictive: BoolArray | None = None  # (T, T), true where the column predicts the row; None if not measured

    @property
    def length(self) -> int:
        """Number of tokens, including special tokens."""
        return len(self.ordinary)


def make_layout(encoding: Encoding, related: BoolArray, predictive: BoolArray | None = None) -> Layout:
    """Build the layout of an encoded sequence."""
    ordinary = np.array([source is not None for source in encoding.sources])
    return Layout(ordinary, np.array(encoding.segments), related, predictive)


def targets(layout: Layout) -> BoolArray:
    """Return the targets of every pattern, (patterns, T, T); rows of special tokens have none."""
    both_ordinary = layout.ordinary[:, None] & layout.ordinary
    other_segment = layout.segments[:, None] != layout.segments
    diagonal = np.eye(layout.length, dtype=bool)
    following = np.eye(layout.length, k=1, dtype=bool) & ~other_segment
    predictive = np.zeros_like(diagonal) if layout.predictive is None else layout.predictive
    by_pattern: dict[Pattern, BoolArray] = {
        "next": following & both_ordinary,
        "previous": following.T & both_ordinary,
        "same": layout.related & both_ordinary & ~diagonal,
        "other": layout.related & both_ordinary & other_segment,
        "predictive": predictive & both_ordinary & ~diagonal,
        "separators": layout.ordinary[:, None] & ~layout.ordinary,
        "self": diagonal & both_ordinary,
    }
    return np.stack([by_pattern[name] for name in PATTERNS])


def shuffled_targets(layout: Layout, shuffles: int, generator: np.random.Generator) -> BoolArray:
    """Return shuffled copies of the targets of every pattern, (patterns, R, T, T)."""
    actual = dict(zip(PATTERNS, targets(layout), strict=True))
    orders = _permutations(layout.ordinary, shuffles, generator)
    both_ordinary = layout.ordinary[:, None] & layout.ordinary
    other_segment = layout.segments[:, None] != layout.segments
    related = _permute_matrix(layout.related & both_ordinary, orders)
    by_pattern: dict[Pattern, BoolArray] = {
        "next": _permute_matrix(actual["next"], orders),
        "previous": _permute_matrix(actual["previous"], orders),
        "same": related & ~np.eye(layout.length, dtype=bool),
        "other": related & other_segment,
        "predictive": _permute_rows_by_distance(actual["predictive"], layout.ordinary, shuffles, generator),
        "separators": _random_separators(layout.ordinary, shuffles, generator),
        "self": actual["self"][:, orders].swapaxes(0, 1),
    }
    return np.stack([by_pattern[name] for name in PATTERNS])


def _permutations(ordinary: BoolArray, shuffles: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw permutations of the tokens that move only the ordinary ones, (R, T)."""
    positions = np.flatnonzero(ordinary)
    orders = np.tile(np.arange(len(ordinary)), (shuffles, 1))
    orders[:, positions] = generator.permuted(np.tile(positions, (shuffles, 1)), axis=1)
    return orders


def _permute_matrix(matrix: BoolArray, orders: NDArray[np.int64]) -> BoolArray:
    """Permute rows and columns of a relation between tokens: (T, T), (R, T) -> (R, T, T)."""
    return matrix[orders[:, :, None], orders[:, None, :]]


def _permute_rows_by_distance(
    predictive: BoolArray, ordinary: BoolArray, shuffles: int, generator: np.random.Generator
) -> BoolArray:
    """Give each token the targets of another one at the same distances, wrapping around at the end: (R, T, T)."""
    positions = np.flatnonzero(ordinary)
    count = len(positions)
    # Row a, column d: the ordinary token that is d after a.
    wrapped = (np.arange(count)[:, None] + np.arange(count)) % max(count, 1)  # (N, N)
    by_distance = predictive[positions[:, None], positions[wrapped]]  # (N, N)
    rows = generator.permuted(np.tile(np.arange(count), (shuffles, 1)), axis=1)  # (R, N)
    shuffled = np.zeros((shuffles, *predictive.shape), bool)
    shuffled[:, positions[:, None], positions[wrapped]] = by_distance[rows]
    return shuffled


def _random_separators(ordinary: BoolArray, shuffles: int, generator: np.random.Generator) -> BoolArray:
    """Take random positions as separators, as many as there are: (R, T, T)."""
    columns = generator.permuted(np.tile(~ordinary, (shuffles, 1)), axis=1)  # (R, T)
    return columns[:, None, :] & ordinary[:, None]
