"""Do rows that will be scored occur in the text that a model is adapted on? Then its scores would mean little.

Texts are compared word by word, whatever their case, marks and spaces; each Chinese character is a word. A row occurs
if any eight words of it do, one after the other, or all of it where it is shorter. Fewer than four words prove nothing.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cloze.corpus.documents import read_documents
from cloze.errors import DataError

_WORD = re.compile(r"[㐀-䶿一-鿿]|[^\W_]+")
_LONGEST, _SHORTEST = 8, 4
_SHOWN = 3


def refuse_overlap(texts: Sequence[Path], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Raise if rows, each a place and its texts, occur in text files."""
    found = list(overlapping(texts, rows))
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise DataError(
            f"{len(found)} rows that are to be scored occur in the text to adapt on ({shown}); "
            "take them out of the text, or give --overlap allow if the scores need not be honest"
        )


def overlapping(texts: Sequence[Path], rows: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield the places of rows that occur in the texts."""
    places: dict[tuple[str, ...], list[str]] = {}
    for place, parts in rows:
        for part in parts:
            words = _words(part)
            for shingle in _shingles(words, min(_LONGEST, len(words))) if len(words) >= _SHORTEST else ():
                places.setdefault(shingle, []).append(place)
    met: set[str] = set()
    lengths = sorted({len(shingle) for shingle in places})
    for document in read_documents(texts):
        words = _words(" ".join(document))
        for length in lengths:
            for shingle in _shingles(words, length):
                met.update(places.get(shingle, ()))
    # In the order of the rows.
    return iter(dict.fromkeys(place for told in places.values() for place in told if place in met))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _shingles(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)
