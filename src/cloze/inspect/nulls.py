"""Nulls: what a head would score if it attended as it does, but to targets that mean nothing.

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

import numpy as np
from numpy.typing import NDArray

from cloze.inspect.patterns import PATTERNS, Bools, Layout, Pattern, targets


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
