"""Rows of one file -> parts: some to train on and a tenth to score on, or folds that are scored in turn.

Files have an order of their own, such as labels that take turns, and every tenth row of those has one label. So rows
are dealt out in an order that is drawn once and for all: the same rows are always parted alike. Rows that bear targets
are dealt label by label, so that every part has its share of each. Within a part they stay in the order of the file.
"""

import random

from cloze.errors import DataError
from cloze.tasks.classification import LabelledTexts
from cloze.tasks.examples import AnyExamples, Examples

# Without a dev file, this share of the training rows stands in for one.
DEV_SHARE = 0.1
_SEED = 0


def split_dev(examples: AnyExamples) -> tuple[AnyExamples, AnyExamples]:
    """Rows to train on, and a tenth to score on."""
    every = round(1 / DEV_SHARE)
    if len(examples) < 2 * every:
        raise DataError(
            f"{len(examples)} rows are too few to keep some for scoring: {2 * every} at the least; give a --dev file"
        )
    return _apart(examples, _dealt(examples)[every - 1 :: every])


def split_fold(examples: AnyExamples, fold: int, folds: int) -> tuple[AnyExamples, AnyExamples]:
    """Rows to train on, and those of a fold, counted from 0, to score on; each row is in one fold."""
    return _apart(examples, _dealt(examples)[fold::folds])


def _apart(examples: AnyExamples, chosen: list[int]) -> tuple[AnyExamples, AnyExamples]:
    scored = set(chosen)
    others = [index for index in range(len(examples)) if index not in scored]
    return examples.select(others), examples.select(sorted(scored))


def _dealt(examples: Examples) -> list[int]:
    """The rows in an order in which those a fixed number apart have nothing in common but that."""
    draw = random.Random(_SEED)
    # Python promises to leave these numbers as they are, unlike those of a shuffle.
    keys = [draw.random() for _ in range(len(examples))]
    order = sorted(range(len(examples)), key=keys.__getitem__)
    if isinstance(examples, LabelledTexts) and examples.targets is not None:
        order.sort(key=examples.targets.__getitem__)
    return order
