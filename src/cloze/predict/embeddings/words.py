"""The vector of one word where it stands: the same word has another in another sentence.

That is what tells BERT's vectors from static ones, which give the bank of a river and the bank with the money one
vector.
"""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.predict.model import Model
from cloze.text.characters import is_ideograph


def word_vector(model: Model, word: str, text: str, occurrence: int, layer: int | Sequence[int]) -> NDArray[np.float32]:
    """The mean of the states of a word's pieces, (H,); ``occurrence`` counts from 1."""
    places = find_word(word, text, lowercase=model.tokenizer.lowercase)
    if not places:
        raise RequestError(f"no word {word!r} in {text[:60]!r}; give it as the text has it")
    if not 1 <= occurrence <= len(places):
        raise RequestError(f"occurrence {occurrence} of {word!r}, which the text has {len(places)} times; count from 1")
    start, end = places[occurrence - 1]
    encoding = model.tokenizer(text)
    tokens = [
        index
        for index, (first, last) in enumerate(encoding.offsets)
        if encoding.sources[index] is not None and first < end and last > start
    ]
    if not tokens:
        raise RequestError(f"{word!r} lies beyond the {model.tokenizer.max_length} tokens that this model reads")
    layers = [layer] if isinstance(layer, int) else list(layer)
    states = np.mean([model.hidden(text, layer=one)[tokens] for one in layers], axis=0)  # (pieces, H)
    return states.mean(0, dtype=np.float32)  # type: ignore[no-any-return]


def find_word(word: str, text: str, *, lowercase: bool) -> list[tuple[int, int]]:
    """Where a word stands in a text: not within longer words, but for Chinese, which has nothing between words."""
    if not word.strip():
        return []
    flags = re.IGNORECASE if lowercase else 0
    return [found.span() for found in re.finditer(word_pattern(word), text, flags)]


def word_pattern(word: str) -> str:
    """A regular expression for a word that stands alone."""
    before = "" if is_ideograph(word[0]) else r"(?<!\w)"
    after = "" if is_ideograph(word[-1]) else r"(?!\w)"
    return before + re.escape(word) + after
