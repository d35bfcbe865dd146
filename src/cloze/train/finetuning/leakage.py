"""Do rows that will be scored occur in the text that a model is adapted on? Then its scores would mean little.

Texts are compared word by word, whatever their case, marks and spaces; each Chinese character is a word. A row occurs
if any eight words of it do, one after the other, or all of it where it is shorter. Fewer than four words prove nothing.
Text in JSONL and Parquet files is read as preparation reads it: in JSON, a Chinese character may be six letters.

The rows besides those of training and dev: what a model must not have read beforehand.

Their labels, if they bear any, are nothing to whoever looks for their texts elsewhere.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cloze.corpus.documents import read_any_documents
from cloze.corpus.settings import PrepareSettings
from cloze.errors import ConfigError, DataError
from cloze.files import replaced_file
from cloze.tasks.kind import PlacedTexts
from cloze.tasks.registry import find_task
from cloze.tasks.rows import Source

_WORD = re.compile(r"[㐀-䶿一-鿿]|[^\W_]+")
_LONGEST, _SHORTEST = 8, 4
_SHOWN = 3
# The column of JSONL and Parquet files, which is the one that is prepared afterwards.
_COLUMN = PrepareSettings.text


Rows = Iterable[tuple[str, Sequence[str]]]  # each a place and its texts


def refuse_overlap(texts: Sequence[Path], rows: Rows) -> None:
    """Raise if rows occur in text files."""
    found = list(overlapping(texts, rows))
    if found:
        shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise DataError(
            f"{len(found)} rows that are to be scored occur in the text to adapt on ({shown}); give --overlap drop to "
            "leave the documents out in which they do, or --overlap allow if the scores need not be honest"
        )


def overlapping(texts: Sequence[Path], rows: Rows) -> Iterator[str]:
    """Yield the places of rows that occur in the texts, in the order of the rows."""
    sought = _Sought(rows)
    met = set[str]()
    for document in read_any_documents(texts, _COLUMN):
        met |= sought.met(document)
    return (place for place in sought.places if place in met)


def write_without_overlap(texts: Sequence[Path], rows: Rows, path: Path) -> int:
    """Write the documents in which no row occurs, and return how many were left out."""
    sought, dropped = _Sought(rows), 0
    # Half of a character, which JSON can hold, is none that a file can.
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        for document in read_any_documents(texts, _COLUMN):
            if sought.met(document):
                dropped += 1
            else:
                file.write("\n".join(document) + "\n\n")
    if not path.stat().st_size:
        path.unlink()
        raise DataError(f"rows that are to be scored occur in every document to adapt on ({dropped}); none is left")
    return dropped


class _Sought:
    """Rows that are looked for, by the words that tell them."""

    def __init__(self, rows: Rows) -> None:
        self._rows: dict[tuple[str, ...], list[str]] = {}
        for place, parts in rows:
            for part in parts:
                words = _words(part)
                for shingle in _shingles(words, min(_LONGEST, len(words))) if len(words) >= _SHORTEST else ():
                    self._rows.setdefault(shingle, []).append(place)
        self._lengths = sorted({len(shingle) for shingle in self._rows})

    @property
    def places(self) -> Iterable[str]:
        """Of all rows that can be found, each once."""
        return dict.fromkeys(place for told in self._rows.values() for place in told)

    def met(self, document: Sequence[str]) -> set[str]:
        """The places of the rows that occur in a document."""
        words = _words(" ".join(document))
        shingles = (shingle for length in self._lengths for shingle in _shingles(words, length))
        return {place for shingle in shingles for place in self._rows.get(shingle, ())}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _shingles(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def read_other_splits(source: Source) -> list[PlacedTexts]:
    """Return the rows of the published splits that exist; none of the user's own files, nor of a single one."""
    spec = find_task(source.task)
    return spec.read_other_splits(source) if spec.published and source.data.is_dir() else []


def read_own_test(source: Source, path: Path) -> list[PlacedTexts]:
    """Return the rows of the user's own test file, which has the columns of the training file but for its labels."""
    spec = find_task(source.task)
    if spec.published:
        raise ConfigError(
            f"test is {path}, but {source.task} has test files of its own, which are looked at where they are; "
            f"leave it out, or take {spec.kind} for files of yours"
        )
    assert spec.kind.read_texts is not None, "a kind with labels reads texts without them"
    return spec.kind.read_texts(source, path)
