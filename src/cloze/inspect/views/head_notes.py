"""What the grid of heads says of each: the labels of a survey if there is one, else what this one text shows.

A survey (``cloze heads``) holds each score against chance over many sentences. One text cannot; then a head's note is
only the share of its attention on the next token, the one before, itself, the separators and the other sentence, how
even it is and how far it reaches, and the page says so.

Dimensions: L layers, A heads, T tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.files import read_json
from cloze.inspect.patterns import DESCRIPTIONS
from cloze.predict import Attention
from cloze.predict.results import row_distance, row_entropy

# A head that gives this share of its attention to one kind of target is called after it.
_SHARE = 0.4
# As much of the possible entropy is "about equally".
_EVEN = 0.85
_SEPARATORS = {"[CLS]", "[SEP]"}


@dataclass(frozen=True)
class HeadNote:
    """What is said of one head: a pattern's name, how much of it there is, and the figures behind."""

    label: str
    score: float
    entropy: float  # as a share of the possible
    distance: float  # in tokens


@dataclass(frozen=True)
class HeadNotes:
    """The notes of all heads, layer by layer, and where they are from: a survey, or this text alone."""

    source: str
    surveyed: bool
    notes: tuple[tuple[HeadNote, ...], ...]


def notes_of_text(attention: Attention) -> HeadNotes:
    """What one text shows of each head; no more than a description of this text."""
    length = len(attention.tokens)
    weights = attention.weights
    shares = {
        name: np.einsum("laij,ij->la", weights, mask.astype(np.float32)) / length
        for name, mask in _masks(attention).items()
    }
    entropy, distance = _evenness(weights), _reach(weights)
    rows = []
    for layer in range(weights.shape[0]):
        row = []
        for head in range(weights.shape[1]):
            here = {name: float(share[layer, head]) for name, share in shares.items()}
            label, score = _label(here, float(entropy[layer, head]))
            row.append(HeadNote(label, score, float(entropy[layer, head]), float(distance[layer, head])))
        rows.append(tuple(row))
    return HeadNotes("this text alone", False, tuple(rows))


def _masks(attention: Attention) -> dict[str, NDArray[np.bool_]]:
    """The targets of each kind, (T, T)."""
    length = len(attention.tokens)
    special = np.array([token in _SEPARATORS for token in attention.tokens])
    following = np.eye(length, k=1, dtype=bool)
    return {
        "next": following & ~special,
        "previous": following.T & ~special,
        "self": np.eye(length, dtype=bool) & ~special,
        "separators": np.broadcast_to(special, (length, length)),
    }


def _label(shares: dict[str, float], entropy: float) -> tuple[str, float]:
    best = max(shares, key=lambda name: shares[name])
    if shares[best] >= _SHARE:
        return best, shares[best]
    return ("broad", entropy) if entropy >= _EVEN else ("mixed", shares[best])


def _evenness(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean entropy of a head's rows, as a share of the possible: (L, A, T, T) -> (L, A)."""
    length = weights.shape[-1]
    # Layer by layer: the logarithms of all weights of a large model would take another half a gigabyte.
    rows = np.array([row_entropy(layer).mean(-1) for layer in weights], np.float64)
    return np.divide(rows, max(np.log(length), 1e-9))


def _reach(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean distance in tokens that a head attends over: (L, A, T, T) -> (L, A)."""
    places = np.arange(weights.shape[-1])
    return np.array([row_distance(layer, places).mean(-1) for layer in weights], np.float64)


def read_notes(path: Path, layers: int, heads: int) -> HeadNotes:
    """Read what ``cloze heads`` has written, for a model of this many layers and heads."""
    try:
        value = read_json(path, DataError)
    except DataError as error:
        raise DataError(f"{path}: cannot be read as what cloze heads writes; give its heads.json") from error
    rows: dict[tuple[int, int], HeadNote] = {}
    for entry in value.get("heads", ()) if isinstance(value.get("heads"), list) else ():
        layer, head, note = _read_head(entry, path)
        rows[layer, head] = note
    wanted = {(layer, head) for layer in range(layers) for head in range(heads)}
    if rows.keys() != wanted:
        raise DataError(
            f"{path}: {len(rows)} heads, but the model has {layers} layers of {heads}; "
            "give the heads.json that 'cloze heads' wrote for this model"
        )
    notes = tuple(tuple(rows[layer, head] for head in range(heads)) for layer in range(layers))
    return HeadNotes(path.name, True, notes)


def _read_head(entry: Any, path: Path) -> tuple[int, int, HeadNote]:
    try:
        label = str(entry["label"])
        # A head without a label is told by the largest share of its attention; what was not measured is None.
        known = {name: value for name, value in entry["scores"].items() if value is not None}
        score = known[label] if label != "mixed" else max(known[name] for name in known if name != "broad")
        note = HeadNote(label, float(score), float(entry["entropy"]), float(entry["distance"]))
        place = int(entry["layer"]), int(entry["head"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: a head is not as 'cloze heads' writes it ({str(error)[:60]}); write the file again"
        ) from error
    if label not in DESCRIPTIONS:
        raise DataError(f"{path}: unknown label {label[:40]!r}; the labels are {', '.join(DESCRIPTIONS)}")
    if not all(np.isfinite([note.score, note.entropy, note.distance])):
        raise DataError(f"{path}: a figure of layer {place[0]}, head {place[1]} is no number; write the file again")
    return *place, note
