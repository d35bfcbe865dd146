"""Tags of words <-> entities, and how both are scored: on ``seqeval``, whose rules are those of CoNLL's own script.

An entity's tags are its type behind a prefix: B begins it and I goes on (IOB2); E ends it and S is all of it (BIOES).
The original files of CoNLL begin one with I as well, unless another of the same type ends right before it (IOB1).
All other tags, such as parts of speech, are plain: each counts for itself.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from cloze.lines import RowError
from cloze.tasks.examples import LabelSet, sorted_labels
from cloze.tasks.tagging.columns import Sentence

OUTSIDE = "O"
ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
PLAIN_METRICS = ("accuracy", "macro_f1")

_ENTITY = re.compile(r"[BIESLUM]-.+", re.DOTALL)
# BILOU and BMES say the same as BIOES with other letters.
_SAME = {"L": "E", "U": "S", "M": "I"}


class Span(NamedTuple):
    """An entity: its type, its first word and its last."""

    label: str
    first: int
    last: int


def have_entity_prefixes(tags: Iterable[str]) -> bool:
    """Whether these are tags of entities, not plain ones: some have a prefix."""
    return any(_ENTITY.fullmatch(tag) for tag in set(tags))


def tag_metrics(labels: LabelSet | None) -> tuple[str, ...]:
    """How these tags are scored; the first metric is the one that counts."""
    return ENTITY_METRICS if labels is not None and have_entity_prefixes(labels.names) else PLAIN_METRICS


def normalize_tags(sentence: Sentence) -> list[str]:
    """The tags of entities as IOB2 or BIOES: whatever begins an entity says so. What is no such tag is refused."""
    unified: list[str] = []
    before, kind_before = OUTSIDE, ""
    for word, tag in enumerate(sentence.tags):
        prefix, kind = _parts(tag)
        if not prefix:
            raise RowError(
                f"{sentence.place_of(word)}: tag {tag!r} is neither O nor a type behind a prefix, as the others are; "
                "expected one such as B-PER"
            )
        if prefix == "I" and (before in "OES" or kind_before != kind):
            prefix = "B"
        before, kind_before = prefix, kind
        unified.append(f"{prefix}-{kind}" if kind else OUTSIDE)
    return unified


@cache
def _parts(tag: str) -> tuple[str, str]:
    """The prefix and the type of an entity's tag; no prefix where it is none."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (_SAME.get(tag[0], tag[0]), tag[2:]) if _ENTITY.fullmatch(tag) else ("", "")


def find_tags(sentences: Iterable[Sequence[str]]) -> LabelSet:
    """The tags of training sentences; of entities also those that some type happens to lack, as dev rows may not."""
    found = {tag for tags in sentences for tag in tags}
    if not have_entity_prefixes(found):
        return sorted_labels(found)
    prefixes = "BIES" if any(tag[0] in "ES" for tag in found) else "BI"
    kinds = {tag[2:] for tag in found if tag != OUTSIDE}
    return sorted_labels({OUTSIDE, *(f"{prefix}-{kind}" for prefix in prefixes for kind in kinds)})


def find_entities(tags: Sequence[str]) -> list[Span]:
    """The entities that a sentence's tags tell of, whether or not the sequence is a proper one."""
    if not have_entity_prefixes(tags):
        return []
    from seqeval.metrics.sequence_labeling import get_entities

    return [Span(*found) for found in get_entities(list(tags))]


def score_tags(labels: LabelSet, expected: Sequence[Sequence[str]], told: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score the tags of sentences: whole entities of the right type, and single words."""
    right = [
        one == other for row, rows in zip(expected, told, strict=True) for one, other in zip(row, rows, strict=True)
    ]
    accuracy = sum(right) / len(right)
    if not have_entity_prefixes(labels.names):
        from cloze.tasks.metrics import macro_f1

        flat = ([labels.indices[tag] for tags in rows for tag in tags] for rows in (expected, told))
        return {"accuracy": accuracy, "macro_f1": macro_f1(*flat)}
    from seqeval.metrics import f1_score, precision_score, recall_score

    rows = [list(tags) for tags in expected], [list(tags) for tags in told]
    functions = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    # Without an entity, told or true, they count as 0.0 and do not warn.
    scores = {name: float(function(*rows, average="micro", zero_division=0)) for name, function in functions.items()}
    return {**scores, "accuracy": accuracy}
