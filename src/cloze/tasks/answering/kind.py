"""The kind ``answer``: extractive question answering, which finds the span of a text that answers a question."""

from collections.abc import Mapping
from functools import partial

from cloze.progress import Progress
from cloze.tasks.answering.examples import (
    Questions,
    answer_items,
    look_for,
    read_own_questions,
    read_squad,
    read_unanswered,
)
from cloze.tasks.examples import Item
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import Source
from cloze.text import Tokenizer


def _items(examples: Questions, tokenizer: Tokenizer, options: ReadingOptions, progress: Progress) -> list[Item]:
    return answer_items(examples, tokenizer, options.stride, progress)


def _read_texts(source: Source, path: TableSource) -> list[PlacedTexts]:
    return [(row.place, row.texts) for row in read_unanswered(source, path).rows]


def read_other_splits(files: Mapping[str, str], always: bool, source: Source) -> list[PlacedTexts]:
    """Return the questions of all splits other than train and dev whose files exist."""
    splits = [split for split, name in files.items() if split not in ("train", "dev") and look_for(source.path, name)]
    examples = [read_squad(files, always, source, split, None).examples for split in splits]
    return [placed for rows in examples for placed in zip(rows.places, rows.documents(), strict=True)]


_decoded = partial(deferred, "cloze.tasks.answering.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

ANSWER = TaskKind(
    name="answer",
    summary="Find the span of a text that answers a question.",
    operation="answer",
    head="span",
    inputs="question",
    targets="span",
    metrics=("f1", "exact"),
    read=read_own_questions,
    items=_items,
    evaluate=_decoded("evaluate_answers"),
    baseline=_baseline("fit_window"),
    floor=_baseline("answer_none"),
    respond=_decoded("respond"),
    read_texts=_read_texts,
    settings=frozenset({"stride", "longest_answer"}),
    item_noun="windows, with their questions,",
    answers="a span of the text",
    fit_on_dev=_decoded("fit_threshold"),
)
