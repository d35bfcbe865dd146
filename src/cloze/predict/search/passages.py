"""Read documents and divide them into passages: the first step of ``cloze index``.

A document is a row of a table (CSV, TSV, JSONL, Parquet, a data frame), a text or Markdown file, or a block or line of
one. A document that fits into ``chunk`` tokens is one passage. Longer ones are divided between sentences, and each
passage repeats the last sentences of the one before, up to ``overlap`` tokens, so that no statement is cut off from
its context. A heading of a Markdown file starts a new passage. Offsets are code points of the document's text.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.errors import DataError
from cloze.files import Lines, RowError, check_is_file, open_file
from cloze.options import IndexSettings
from cloze.tasks.in_memory import TableSource, as_table_source
from cloze.tasks.rows import Row, read_rows
from cloze.tasks.tables import is_table, table_ending
from cloze.text import Encoding, Tokenizer
from cloze.text.boundaries import sentence_spans

ID_COLUMNS = ("id", "_id", "docid")
MARKDOWN = (".md", ".markdown")
# Files that a folder is searched for; each may be compressed.
_FOUND = frozenset({*MARKDOWN, ".txt", ".rst", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"})
# Longer documents must be divided first, since one is held in memory as a whole.
_LONGEST_DOCUMENT = 8 * 2**20
# Characters of a sentence that are tokenized at once; a longer one, such as a table, is divided between words.
_LONGEST_SENTENCE = 4000
_LONGEST_ID = 1000
# Texts by which a default model is chosen, and on which int8 is compared with float32.
_SAMPLED, _SAMPLED_CHARACTERS = 256, 2000

Known = tuple[int, int, int]  # segment, row and digest of a document of an index


@dataclass(frozen=True)
class Document:
    """A text with its id and the other columns of its row."""

    place: str
    id: str
    text: str
    fields: Mapping[str, object]
    headings: bool = False  # whether a line that starts with "#" is a heading

    @property
    def digest(self) -> int:
        """A hash of text and fields as a signed 64-bit number, to recognize an unchanged document."""
        content = json.dumps([self.text, self.fields], sort_keys=True, default=str)
        short = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(short, "little", signed=True)


@dataclass(frozen=True)
class Passage:
    """A part of a document: its offsets, and the sequence that is embedded."""

    start: int
    end: int
    encoding: Encoding


def find_sources(given: Any, settings: IndexSettings) -> list[TableSource]:
    """Return the files to read, or the rows in memory.

    A folder stands for all text files and tables below it, in the order of their names. A list of strings is a list of
    paths if one of them exists or ends like the name of a file, and otherwise a list of texts.
    """
    if isinstance(given, str | os.PathLike):
        given = [Path(given)]
    listed = isinstance(given, list | tuple) and given and all(isinstance(one, str | os.PathLike) for one in given)
    if not listed or not any(map(_is_path, given)):
        return [as_table_source(given, "documents", text=settings.text, pair=None, label="label")]
    return [source for one in given for source in _files(Path(one))]


def _is_path(given: str | os.PathLike[str]) -> bool:
    named = isinstance(given, os.PathLike) or table_ending(Path(given)) in _FOUND
    return named or (len(str(given)) < _LONGEST_ID and os.path.lexists(given))


def _files(path: Path) -> list[TableSource]:
    if not path.is_dir():
        check_is_file(path)
        return [path]
    inside = [file for file in sorted(path.rglob("*")) if table_ending(file) in _FOUND and file.is_file()]
    if not inside:
        raise DataError(f"{path}: no text file or table in this folder; expected {', '.join(sorted(_FOUND))}")
    return [file for file in inside if file.stat().st_size]


def read_documents(sources: Sequence[TableSource], settings: IndexSettings) -> Iterator[Document]:
    """Yield the documents of all sources in order; texts of files without any text are left out.

    Raises:
        DataError: A row is malformed, a file is not text, or an id occurs twice.
    """
    places: dict[str, str] = {}
    for source in sources:
        for document in _documents_of(source, settings):
            if (before := places.get(document.id)) is not None:
                raise DataError(
                    f"{document.place}: the id {document.id[:60]!r} is also that of {before}; give every document its "
                    "own id, or choose another column (--id)"
                )
            places[document.id] = document.place
            yield document


def _documents_of(source: TableSource, settings: IndexSettings) -> Iterator[Document]:
    if is_table(source):
        rows = read_rows(source, text=settings.text, skippable=False)
        for number, row in enumerate(rows, start=1):
            yield _from_row(row, number, source, settings)
        return
    assert isinstance(source, Path), "rows in memory are a table"
    headings = table_ending(source) in MARKDOWN
    for line, text in _texts(source, "file" if headings else settings.split):
        if text.strip():
            place = str(source) if line is None else f"{source}:{line}"
            yield Document(place, place, text, {}, headings)


def _from_row(row: Row, number: int, source: TableSource, settings: IndexSettings) -> Document:
    column = settings.id or next((name for name in ID_COLUMNS if name in row.fields), None)
    fields = {name: value for name, value in row.fields.items() if name not in (settings.text, column)}
    if column is None:
        name = row.place if isinstance(source, Path) else str(number)
        return Document(row.place, name, row.text, fields)
    value = row.fields.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        others = f"; it has: {', '.join(row.fields)}" if column not in row.fields else ""
        raise RowError(f"{row.place}: the id {column!r} is {value!r:.40}; expected text or a whole number{others}")
    if len(str(value)) > _LONGEST_ID:
        raise RowError(f"{row.place}: the id has {len(str(value))} characters; expected at most {_LONGEST_ID}")
    return Document(row.place, str(value), row.text, fields)


def _texts(path: Path, unit: str) -> Iterator[tuple[int | None, str]]:
    """Yield the texts of a file, each with the number of its first line, or None for the whole file."""
    block: list[str] = []
    first = size = 0
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in _readable(lines):
            if unit == "lines" and line.strip():
                yield lines.number, line
            elif unit != "lines" and (unit == "file" or line.strip()):
                first = first or lines.number
                block.append(line)
                size += len(line) + 1
                if size > _LONGEST_DOCUMENT:
                    raise DataError(
                        f"{path}: one document has more than {_LONGEST_DOCUMENT // 2**20} MB; divide the file with "
                        "split='blocks' (--split blocks) or split='lines' (--split lines)"
                    )
            elif block:
                yield first, "\n".join(block)
                block, first, size = [], 0, 0
    if block:
        yield (None if unit == "file" else first), "\n".join(block)


def _readable(lines: Lines) -> Iterator[str]:
    try:
        yield from lines
    except RowError as error:
        raise DataError(f"{error}; only text files and tables can be indexed") from error


# -- passages ----------------------------------------------------------------------------------------------------------


def divide(
    documents: Sequence[Document], tokenizer: Tokenizer, settings: IndexSettings, prefix: str = ""
) -> list[list[Passage]]:
    """Divide documents into passages.

    Args:
        documents: The documents.
        tokenizer: The tokenizer of the model.
        settings: The maximum number of tokens per passage, and the overlap.
        prefix: Text that the model expects before every passage, such as ``passage: ``.

    Returns:
        The passages of each document, at least one.
    """
    prefixed = len(tokenizer.encode_ids([prefix])[0])
    limit = min(settings.chunk + 2 + prefixed, tokenizer.max_length)  # with [CLS] and [SEP]
    spans: list[list[tuple[int, int]]] = []
    whole = tokenizer.encode_batch([prefix + document.text for document in documents], max_length=limit)
    for document, encoding in zip(documents, whole, strict=True):
        if encoding.dropped or (document.headings and "\n#" in document.text):
            spans.append(list(passage_spans(document, tokenizer, settings, limit - 2 - prefixed)))
        else:
            start = len(document.text) - len(document.text.lstrip())
            spans.append([(start, max(start + 1, len(document.text.rstrip())))])
    cut = [index for index, encoding in enumerate(whole) if encoding.dropped or len(spans[index]) > 1]
    texts = [prefix + documents[index].text[start:end] for index in cut for start, end in spans[index]]
    rest = iter(tokenizer.encode_batch(texts, max_length=limit)) if texts else iter(())
    divided = set(cut)
    return [
        [Passage(start, end, next(rest) if index in divided else whole[index]) for start, end in own]
        for index, own in enumerate(spans)
    ]


def passage_spans(
    document: Document, tokenizer: Tokenizer, settings: IndexSettings, budget: int
) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the passages of a long document: whole sentences of at most ``budget`` tokens together."""
    text = document.text
    sentences = list(_short_spans(text, sentence_spans(text), tokenizer, budget))
    first, tokens = 0, 0  # the passage begins with sentence ``first`` and has ``tokens`` tokens so far
    for number, (start, _, count) in enumerate(sentences):
        is_heading = document.headings and text[start] == "#"
        if number > first and (is_heading or tokens + count > budget):
            yield sentences[first][0], sentences[number - 1][1]
            first, tokens = number, 0
            while not is_heading and first > 0:
                before = sentences[first - 1]
                # The repeated sentences leave room for this one, and never are a whole passage.
                if tokens + before[2] > settings.overlap or tokens + before[2] + count > budget:
                    break
                first, tokens = first - 1, tokens + before[2]
        tokens += count
    yield sentences[first][0], sentences[-1][1]


def _short_spans(
    text: str, spans: Iterable[tuple[int, int]], tokenizer: Tokenizer, budget: int
) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and number of tokens of each sentence; one that is too long is divided between tokens."""
    pieces = [part for span in spans for part in _cut_characters(text, *span)]
    encoded = tokenizer.encode_pieces([text[start:end] for start, end in pieces])
    for (start, end), sentence in zip(pieces, encoded, strict=True):
        if len(sentence) <= budget:
            yield start, end, len(sentence)
            continue
        for first in range(0, len(sentence), budget):
            last = min(first + budget, len(sentence))
            yield start + sentence.offsets[first][0], start + sentence.offsets[last - 1][1], last - first


def _cut_characters(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > _LONGEST_SENTENCE:
        space = text.rfind(" ", start + _LONGEST_SENTENCE // 2, start + _LONGEST_SENTENCE)
        stop = space + 1 if space > 0 else start + _LONGEST_SENTENCE
        yield start, stop
        start = stop
    if start < end:
        yield start, end


@dataclass
class Survey:
    """The result of reading all documents once before the work.

    Attributes:
        count: Number of documents to embed.
        kinds: Type of each field.
        sample: The beginnings of some texts.
        skipped: Ids of documents that the index has already.
        replaced: Segment, row and digest of documents that the index has with other contents.
    """

    count: int = 0
    kinds: dict[str, str] = field(default_factory=dict)
    sample: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    replaced: dict[str, Known] = field(default_factory=dict)


def survey(
    sources: Sequence[TableSource], settings: IndexSettings, known: Mapping[str, Known], *, replace: bool
) -> Survey:
    """Read all documents once, to find mistakes before any computing.

    Args:
        sources: The documents.
        settings: How they are read.
        known: Segment, row and digest of the documents of the index by id.
        replace: Whether documents of the index may be replaced.

    Raises:
        DataError: A document is malformed, occurs twice, or is in the index with other contents.
    """
    found = Survey()
    total = 0
    for document in read_documents(sources, settings):
        total += 1
        before = known.get(document.id)
        if before is not None and before[2] == document.digest:
            found.skipped.add(document.id)
            continue
        if before is not None and not replace:
            raise DataError(
                f"{document.place}: the index has another document with the id {document.id[:60]!r}; replace it with "
                "replace=True (--replace), or give this one an id of its own"
            )
        if before is not None:
            found.replaced[document.id] = before
        found.count += 1
        if found.count % max(1, 2 ** (found.count.bit_length() - 6)) == 0 and len(found.sample) < _SAMPLED:
            found.sample.append(document.text[:_SAMPLED_CHARACTERS])
        for name, value in document.fields.items():
            found.kinds[name] = join_kinds(found.kinds.get(name), kind_of(value) or "")
    if not total:
        raise DataError(f"{', '.join(map(str, sources))[:100]}: no document with text; expected at least one")
    return found


def kind_of(value: object) -> str | None:
    """Return the type in which an index stores a value: bool, int, float or text; None for a missing value."""
    if value is None or value != value:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else "text"
    return "float" if isinstance(value, float) else "text"


def join_kinds(first: str | None, second: str) -> str:
    """Return the type that can store the values of both types; "" is the type of a field without values."""
    if not first or first == second:
        return second or first or ""
    if not second:
        return first
    return "float" if {first, second} == {"int", "float"} else "text"


def stored_value(value: object, kind: str) -> Any:
    """Return a value in the stored type of its field."""
    if kind_of(value) is None:
        return None
    if kind != "text":
        return float(value) if kind == "float" else value  # type: ignore[arg-type]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else str(value)
