"""Which tokens of a sequence are the same or related: by their vectors, and by a list of words if there is one.

The vectors are those of the model's own table, which know no context: what a head makes of it is not in the measure
that the head is judged by. Closeness is the cosine less what each of the two tokens has with its own neighbours
(CSLS: Conneau et al., 2018): frequent tokens lie in a crowd, and would have "of" related to "the" by nothing but that.

Dimensions: T tokens, V vocabulary, E table width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.inspect.patterns import Bools
from cloze.lines import Lines, open_file
from cloze.text import Encoding
from cloze.text.encoding import Word

# Pairs among so many tokens of the corpus settle what is close.
_COMPARED = 2000
# The nearest tokens that tell how crowded it is around one.
_NEIGHBOURS = 10

Groups = Mapping[str, frozenset[int]]  # a word, and the numbers of the lines that name it


def read_related(path: Path) -> Groups:
    """Read words that belong together, a group a line, with spaces between them."""
    groups: dict[str, frozenset[int]] = {}
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            words = line.casefold().split()
            if len(words) == 1:
                raise DataError(f"{lines.place}: {line[:50]!r} is one word; expected two or more that belong together")
            for word in words:
                groups[word] = groups.get(word, frozenset()) | {lines.number}
    if not groups:
        raise DataError(f"{path}: no word in it; expected words that belong together, a group a line")
    return groups


class Relatedness:
    """Tells which tokens are related: the closest pairs of different tokens of a corpus, and those of a list."""

    def __init__(
        self,
        vectors: NDArray[np.float32],
        encodings: Sequence[Encoding],
        share: float,
        groups: Groups | None = None,
        seed: int = 0,
    ) -> None:
        used = np.unique(np.concatenate([encoding.ids for encoding in encodings]))
        compared = used
        if len(used) > _COMPARED:
            compared = np.sort(np.random.default_rng(seed).choice(used, _COMPARED, replace=False))
        # Tables have a direction that all vectors share, and which says nothing about any of them.
        centred = vectors - vectors[used].mean(0)
        self._vectors = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)  # (V, E)
        cosines = self._vectors[used] @ self._vectors[compared].T
        cosines[used[:, None] == compared] = -1.0  # nobody's own neighbour
        self._crowding = np.zeros(len(vectors), np.float32)
        self._crowding[used] = np.sort(cosines, axis=1)[:, -_NEIGHBOURS:].mean(1)
        among = self._closeness(compared)
        pairs = among[np.triu_indices(len(compared), k=1)]
        self.threshold = float(np.quantile(pairs, 1 - share)) if len(pairs) else np.inf
        self._groups = groups or {}

    def matrix(self, encoding: Encoding, words: Sequence[Word] = ()) -> Bools:
        """True where two tokens of a sequence are the same or related, (T, T); ``words`` are the sequence's."""
        ids = np.array(encoding.ids)
        close = self._closeness(ids) > self.threshold
        listed = np.zeros_like(close)
        if self._groups:
            groups = [frozenset[int]()] * len(ids)
            for word in words:
                named = self._groups.get(word.text.casefold(), frozenset())
                groups[word.first : word.first + len(word.ids)] = [named] * len(word.ids)
            listed = np.array([[bool(one & other) for other in groups] for one in groups])
        related: Bools = (ids[:, None] == ids) | close | listed
        return related

    def _closeness(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """How close tokens are to each other for those in their place, (N,) -> (N, N)."""
        cosines = self._vectors[ids] @ self._vectors[ids].T
        closeness: NDArray[np.float32] = 2 * cosines - self._crowding[ids][:, None] - self._crowding[ids]
        return closeness
