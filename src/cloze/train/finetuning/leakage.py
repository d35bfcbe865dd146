"""Data leakage: find evaluation rows that occur in the text of domain adaptation.

Scores on rows that the model has read beforehand would be too high. Texts are compared by word n-grams, ignoring case,
punctuation and whitespace; each Chinese character is a word. A row occurs in a document if any eight consecutive words
of it do, or all of its words if it has fewer. Rows of fewer than four words are ignored: they occur by chance.

JSONL and Parquet files are parsed as ``cloze prepare`` parses them, since JSON may escape a character as six letters.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cloze.corpus.documents import read_any_documents
from cloze.corpus.settings import PrepareSettings
from cloze.errors import ConfigError, DataError
from cloze.files import replaced_file
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts
from cloze.tasks.registry import find_task
from cloze.tasks.rows import Source

_WORD = re.compile(r"[㐀-䶿一-鿿]|[^\W_]+")
_MAX_WORDS, _MIN_WORDS = 8, 4  # length of the n-grams
_SHOWN = 3  # places in the error message
# The column of JSONL and Parquet files; the same that is prepared afterwards.
_COLUMN = PrepareSettings.text

Rows = Iterable[tuple[str, Sequence[str]]]  # (place, texts) of each row


def refuse_overlap(texts: Sequence[Path], rows: Rows) -> None:
    """Raise ``DataError`` if rows occur in text files."""
    places = list(find_overlap(texts, rows))
    if places:
        shown = ", ".join(places[:_SHOWN]) + (", ..." if len(places) > _SHOWN else "")
        raise DataError(
            f"{len(places)} rows that are to be scored occur in the text to adapt on ({shown}); give --overlap drop to "
            "leave out the documents in which they occur, or --overlap allow to accept scores that are too high"
        )


def find_overlap(texts: Sequence[Path], rows: Rows) -> Iterator[str]:
    """Yield the places of rows that occur in the texts, in the order of the rows."""
    index = _NgramIndex(rows)
    overlapping = set[str]()
    for document in read_any_documents(texts, _COLUMN):
        overlapping |= index.find(document)
    return (place for place in index.places if place in overlapping)


def write_without_overlap(texts: Sequence[Path], rows: Rows, path: Path) -> int:
    """Write the documents in which no row occurs, and return how many were dropped."""
    index, dropped = _NgramIndex(rows), 0
    # errors="replace": JSON can hold a lone surrogate, which UTF-8 cannot.
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8", errors="replace") as file:
        for document in read_any_documents(texts, _COLUMN):
            if index.find(document):
                dropped += 1
            else:
                file.write("\n".join(document) + "\n\n")
    if not path.stat().st_size:
        path.unlink()
        raise DataError(f"rows that are to be scored occur in every document to adapt on ({dropped}); none is left")
    return dropped


class _NgramIndex:
    """An index from the word n-grams of rows to the places of the rows."""

    def __init__(self, rows: Rows) -> None:
        self._places: dict[tuple[str, ...], list[str]] = {}
        for place, texts in rows:
            for text in texts:
                words = _words(text)
                for ngram in _ngrams(words, min(_MAX_WORDS, len(words))) if len(words) >= _MIN_WORDS else ():
                    self._places.setdefault(ngram, []).append(place)
        self._lengths = sorted({len(ngram) for ngram in self._places})

    @property
    def places(self) -> Iterable[str]:
        """The places of all indexed rows, each once, in the order of the rows."""
        return dict.fromkeys(place for places in self._places.values() for place in places)

    def find(self, document: Sequence[str]) -> set[str]:
        """Return the places of the rows that occur in a document."""
        words = _words(" ".join(document))
        ngrams = (ngram for length in self._lengths for ngram in _ngrams(words, length))
        return {place for ngram in ngrams for place in self._places.get(ngram, ())}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ngrams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(length)), strict=False)


def read_other_splits(source: Source) -> list[PlacedTexts]:
    """Return the rows of a published task's splits other than train and dev, without their labels."""
    spec = find_task(source.task)
    return spec.read_other_splits(source) if spec.published and source.path.is_dir() else []


def read_test_file(source: Source, path: TableSource) -> list[PlacedTexts]:
    """Return the rows of the user's test file, which has the columns of the training file, with or without labels."""
    spec = find_task(source.task)
    if spec.published:
        raise ConfigError(
            f"test is {path}, but {source.task} has test files of its own, which are checked anyway; "
            f"leave it out, or use the task {spec.kind} for your own files"
        )
    assert spec.kind.read_texts is not None, "a kind with labels reads texts without them"
    return spec.kind.read_texts(source, path)
