"""What a model answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Filled(NamedTuple):
    """A word for a blank."""

    token: str
    probability: float


@dataclass(frozen=True)
class Label:
    """A text's label, how sure the model is, and the probability of every label."""

    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Labels:
    """All labels that hold for a text, and the probability of every label."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """A stretch of a text that answers a question, and where it stands, in characters; empty if there is none."""

    text: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class TaggedWord:
    """A word of a text, where it stands, in characters, and its tag."""

    text: str
    tag: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Entity:
    """A name or the like: the stretch of a text that it takes; ``probability`` is the mean of its words'."""

    text: str
    label: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Tagged:
    """A text with its words and entities; of sentences that were given as words, the text that they make."""

    text: str
    words: tuple[TaggedWord, ...]
    entities: tuple[Entity, ...]


@dataclass(frozen=True)
class Option:
    """One of the options of a prompt, by its index, and how likely it is the one that fits."""

    index: int
    text: str
    probability: float


@dataclass(frozen=True)
class Attention:
    """Who attends to whom: ``weights[layer, head, from, to]``, each row summing to one."""

    tokens: list[str]
    segments: list[int]
    weights: NDArray[np.float32]  # (L, A, T, T)
