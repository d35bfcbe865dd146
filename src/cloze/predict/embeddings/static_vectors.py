"""Vectors without context, to compare with: averages of a model's own table, and of word2vec's.

Dimensions: N texts, H hidden size.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.predict.model import Model

Vectors = NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")
_SIZE, _WINDOW, _PASSES, _RAREST = 100, 5, 10, 2  # of word2vec


def static_vectors(model: Model, texts: Sequence[str]) -> Vectors:
    """The mean of a model's own table over the tokens of each text, (N, H): what it knows before it reads."""
    table = model.bert.encoder.embeddings.token.weight.detach().float().cpu().numpy()
    return _means([table[ids] for ids in map(list, model.tokenizer.encode_ids(texts))], table.shape[1])


def train_word2vec(texts: Sequence[str], seed: int = 0) -> Callable[[Sequence[str]], Vectors] | None:
    """Learn word2vec (Mikolov et al. 2013) from texts; what it returns averages a text. None without gensim."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    # One worker: with more, the same text and seed give other vectors.
    learned = Word2Vec(
        [_words(text) for text in texts],
        vector_size=_SIZE,
        window=_WINDOW,
        min_count=_RAREST,
        epochs=_PASSES,
        seed=seed,
        workers=1,
    ).wv

    def average(asked: Sequence[str]) -> Vectors:
        known = [[learned[word] for word in _words(text) if word in learned] for text in asked]
        return _means([np.array(rows, np.float32).reshape(-1, _SIZE) for rows in known], _SIZE)

    return average


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _means(rows: Sequence[Vectors], size: int) -> Vectors:
    """The mean of each text's vectors; zeros where it has none."""
    means = [row.mean(0) if len(row) else np.zeros(size, np.float32) for row in rows]
    return np.stack(means) if means else np.zeros((0, size), np.float32)
