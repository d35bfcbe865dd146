"""The kind ``tag``: a label for each word, such as named entities or parts of speech."""

from functools import partial
from pathlib import Path

from cloze.progress import Progress
from cloze.tasks.examples import Item
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import OnBadRow, Source
from cloze.tasks.tagging.columns import read_columns
from cloze.tasks.tagging.entities import ENTITY_METRICS, tag_metrics
from cloze.tasks.tagging.examples import (
    Files,
    TaggedSentences,
    column_numbers,
    find_tag_file,
    is_word_table,
    join_words,
    read_own_tags,
    read_word_lists,
    tag_items,
)
from cloze.text import Tokenizer


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
)
