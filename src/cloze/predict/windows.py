"""Texts that were read in several windows: what is said of each window -> what is said of the text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.text import Encoding

Floats = NDArray[np.float32]


def join_vectors(windows: Sequence[Sequence[Encoding]], rows: Sequence[Floats], *, normalize: bool) -> Floats:
    """The mean of each text's windows, weighted by their tokens; of length one where single vectors are, too."""
    vectors = np.stack(rows)
    if len(vectors) == len(windows):
        return vectors
    tokens = np.array([[len(window.ids)] for text in windows for window in text], np.float32)
    joined = _sums(windows, vectors * tokens) / _sums(windows, tokens)
    if normalize:
        joined /= np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12)
    return joined.astype(np.float32)


def join_logits(windows: Sequence[Sequence[Encoding]], rows: Sequence[Floats]) -> Floats:
    """The mean of each text's windows, which count the same: each has seen enough to have an opinion."""
    counts = np.array([[len(text)] for text in windows], np.float32)
    return (_sums(windows, np.stack(rows)) / counts).astype(np.float32)


def _sums(windows: Sequence[Sequence[Encoding]], values: Floats) -> Floats:
    """What belongs to the windows of one text, added up: (windows, D) -> (texts, D)."""
    return np.add.reduceat(values, np.cumsum([0, *map(len, windows[:-1])]))
