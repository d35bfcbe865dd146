"""The patterns of attention: which tokens each token would attend to if a head did nothing else.

Six are those that people saw in BERT's heads (next word, previous word, same or related words, those in the other
sentence, words that predict the word, separators); a token's attention to itself is the seventh, so that no head needs
to be called one of the six for want of a better name. Each is a matrix of targets, true where the row's token has the
column's for a target. A head's score is the mean, over the tokens that have a target, of the attention that goes to
their targets: one if all of it does.

Dimensions: T tokens.
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
