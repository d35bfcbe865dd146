"""The sequences that show a head's label best, and in each the token that does.

Dimensions: K heads of all layers, P patterns, S sequences, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.inspect.patterns import PATTERNS, Layout, targets
from cloze.inspect.scoring import Scores, Tally
from cloze.inspect.sequences import Sample
from cloze.predict.results import row_entropy

# A sequence with one target that is hit shows less than one with ten of which nine are.
_DOUBT = 2.0


@dataclass(frozen=True)
class Example:
    """A token of a sequence and where one head's attention from it goes."""

    pattern: str  # the label that it shows; of a head that has none, the nearest
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    origin: int  # the token that attends
    weights: tuple[float, ...]  # to each of the tokens
    targets: tuple[int, ...]  # those that the pattern names; none for broad attention
    share: float  # of the weights that lies on them


def shown_names(labels: Sequence[tuple[str, ...]], scores: Scores) -> list[tuple[str, ...]]:
    """What each head is shown by: all of its labels, or the pattern that is nearest to one."""
    nearest = np.nan_to_num(scores.strength, nan=-np.inf).argmax(0)
    return [names or (PATTERNS[nearest[head]],) for head, names in enumerate(labels)]


def best_sequences(tally: Tally, head: int, name: str, count: int) -> list[int]:
    """The sequences that show a label of a head best, the best first."""
    if name in PATTERNS:
        pattern = PATTERNS.index(name)
        masses, counts = tally.masses[:, pattern, head], tally.counts[:, pattern]
    else:
        masses, counts = tally.evenness[:, head], tally.tokens
    order = np.argsort(-masses / (counts + _DOUBT), kind="stable")[:count]
    return [int(index) for index in order if counts[index] > 0]


def make_example(weights: NDArray[np.float32], sample: Sample, layout: Layout, name: str) -> Example:
    """The token of a sequence that shows a label best; ``weights`` are one head's, (T, T)."""
    has_targets = name in PATTERNS
    wanted = targets(layout)[PATTERNS.index(name)] if has_targets else np.zeros_like(layout.related)
    shares = (weights * wanted).sum(-1)
    worth = shares if has_targets else row_entropy(weights)
    origin = int(np.where(layout.ordinary, worth, -1.0).argmax())
    return Example(
        pattern=name,
        tokens=tuple(sample.encoding.tokens),
        segments=tuple(sample.encoding.segments),
        origin=origin,
        weights=tuple(round(float(weight), 4) for weight in weights[origin]),
        targets=tuple(int(place) for place in np.flatnonzero(wanted[origin])),
        share=round(float(shares[origin]), 4),
    )
