"""Convert tags to entities, and score both with ``seqeval``, which follows the rules of CoNLL's script.

Entity tags are a prefix and a type: B begins an entity and I continues it (IOB2); E ends it and S is a single-word one
(BIOES). In the original CoNLL files an entity begins with I unless one of the same type directly precedes it (IOB1).
All other tags, such as parts of speech, are plain and scored one by one.
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
# BILOU and BMES are BIOES with other letters.
_SAME = {"L": "E", "U": "S", "M": "I"}


class Span(NamedTuple):
    """An entity: type, first word, last word."""

    label: str
    first: int
    last: int


def have_entity_prefixes(tags: Iterable[str]) -> bool:
    """Return whether any tag has an entity prefix; otherwise the tags are plain."""
    return any(_ENTITY.fullmatch(tag) for tag in set(tags))


def tag_metrics(labels: LabelSet | None) -> tuple[str, ...]:
    """Return the metrics for these tags; the first one selects models."""
    return ENTITY_METRICS if labels is not None and have_entity_prefixes(labels.names) else PLAIN_METRICS


def normalize_tags(sentence: Sentence) -> list[str]:
    """Return entity tags as IOB2 or BIOES; raise a ``RowError`` for a tag that is not an entity tag."""
    normalized: list[str] = []
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
        normalized.append(f"{prefix}-{kind}" if kind else OUTSIDE)
    return normalized


@cache
def _parts(tag: str) -> tuple[str, str]:
    """Split an entity tag into prefix and type; both are empty if it is not an entity tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    return (_SAME.get(tag[0], tag[0]), tag[2:]) if _ENTITY.fullmatch(tag) else ("", "")


def find_tags(sentences: Iterable[Sequence[str]]) -> LabelSet:
    """Return the tag set of training sentences, with all prefixes of each entity type: dev rows may have others."""
    found = {tag for tags in sentences for tag in tags}
    if not have_entity_prefixes(found):
        return sorted_labels(found)
    prefixes = "BIES" if any(tag[0] in "ES" for tag in found) else "BI"
    kinds = {tag[2:] for tag in found if tag != OUTSIDE}
    return sorted_labels({OUTSIDE, *(f"{prefix}-{kind}" for prefix in prefixes for kind in kinds)})


def find_entities(tags: Sequence[str]) -> list[Span]:
    """Return the entities in a tag sequence, which need not be well formed."""
    if not have_entity_prefixes(tags):
        return []
    from seqeval.metrics.sequence_labeling import get_entities

    return [Span(*found) for found in get_entities(list(tags))]


def score_tags(
    labels: LabelSet, expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Score predicted tags: F1, precision and recall of whole entities, and accuracy of words."""
    right = [
        one == other
        for row, rows in zip(expected, predicted, strict=True)
        for one, other in zip(row, rows, strict=True)
    ]
    accuracy = sum(right) / len(right)
    if not have_entity_prefixes(labels.names):
        from cloze.tasks.metrics import macro_f1

        flat = ([labels.indices[tag] for tags in rows for tag in tags] for rows in (expected, predicted))
        return {"accuracy": accuracy, "macro_f1": macro_f1(*flat)}
    from seqeval.metrics import f1_score, precision_score, recall_score

    rows = [list(tags) for tags in expected], [list(tags) for tags in predicted]
    functions = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    # zero_division: without any entity the scores are 0.0, without a warning.
    scores = {name: float(function(*rows, average="micro", zero_division=0)) for name, function in functions.items()}
    return {**scores, "accuracy": accuracy}
