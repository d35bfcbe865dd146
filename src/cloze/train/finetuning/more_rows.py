"""More training rows where there are few: changed copies of those that are there, with their labels.

What is made is a function of the rows, the seed and the model alone, so that a run that goes on sees the same rows. The
rows for scoring are never touched.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloze.checkpoint import ModelFolder
from cloze.errors import ConfigError
from cloze.predict import Model
from cloze.progress import Progress
from cloze.tasks.classify import LabelledTexts
from cloze.tasks.items import Examples
from cloze.tasks.registry import TaskData
from cloze.tasks.text_edits import Editor, edit_rows, read_synonyms
from cloze.train.finetuning.augmentation import Proposer, similar_words
from cloze.train.settings import FinetuneSettings

_STREAM = 1  # apart from the streams of order and dropout, which start from the same seed


def check_augment(data: TaskData, base: ModelFolder, name: str, settings: FinetuneSettings) -> None:
    """Refuse what cannot be made, before anything is."""
    if settings.augment == "none":
        return
    assert isinstance(data.train, LabelledTexts), "other kinds were refused"
    if settings.synonyms is not None:
        read_synonyms(Path(settings.synonyms))
    if settings.augment == "contextual" and "mlm" not in base.model.heads:
        there = ", ".join(base.model.head_names) or "none"
        raise ConfigError(
            f"{name}: augment contextual asks the head mlm for words, and this model has the heads: {there}; "
            "start from a pre-trained model, or choose edits"
        )


def with_more_rows(
    data: TaskData, base: ModelFolder, settings: FinetuneSettings, device: str | None, progress: Progress
) -> Examples:
    """The training rows and, behind them, those that were made of them."""
    rows = data.train
    if settings.augment == "none":
        return rows
    assert isinstance(rows, LabelledTexts), "others were refused"
    texts = [tuple(row) for row in rows.documents()]
    model = Model(base, device=device)
    make = _contextual if settings.augment == "contextual" else _edited
    made = make(texts, model, settings)
    progress.say(f"{len(made)} training rows were made of {len(rows)} by {settings.augment}")
    return _joined(rows, made)


def _generator(settings: FinetuneSettings, copy: int, row: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, _STREAM, copy, row])


def _contextual(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    proposer = Proposer(model)
    made = []
    for copy in range(settings.augment_copies):
        generators = [_generator(settings, copy, row) for row in range(len(texts))]
        found = enumerate(proposer.replace(texts, generators))
        made += [(row, told) for row, told in found if told is not None]
    return made


def _edited(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    if settings.synonyms is not None:
        similar = read_synonyms(Path(settings.synonyms))
    else:
        plain = Editor({})
        similar = similar_words(model, {word.lower() for row in texts for text in row for word in plain.words(text)})
    return edit_rows(texts, Editor(similar), settings.augment_copies, lambda copy, row: _generator(settings, copy, row))


def _joined(rows: LabelledTexts, made: Sequence[tuple[int, tuple[str, ...]]]) -> LabelledTexts:
    """The rows with the made ones, each with the label and the place of the row that it is from."""
    assert rows.targets is not None, "training rows have labels"
    numbers = [row for row, _ in made]
    return LabelledTexts(
        texts=rows.texts + [texts[0] for _, texts in made],
        pairs=None if rows.pairs is None else rows.pairs + [texts[1] for _, texts in made],
        targets=[*rows.targets, *(rows.targets[row] for row in numbers)],
        places=rows.places + [rows.places[row] for row in numbers],
        skipped=rows.skipped,
    )
