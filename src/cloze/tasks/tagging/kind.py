"""The kind ``tag``: a label for each word, such as named entities or parts of speech.

Reads published folders and the user's own files: ``columns`` reads words and tags, this module creates rows with
targets, and ``sequences`` normalizes the tags and splits rows into windows.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from cloze.errors import ConfigError, DataError, did_you_mean, format_option
from cloze.files import COMPRESSED, RowError
from cloze.models import SHIPPED_MODEL
from cloze.options import IGNORED
from cloze.progress import Progress
from cloze.tasks.examples import Item, LabelSet, Read
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import OnBadRow, Source
from cloze.tasks.tables import Record, open_table, table_ending
from cloze.tasks.tagging.columns import Sentence, Sentences, column_number, read_columns
from cloze.tasks.tagging.sequences import (
    ENTITY_METRICS,
    find_tags,
    have_entity_prefixes,
    normalize_tags,
    read_words,
    tag_metrics,
    tag_windows,
)
from cloze.text import Tokenizer
from cloze.text.boundaries import is_ideograph

logger = logging.getLogger("cloze")

Value = TypeVar("Value")

# If at least this fraction of the words are single characters, the words are treated as characters; the longer ones may
# be numbers.
_CHARACTER_SHARE = 0.98

# Published folders: the possible file names of each split; the files may be compressed.
Files = Mapping[str, tuple[str, ...]]
CONLL: Files = {
    "train": ("eng.train", "train.txt"),
    "dev": ("eng.testa", "valid.txt", "dev.txt"),
    "test": ("eng.testb", "test.txt"),
}
MSRA: Files = {"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)}
BIO_NER: Files = {"train": ("train.tsv",), "dev": ("devel.tsv", "dev.tsv"), "test": ("test.tsv",)}
PUBLISHED_TAGS = {"conll": CONLL, "msra": MSRA, "bio-ner": BIO_NER}


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences as words, with the index of each word's tag."""

    words: list[list[str]]
    targets: list[list[int]]
    labels: LabelSet
    places: list[str]
    between: list[list[str]]  # the other columns of each word
    order: list[int]  # consecutive numbers mean consecutive sentences of one document
    path: TableSource
    marked: bool = False  # whether the file marks the start of documents
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.words)

    def select(self, indices: Sequence[int]) -> "TaggedSentences":
        """Return the sentences at these indices, in this order."""
        return TaggedSentences(
            words=[self.words[index] for index in indices],
            targets=[self.targets[index] for index in indices],
            labels=self.labels,
            places=[self.places[index] for index in indices],
            between=[self.between[index] for index in indices],
            order=[self.order[index] for index in indices],
            path=self.path,
            marked=self.marked,
            skipped=self.skipped,
        )

    def strata(self) -> None:
        """Return None: rows are split without stratification."""

    def documents(self) -> list[list[str]]:
        """Return each sentence as running text."""
        return [[join_words(words)[0]] for words in self.words]

    @property
    def by_characters(self) -> bool:
        """Whether the words are single characters, as in most Chinese corpora; a few longer ones are allowed."""
        lengths = [len(word) for words in self.words for word in words]
        chinese = any(is_ideograph(word[0]) for words in self.words for word in words)
        return chinese and lengths.count(1) >= _CHARACTER_SHARE * len(lengths)

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The indices of the sentences, grouped into runs of consecutive sentences of one document.

        A file without -DOCSTART- lines is treated as one document, with a warning.
        """
        if not self.marked:
            logger.warning("%s has no -DOCSTART- lines: all of it is treated as one document", self.path)
        return group_neighbours(self.order)


def group_neighbours(order: Sequence[int]) -> list[list[int]]:
    """Group indices whose numbers are consecutive."""
    groups: list[list[int]] = []
    for index, number in enumerate(order):
        if index and number == order[index - 1] + 1:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def join_words(words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join words into a text, without spaces in Chinese; return it with the span of each word."""
    # Chinese corpora have one character per word, and also split numbers and English words into characters.
    characters = all(len(word) == 1 for word in words) and any(map(is_ideograph, words))
    text, places = "", list[tuple[int, int]]()
    for word in words:
        if text and not characters and not (is_ideograph(text[-1]) and is_ideograph(word[0])):
            text += " "
        places.append((len(text), len(text) + len(word)))
        text += word
    return text, places


def tag_items(examples: TaggedSentences, tokenizer: Tokenizer, *, context: bool = False) -> list[Item]:
    """Return training items: windows with each word's tag at its first token; other tokens are ignored."""
    windows = tag_windows(tokenizer, read_words(tokenizer, examples.words), examples.neighbours if context else None)
    items = []
    for window in windows:
        target = [IGNORED] * len(window.encoding.ids)
        for served in window.served:
            for word, place in enumerate(served.places, start=served.first):
                target[place] = examples.targets[served.row][word]
        items.append(Item((window.encoding,), target))
    return items


def read_published_tags(files: Files, source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read a split of a published folder of column files."""
    if split not in files:
        raise ConfigError(f"{source.task} has no split {split!r}{did_you_mean(split, files)}")
    if split == "dev" and source.dev_path is not None:
        path = source.dev_path
    else:
        path = source.path if source.path.is_file() else _find(source.path, files[split])
    on_bad_row = source.on_bad_row or "stop"
    return tag_examples(path, read_columns(path, on_bad_row=on_bad_row), labels, on_bad_row)


def read_own_tags(source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read the user's own file: a column file, or a table with the words of a sentence and their tags in each row."""
    path = source.rows_of(split)
    on_bad_row = source.on_bad_row or "stop"
    if not isinstance(path, Path) or is_word_table(path):
        found = read_word_lists(path, text=source.text, label=source.label, on_bad_row=on_bad_row)
    else:
        word, tag = column_numbers(source, path)
        found = read_columns(path, on_bad_row=on_bad_row, word=word, tag=tag)
    return tag_examples(path, found, labels, on_bad_row)


def column_numbers(source: Source, path: Path) -> tuple[int, int]:
    """Return the columns of words and tags in a column file: the first and the last, unless others are named."""
    given = source.columns_named()
    word = column_number("text", given["text"], path) if "text" in given else 1
    tag = column_number("label", given["label"], path) if "label" in given else -1
    return word, tag


def is_word_table(path: Path) -> bool:
    """Return whether a file is a table with one sentence per row; ``.tsv`` files usually have one word per line."""
    return table_ending(path) in {".csv", ".jsonl", ".ndjson", ".parquet"}


def read_word_lists(path: TableSource, *, text: str, label: str | None, on_bad_row: OnBadRow = "stop") -> Sentences:
    """Read JSONL, Parquet or CSV: each row has a list of words and a list of tags; in CSV they are space-separated.

    Without a label column, only the words are read.
    """
    sentences: list[Sentence] = []
    order, skipped, problem = 0, 0, ""
    with closing(open_table(path)) as table:
        while True:
            order += 1
            try:
                sentences.append(_take_words(path, next(table), text, label, order))
            except StopIteration:
                break
            except RowError as error:
                if on_bad_row == "stop":
                    raise
                skipped, problem = skipped + 1, problem or str(error)
    if not sentences:
        reason = f"all {skipped} rows are bad; the first: {problem}" if skipped else "no rows; expected some"
        raise DataError(f"{path}: {reason}")
    return Sentences(sentences, skipped=skipped)


def read_word_list_column(path: Path, text: str) -> tuple[list[list[str]], list[dict[str, object]]] | None:
    """Return the word lists in a column of JSONL or Parquet, and all columns; None if it has running texts."""
    with closing(open_table(path)) as table:
        first = next(table, None)
        if first is None or not isinstance(first.cells.get(text), list):
            return None
        records = [first, *table]
    return [_texts(record, text) for record in records], [record.cells for record in records]


def has_word_lists(path: Path, text: str) -> bool:
    """Return whether a column of JSONL or Parquet has lists of words, judged by the first row."""
    with closing(open_table(path)) as table:
        first = next(table, None)
    return first is not None and isinstance(first.cells.get(text), list)


def iter_word_lists(path: Path, text: str) -> Iterator[tuple[list[str], dict[str, object]]]:
    """Yield the word list in a column and all columns of each row, while the file is read."""
    with closing(open_table(path)) as table:
        for record in table:
            yield _texts(record, text), record.cells


def _take_words(path: TableSource, record: Record, text: str, label: str | None, order: int) -> Sentence:
    spaced = not isinstance(path, Path) or table_ending(path) == ".csv"  # CSV cells cannot be lists
    words = _texts(record, text, spaced=spaced)
    tags = [] if label is None else _texts(record, label, spaced=spaced)
    if label is not None and len(words) != len(tags):
        raise RowError(
            f"{record.place}: {len(words)} words in {text!r}, but {len(tags)} tags in {label!r}; give one each"
        )
    line = int(record.place.replace(" ", ":").rpartition(":")[2])
    return Sentence(path, line, order, words, tags, [""] * len(words), one_line=True)


def _texts(record: Record, name: str, *, spaced: bool = False) -> list[str]:
    """Return a list of texts from a record; integers, which some corpora have as tags, become text."""
    values = record.cells.get(name)
    if spaced and isinstance(values, str):
        values = values.split()
    if not isinstance(values, list) or not values:
        problem = f"is {values!r:.40}" if name in record.cells else "is missing"
        raise RowError(
            f'{record.place}: {name!r} {problem}; expected a list such as ["a", "b"]: name its column with '
            f"{format_option('text')} or {format_option('label')}"
        )
    texts = [str(value) if isinstance(value, int) else value for value in values]
    for number, value in enumerate(texts, start=1):
        if not isinstance(value, str) or not value.strip():
            raise RowError(f"{record.place}: item {number} of {name!r} is {value!r:.40}; expected a text")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise RowError(f"{record.place}: item {number} of {name!r} has half a surrogate pair; use whole characters")
    return texts


def find_tag_file(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the file of a split, plain or compressed; None if there is none."""
    spelled = [folder / f"{name}{ending}" for name in names for ending in ("", *COMPRESSED)]
    return next((path for path in spelled if path.is_file()), None)


def _find(folder: Path, names: Sequence[str]) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected one that contains {' or '.join(names)}")
    found = find_tag_file(folder, names)
    if found is not None:
        return found
    raise DataError(f"{folder} has no {' or '.join(names)} (plain or compressed); check the folder")


def tag_examples(path: TableSource, found: Sentences, labels: LabelSet | None, on_bad_row: OnBadRow) -> Read:
    """Convert sentences to examples with tag indices in the training label set."""
    given = labels.names if labels is not None else (tag for one in found.sentences for tag in one.tags)
    read_tags = normalize_tags if have_entity_prefixes(given) else attrgetter("tags")
    normalized = _keep(found.sentences, read_tags, on_bad_row)
    known = labels or find_tags(normalized.values)
    tags = dict(zip((one.line for one in normalized.sentences), normalized.values, strict=True))

    def indices(sentence: Sentence) -> list[int]:
        found = [known.indices.get(tag) for tag in tags[sentence.line]]
        # Computing every tag's location would take longer than everything else, and is needed only for an unknown tag.
        return [
            known.index(tags[sentence.line][word], sentence.place_of(word)) if index is None else index
            for word, index in enumerate(found)
        ]

    kept = _keep(normalized.sentences, indices, on_bad_row)
    examples = TaggedSentences(
        words=[one.words for one in kept.sentences],
        targets=kept.values,
        labels=known,
        places=[one.place for one in kept.sentences],
        between=[one.between for one in kept.sentences],
        order=[one.order for one in kept.sentences],
        path=path,
        marked=found.marked,
        skipped=found.skipped + normalized.skipped + kept.skipped,
    )
    return Read(examples, known)


class _Kept(NamedTuple, Generic[Value]):
    sentences: list[Sentence]
    values: list[Value]
    skipped: int


def _keep(sentences: Sequence[Sentence], value_of: Callable[[Sentence], Value], on_bad_row: OnBadRow) -> _Kept[Value]:
    """Return the sentences for which ``value_of`` raises no ``RowError``, with their values."""
    kept: list[Sentence] = []
    values: list[Value] = []
    problem: RowError | None = None
    for sentence in sentences:
        try:
            values.append(value_of(sentence))
            kept.append(sentence)
        except RowError as error:
            if on_bad_row == "stop":
                raise
            problem = problem or error
    if not kept:
        raise DataError(f"{sentences[0].path}: all {len(sentences)} sentences are bad; the first: {problem}")
    return _Kept(kept, values, len(sentences) - len(kept))


def _items(
    examples: TaggedSentences,
    tokenizer: Tokenizer,
    options: ReadingOptions,
    progress: Progress,  # noqa: ARG001
) -> list[Item]:
    return tag_items(examples, tokenizer, context=options.context)


def read_untagged(source: Source, path: TableSource) -> list[PlacedTexts]:
    """Return location and text of each sentence of a file like the user's own, ignoring tags."""
    on_bad_row = source.on_bad_row or "stop"
    if isinstance(path, Path) and not is_word_table(path):
        return _read_sentences(path, on_bad_row, column_numbers(source, path)[0])
    sentences = read_word_lists(path, text=source.text, label=None, on_bad_row=on_bad_row).sentences
    return [(sentence.place, [join_words(sentence.words)[0]]) for sentence in sentences]


def read_test_split(files: Files, source: Source) -> list[PlacedTexts]:
    """Return the test sentences of a published folder; empty if the file is missing."""
    path = find_tag_file(source.path, files["test"])
    return [] if path is None else _read_sentences(path, source.on_bad_row or "stop")


def _read_sentences(path: Path, on_bad_row: OnBadRow, column: int = 1) -> list[PlacedTexts]:
    """Read the words of sentences only: if the tags of a file are withheld, it has none, or all are the same."""
    sentences = read_columns(path, tagged=False, on_bad_row=on_bad_row, word=column).sentences
    return [(sentence.place, [join_words(sentence.words)[0]]) for sentence in sentences]


_decoded = partial(deferred, "cloze.tasks.tagging.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

TAG = TaskKind(
    name="tag",
    summary="Give each word of a text a tag.",
    operation="tag",
    head="token",
    inputs="words",
    targets="token_indices",
    metrics=ENTITY_METRICS,
    read=read_own_tags,
    items=_items,
    evaluate=_decoded("evaluate_tags"),
    baseline=_baseline("fit_word_tags"),
    floor=_baseline("fit_one_tag"),
    respond=_decoded("respond"),
    columns=("text", "label"),
    read_texts=read_untagged,
    label_metrics=tag_metrics,
    named_outputs=True,
    settings=frozenset({"context"}),
    start=SHIPPED_MODEL,
)
