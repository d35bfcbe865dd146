"""A plain reimplementation of the original BERT pair sampling, from its published description."""

import random
from dataclasses import dataclass

Sentence = list[int]


@dataclass(frozen=True)
class Instance:
    """One pair of token lists."""

    first: list[int]
    second: list[int]
    is_random: bool


def create_instances(documents: list[list[Sentence]], index: int, length: int, draw: random.Random) -> list[Instance]:
    """Return the pairs of one document, none of them deliberately short (``short_seq_prob`` 0)."""
    document, room = documents[index], length - 3
    instances: list[Instance] = []
    chunk: list[Sentence] = []
    position = 0
    while position < len(document):
        chunk.append(document[position])
        if position == len(document) - 1 or sum(map(len, chunk)) >= room:
            split = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first = [token for sentence in chunk[:split] for token in sentence]
            is_random = len(chunk) == 1 or draw.random() < 0.5
            if is_random:
                second = _random_segment(documents, index, room - len(first), draw)
                position -= len(chunk) - split  # unused sentences are put back
            else:
                second = [token for sentence in chunk[split:] for token in sentence]
            truncate(first, second, room, draw)
            instances.append(Instance(first, second, is_random))
            chunk = []
        position += 1
    return instances


def _random_segment(documents: list[list[Sentence]], index: int, wanted: int, draw: random.Random) -> list[int]:
    other = index
    while other == index:
        other = draw.randrange(len(documents))
    segment: list[int] = []
    for sentence in documents[other][draw.randrange(len(documents[other])) :]:
        segment.extend(sentence)
        if len(segment) >= wanted:
            break
    return segment


def truncate(first: list[int], second: list[int], room: int, draw: random.Random) -> None:
    """Remove tokens from the longer segment, at a random end, until both fit."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        del longer[0 if draw.random() < 0.5 else -1]
