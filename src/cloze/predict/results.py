"""Results of the pre-training heads and of the encoder; those of fine-tuned heads are in ``cloze.tasks``."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cloze.predict.model import Model


class Filled(NamedTuple):
    """A word for a blank."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledTogether:
    """A word for each blank of a text, chosen together, and the logarithm of how likely all of them are."""

    tokens: tuple[str, ...]
    log_probability: float
    text: str  # with its blanks filled


@dataclass(frozen=True)
class Score:
    """How likely a text is (Salazar et al. 2020): each token's log-probability, given all of the others."""

    text: str
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood."""
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """The pseudo-perplexity: how many tokens the model wavers between, on average; 1 of an empty text."""
        return float(np.exp(-self.total / max(1, len(self.tokens))))


@dataclass(frozen=True)
class Correction:
    """What stood at a place of a text, what should, and how sure that is."""

    wrong: str
    right: str
    position: int
    confidence: float


@dataclass(frozen=True)
class Corrected:
    """A text, the same corrected, and what was changed."""

    source: str
    target: str
    corrections: tuple[Correction, ...]

    @property
    def errors(self) -> list[tuple[str, str, int]]:
        """What was changed, as triples of what stood there, what should, and where."""
        return [(one.wrong, one.right, one.position) for one in self.corrections]


@dataclass(frozen=True)
class Attention:
    """Who attends to whom: ``weights[layer, head, from, to]``, each row summing to one."""

    tokens: list[str]
    segments: list[int]
    weights: NDArray[np.float32]  # (L, A, T, T)
    # The model and the texts that it is from, for the views that ask for more than weights.
    origin: "tuple[Model, str, str | None] | None" = field(default=None, repr=False, compare=False)

    def block(self, source: int, target: int) -> NDArray[np.float32]:
        """What the tokens of one segment give to those of another, (L, A, from, to): 0 and 1 for A -> B."""
        segments = np.array(self.segments)
        return self.weights[:, :, segments == source][..., segments == target]

    @property
    def entropy(self) -> NDArray[np.float32]:
        """How many tokens each token attends to: the entropy of its row in nats, (L, A, T), at most log T."""
        return row_entropy(self.weights)

    @property
    def distance(self) -> NDArray[np.float32]:
        """How far away each token attends on the mean, in tokens, (L, A, T)."""
        return row_distance(self.weights, np.arange(len(self.tokens)))


def row_entropy(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """The entropy of each row in nats: (..., T) -> (...)."""
    entropy: NDArray[np.float32] = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1)
    return entropy


def row_distance(weights: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
    """How far away each row attends, in tokens, on the mean; ``places`` of the rows: (..., N, T), (N,) -> (..., N)."""
    away = np.abs(places[:, None] - np.arange(weights.shape[-1]))
    distance: NDArray[np.float32] = (weights * away).sum(-1)
    return distance
