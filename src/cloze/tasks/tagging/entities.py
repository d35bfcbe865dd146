"""Convert tags to entities, and score both with ``seqeval``, which follows the rules of CoNLL's script.

Entity tags consist of a prefix and a type: B begins an entity and I continues it (IOB2); E ends an entity and S is a
single-word entity (BIOES). In the original CoNLL files, an entity starts with I unless an entity of the same type
directly precedes it (IOB1). All other tags, such as parts of speech, are plain and are scored one by one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from cloze.files import RowError
from cloze.tasks.examples import LabelSet, sorted_labels
from cloze.tasks.tagging.columns import Sentence

if TYPE_CHECKING:
    from cloze.tasks.intervals import Floats, LabelCounts

OUTSIDE = "O"
ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
PLAIN_METRICS = ("accuracy", "macro_f1")

_ENTITY = re.compile(r"[BIESLUM]-.+", re.DOTALL)
# BILOU and BMES are BIOES with different letters.
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
                f"{sentence.place_of(word)}: tag {tag!r} is neither O nor a prefix with a type, unlike the others; "
                f"expected a tag such as B-PER"
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


def find_tags(sentences: Sequence[Sequence[str]]) -> LabelSet:
    """Return the tag set of training sentences, with all prefixes of each entity type, since dev rows may have more."""
    found = {tag for tags in sentences for tag in tags}
    if not have_entity_prefixes(found):
        return sorted_labels(found)
    kinds = {tag[2:] for tag in found if tag != OUTSIDE}
    prefixes = _scheme_prefixes(sentences, {tag[0] for tag in found if tag != OUTSIDE})
    return sorted_labels({OUTSIDE, *(f"{prefix}-{kind}" for prefix in prefixes for kind in kinds)})


def _scheme_prefixes(sentences: Sequence[Sequence[str]], found: set[str]) -> str:
    """Return the prefixes of the scheme: BI, BIES, or a mixed scheme (BIS, BIE).

    If the label set has an E, decoding forces entities of several words to end in E; with an S, it forces single words
    to be S. A scheme without such a tag must therefore not get it: in BIOS no entity ends in E, and in BIOE a single
    word is B.
    """
    if not found & {"E", "S"}:
        return "BI"
    if "E" not in found and "I" in found:
        return "BIS"
    singles = (
        first[0] == "B" and second[0] not in "IE" for tags in sentences for first, second in pairwise([*tags, OUTSIDE])
    )
    return "BIE" if "S" not in found and any(singles) else "BIES"


def is_constrained(names: Sequence[str]) -> bool:
    """Return whether the order of these tags is restricted: an entity scheme in which every type has a B.

    Some published models were trained on IOB1 and have types with an I but no B; all of their sequences are legal.
    """
    parts = {_parts(name) for name in names}
    kinds = {kind for prefix, kind in parts if prefix in {"I", "E"}}
    return ("", "") not in parts and bool(kinds) and all(("B", kind) in parts for kind in kinds)


def may_follow(names: Sequence[str], tag: str, before: str) -> bool:
    """Return whether ``tag`` may follow ``before`` in an entity scheme; O stands for both ends of a sentence.

    I-X and E-X may follow only B-X or I-X. If the scheme has E-X, an I-X must be continued; if it has S-X, so must a
    B-X.
    """
    prefix, kind = _parts(tag)
    prefix_before, kind_before = _parts(before)
    if prefix in {"I", "E"}:
        return prefix_before in {"B", "I"} and kind_before == kind
    ending = {"B": "S", "I": "E"}.get(prefix_before)
    return ending is None or (ending, kind_before) not in {_parts(name) for name in names}


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
    # zero_division=0: without any entity the scores are 0.0, without a warning.
    scores = {name: float(function(*rows, average="micro", zero_division=0)) for name, function in functions.items()}
    return {**scores, "accuracy": accuracy}


@dataclass(frozen=True)
class TaggedRows:
    """The scores of ``score_tags`` for resampled sentences; NumPy is imported only when it is used."""

    labels: LabelSet
    expected: Sequence[Sequence[str]]
    predicted: Sequence[Sequence[str]]

    def __len__(self) -> int:
        return len(self.expected)

    @property
    def has_entities(self) -> bool:
        """Whether the tags are entity tags."""
        return have_entity_prefixes(self.labels.names)

    @cached_property
    def names(self) -> list[str]:
        """The entity types, or the plain tags."""
        if not self.has_entities:
            return list(self.labels.names)
        return sorted({_parts(tag)[1] for tag in self.labels.names if tag != OUTSIDE})

    @cached_property
    def label_counts(self) -> "LabelCounts":
        """Counts of right, predicted and expected entities or words per type or tag, for each sentence."""
        from cloze.tasks.intervals import LabelCounts

        find = find_entities if self.has_entities else _word_spans
        expected, predicted = ([set(find(tags)) for tags in rows] for rows in (self.expected, self.predicted))
        return LabelCounts.of_spans(expected, predicted, self.names)

    def scores(self, counts: "Floats") -> "dict[str, Floats]":
        """Return the scores of each resample."""
        from cloze.tasks.intervals import divide

        right = [sum(map(eq, *rows)) for rows in zip(self.expected, self.predicted, strict=True)]
        accuracy = divide(counts @ right, counts @ [len(tags) for tags in self.expected])
        found = self.label_counts.resampled(counts)
        if not self.has_entities:
            return {"accuracy": accuracy, "macro_f1": found.macro_f1()}
        right, predicted, expected = (one.sum(1) for one in (found.right, found.predicted, found.expected))
        scores = {"precision": divide(right, predicted), "recall": divide(right, expected)}
        return {"f1": found.micro_f1(), **scores, "accuracy": accuracy}

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and support of each entity type or plain tag."""
        return self.label_counts.by_label(self.names)


def _word_spans(tags: Sequence[str]) -> list[Span]:
    return [Span(tag, place, place) for place, tag in enumerate(tags)]
