"""The patterns of attention: which tokens each token would attend to if a head did nothing else.

Six are those that people saw in BERT's heads (next word, previous word, same or related words, those in the other
sentence, words that predict the word, separators); a token's attention to itself is the seventh, so that no head needs
to be called one of the six for want of a better name. Each is a matrix of targets, true where the row's token has the
column's for a target. A head's score is the mean, over the tokens that have a target, of the attention that goes to
their targets: one if all of it does.

Dimensions: T tokens.

Nulls: what a head would score if it attended as it does, but to targets that mean nothing.

The attention stays as it is and the targets are shuffled within the sequence, so that whatever is peculiar to a head
(few or many tokens attended to, much or little left for the ordinary ones) is in its null as well:

- next, previous: the ordinary tokens change places, and with them who comes after whom;
- same, other: they change identities. Sentences stay where they are, so that attending to the other sentence as
  such is nothing;
- predictive: each token gets the targets of another one at the same distances, so that a head which looks at its
  neighbours, in which prediction is strong, is not called predictive for that;
- separators: as many other places of the sequence are taken for separators;
- self: each token gets another ordinary token for itself.

Dimensions: R shuffles, T tokens, N ordinary tokens.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cloze.text import Encoding

Bools = NDArray[np.bool_]
Pattern = Literal["next", "previous", "same", "other", "predictive", "separators", "self"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
# "broad" and "mixed" are no patterns: how evenly a head attends, and what is said of one that nothing else fits.
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
    """What the patterns need to know of a sequence."""

    ordinary: Bools  # (T,), true but for [CLS] and [SEP]
    segments: NDArray[np.int64]  # (T,)
    related: Bools  # (T, T), true for tokens that are the same or related
    predictive: Bools | None = None  # (T, T), true for the words that predict the row's; None where not measured

    @property
    def length(self) -> int:
        """Tokens, special ones included."""
        return len(self.ordinary)


def make_layout(encoding: Encoding, related: Bools, predictive: Bools | None = None) -> Layout:
    """The layout of an encoded sequence."""
    ordinary = np.array([source is not None for source in encoding.sources])
    return Layout(ordinary, np.array(encoding.segments), related, predictive)


def targets(layout: Layout) -> Bools:
    """The targets of every pattern, (patterns, T, T); special tokens have none."""
    inside = layout.ordinary[:, None] & layout.ordinary
    elsewhere = layout.segments[:, None] != layout.segments
    itself = np.eye(layout.length, dtype=bool)
    following = np.eye(layout.length, k=1, dtype=bool) & ~elsewhere
    found: dict[Pattern, Bools] = {
        "next": following & inside,
        "previous": following.T & inside,
        "same": layout.related & inside & ~itself,
        "other": layout.related & inside & elsewhere,
        "predictive": np.zeros_like(itself) if layout.predictive is None else layout.predictive & inside & ~itself,
        "separators": layout.ordinary[:, None] & ~layout.ordinary,
        "self": itself & inside,
    }
    return np.stack([found[name] for name in PATTERNS])


def shuffled_targets(layout: Layout, shuffles: int, generator: np.random.Generator) -> Bools:
    """Shuffled copies of the targets of every pattern, (patterns, R, T, T)."""
    true = dict(zip(PATTERNS, targets(layout), strict=True))
    orders = _orders(layout.ordinary, shuffles, generator)
    inside = layout.ordinary[:, None] & layout.ordinary
    elsewhere = layout.segments[:, None] != layout.segments
    related = _renamed(layout.related & inside, orders)
    found: dict[Pattern, Bools] = {
        "next": _renamed(true["next"], orders),
        "previous": _renamed(true["previous"], orders),
        "same": related & ~np.eye(layout.length, dtype=bool),
        "other": related & elsewhere,
        "predictive": _at_same_distances(true["predictive"], layout.ordinary, shuffles, generator),
        "separators": _other_separators(layout.ordinary, shuffles, generator),
        "self": true["self"][:, orders].swapaxes(0, 1),
    }
    return np.stack([found[name] for name in PATTERNS])


def _orders(ordinary: Bools, shuffles: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Orders of the tokens in which the ordinary ones have changed places, (R, T)."""
    places = np.flatnonzero(ordinary)
    orders = np.tile(np.arange(len(ordinary)), (shuffles, 1))
    orders[:, places] = generator.permuted(np.tile(places, (shuffles, 1)), axis=1)
    return orders


def _renamed(matrix: Bools, orders: NDArray[np.int64]) -> Bools:
    """A relation between tokens after each of them got another's name: (T, T), (R, T) -> (R, T, T)."""
    return matrix[orders[:, :, None], orders[:, None, :]]


def _at_same_distances(predictive: Bools, ordinary: Bools, shuffles: int, generator: np.random.Generator) -> Bools:
    """The targets of another token, as far away as they are from it; what leaves the sequence comes in again."""
    places = np.flatnonzero(ordinary)
    count = len(places)
    around = (np.arange(count)[:, None] + np.arange(count)) % max(count, 1)  # row a, column d: the token d after a
    by_distance = predictive[places[:, None], places[around]]  # (N, N)
    owners = generator.permuted(np.tile(np.arange(count), (shuffles, 1)), axis=1)
    found = np.zeros((shuffles, *predictive.shape), bool)
    found[:, places[:, None], places[around]] = by_distance[owners]
    return found


def _other_separators(ordinary: Bools, shuffles: int, generator: np.random.Generator) -> Bools:
    columns = generator.permuted(np.tile(~ordinary, (shuffles, 1)), axis=1)  # (R, T)
    return columns[:, None, :] & ordinary[:, None]
