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
    starts = np.cumsum([0, *map(len, windows[:-1])])
    joined = np.add.reduceat(vectors * tokens, starts) / np.add.reduceat(tokens, starts)
    if normalize:
        joined /= np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12)
    return joined.astype(np.float32)
