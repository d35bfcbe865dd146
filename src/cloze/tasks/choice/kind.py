"""The kind ``choose``: which of several options fits a prompt (section 4.4 of the paper)."""

from functools import partial
from pathlib import Path

from cloze.progress import Progress
from cloze.tasks.answering.examples import look_for
from cloze.tasks.choice.examples import Choices, arc_files, choice_items, read_arc, read_own_choices, read_prompts
from cloze.tasks.examples import Item
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import Source
from cloze.text import Tokenizer


def _items(
    examples: Choices,
    tokenizer: Tokenizer,
    options: ReadingOptions,  # noqa: ARG001
    progress: Progress,  # noqa: ARG001
) -> list[Item]:
    return choice_items(examples, tokenizer)


def _read_texts(source: Source, path: Path) -> list[PlacedTexts]:
    return [(row.place, row.texts) for row in read_prompts(source, path).rows]


def read_arc_test(source: Source) -> list[PlacedTexts]:
    """Return the test questions of ARC; empty if the file is missing."""
    if look_for(source.path, arc_files(source.path)["test"]) is None:
        return []
    examples = read_arc(source, "test", None).examples
    return list(zip(examples.places, examples.documents(), strict=True))


_decoded = partial(deferred, "cloze.tasks.choice.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

CHOOSE = TaskKind(
    name="choose",
    summary="Choose which of several options fits a prompt.",
    operation="choose",
    head="choice",
    inputs="options",
    targets="index",
    metrics=("accuracy",),
    read=read_own_choices,
    items=_items,
    evaluate=_decoded("evaluate_choices"),
    baseline=_baseline("fit_overlap"),
    floor=_baseline("expect_chance"),
    respond=_decoded("respond"),
    columns=("text", "label", "options"),
    read_texts=_read_texts,
    long_inputs="where options are cut",
    cuts_texts=True,
    answers="one of the options",
)
