"""Do rows that will be scored occur in the text that a model is adapted on? Then its scores would mean little.

Texts are compared word by word, whatever their case, marks and spaces; each Chinese character is a word. A row occurs
if any eight words of it do, one after the other, or all of it where it is shorter. Fewer than four words prove nothing.
Text in JSONL and Parquet files is read as preparation reads it: in JSON, a Chinese character may be six letters.

The rows besides those of training and dev: what a model must not have read beforehand.

Their labels, if they bear any, are nothing to whoever looks for their texts elsewhere.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cloze.corpus.parts import read_any_documents
from cloze.corpus.settings import PrepareSettings
from cloze.errors import ConfigError, DataError
from cloze.files import replaced_file
from cloze.tasks.answering.files import CMRC, SQUAD, SQUAD2, look_for, read_unanswered
from cloze.tasks.choice import SWAG, arc_files, read_prompts
from cloze.tasks.published import PublishedTask, find_split, read_split
from cloze.tasks.registry import find_published, find_task
from cloze.tasks.rows import read_rows
from cloze.tasks.source import OnBadRow, Source
from cloze.tasks.tagging.columns import read_columns
from cloze.tasks.tagging.examples import (
    PUBLISHED_TAGS,
    column_numbers,
    find_tag_file,
    is_word_table,
    join_words,
    read_word_lists,
)

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


# A row's place, and its texts.
Placed = tuple[str, Sequence[str]]

_FILES: dict[str, Mapping[str, str]] = {"squad": SQUAD, "squad2": SQUAD2, "cmrc": CMRC, "swag": SWAG}


def read_other_splits(source: Source) -> list[Placed]:
    """The rows of the splits that are there; none of anybody's own files, nor of a single one."""
    spec = find_task(source.task)
    if not spec.published or not source.data.is_dir():
        return []
    task = find_published(source.task)
    if task is not None:
        return _read_texts(task, source)
    if spec.kind == "tag":
        path = find_tag_file(source.data, PUBLISHED_TAGS[source.task.lower()]["test"])
        return [] if path is None else _read_words(path, source.on_bad_row or "stop")
    found: list[Placed] = []
    for split, name in _files(source).items():
        # A file that is there and cannot be read is no missing one.
        if split not in ("train", "dev") and look_for(source.data, name) is not None:
            rows = spec.read(source, split, None).examples
            found += zip(rows.places, rows.documents(), strict=True)
    return found


def read_own_test(source: Source, path: Path) -> list[Placed]:
    """The rows of a test file of one's own, which has the columns of the training file but for its labels."""
    spec, on_bad_row = find_task(source.task), source.on_bad_row or "stop"
    if spec.published:
        raise ConfigError(
            f"test is {path}, but {source.task} has test files of its own, which are looked at where they are; "
            f"leave it out, or take {spec.kind} for files of yours"
        )
    match spec.kind:
        case "tag" if is_word_table(path):
            lists = read_word_lists(path, text=source.text, label=None, on_bad_row=on_bad_row).sentences
            return [(one.place, [join_words(one.words)[0]]) for one in lists]
        case "tag":
            return _read_words(path, on_bad_row, column_numbers(source, path)[0])
        case "answer":
            return [(row.place, row.texts) for row in read_unanswered(source, path).rows]
        case "choose":
            return [(row.place, row.texts) for row in read_prompts(source, path).rows]
    rows = read_rows(path, text=source.text, pair=source.pair, on_bad_row=on_bad_row)
    return [(row.place, [text for text in (row.text, row.pair) if text is not None]) for row in rows]


def _files(source: Source) -> Mapping[str, str]:
    """The files of each split, of tasks whose rows are neither texts nor tagged words."""
    task = source.task.lower()
    return arc_files(source.data) if task == "arc" else _FILES[task]


def _read_words(path: Path, on_bad_row: OnBadRow, column: int = 1) -> list[Placed]:
    """Sentences by their words alone: a file whose tags are kept back has none, or all the same."""
    sentences = read_columns(path, tagged=False, on_bad_row=on_bad_row, word=column).sentences
    return [(sentence.place, [join_words(sentence.words)[0]]) for sentence in sentences]


def _read_texts(task: PublishedTask, source: Source) -> list[Placed]:
    # By their files, since MNLI has two names for some.
    found = {find_split(task, source.data, split, missing_ok=True): split for split in task.files}
    known = {find_split(task, source.data, split, missing_ok=True) for split in ("train", "dev")}
    return [
        (row.place, [text for text in (row.text, row.pair) if text is not None])
        for path, split in found.items()
        if path is not None and path not in known
        for row in read_split(task, source.data, split, source.on_bad_row)
    ]
