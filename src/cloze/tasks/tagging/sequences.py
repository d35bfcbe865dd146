"""Sequences of words with tags: windows of long sentences, the entities that tags mark, and scores of tags.

Windows: a word is predicted at its first token. A sentence that is too long is split into overlapping windows, and each
word is predicted in the window with the most context around it, so that every word is predicted exactly once. With
document context, a window contains as many whole sentences of a document as fit and predicts all of them; the remaining
room is filled with the text before and after.

Tags and entities: convert tags to entities, and score both with ``seqeval``, which follows the rules of CoNLL's script.

Entity tags consist of a prefix and a type: B begins an entity and I continues it (IOB2); E ends an entity and S is a
single-word entity (BIOES). In the original CoNLL files, an entity starts with I unless an entity of the same type
directly precedes it (IOB1). All other tags, such as parts of speech, are plain and are scored one by one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby, pairwise
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from cloze.errors import ConfigError
from cloze.files import RowError
from cloze.tasks.examples import LabelSet, sorted_labels
from cloze.tasks.tagging.columns import Sentence
from cloze.text import Encoding, Pieces, Tokenizer, window_spans
from cloze.text.encoding import word_spans

if TYPE_CHECKING:
    from cloze.tasks.intervals import Floats, LabelCounts


# Token ids of a sentence, by word.
WordIds = list[list[int]]


@dataclass(frozen=True)
class Served:
    """Consecutive words of a row, starting with ``first``, and the position of each one's first token in the window."""

    row: int
    first: int
    places: list[int]


@dataclass(frozen=True)
class TagWindow:
    """A sequence and the words that are predicted from it."""

    encoding: Encoding
    served: list[Served]


def read_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordIds]:
    """Return the token ids of each word; a word without tokens, such as a control character, becomes [UNK]."""
    distinct = list({word: None for words in sentences for word in words})
    found = tokenizer.encode_pieces(distinct)
    ids = {word: pieces.ids or [tokenizer.unknown_id] for word, pieces in zip(distinct, found, strict=True)}
    return [[ids[word] for word in words] for words in sentences]


def split_text(tokenizer: Tokenizer, pieces: Pieces) -> tuple[list[tuple[int, int]], WordIds]:
    """Return the words of a running text as the tokenizer splits it: their spans in characters, and their ids."""
    spans = list(word_spans(tokenizer.word_starts(pieces.ids), pieces.marks))
    places = [(pieces.offsets[start][0], pieces.offsets[stop - 1][1]) for start, stop in spans]
    return places, [pieces.ids[start:stop] for start, stop in spans]


def split_characters(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the characters of a running text except whitespace, each as a word, and their spans."""
    places = [(place, place + 1) for place, character in enumerate(text) if not character.isspace()]
    return [text[start:stop] for start, stop in places], places


def tag_windows(
    tokenizer: Tokenizer,
    sentences: Sequence[WordIds],
    groups: Sequence[Sequence[int]] | None = None,
    step: int | None = None,
) -> list[TagWindow]:
    """Return the windows of some rows.

    Args:
        tokenizer: The tokenizer, which determines the length of a window.
        sentences: The token ids of each row, by word.
        groups: Rows that follow each other in a document and are encoded together; by default every row by itself.
        step: Tokens from one window of a long sentence to the next; half of a window's room by default.
    """
    room = tokenizer.content_length(1)
    if room < 1:
        raise ConfigError(
            f"length is {tokenizer.max_length}; expected at least 3, for a token between two special tokens"
        )
    step = max(1, min(step or room // 2, room))
    if groups is None:
        groups = [[row] for row in range(len(sentences))]
    return [window for rows in groups for window in _read_group(tokenizer, sentences, rows, step)]


def _read_group(
    tokenizer: Tokenizer, sentences: Sequence[WordIds], rows: Sequence[int], step: int
) -> Iterator[TagWindow]:
    room = tokenizer.content_length(1)
    ids = [number for row in rows for word in sentences[row] for number in word]
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + sum(map(len, sentences[row])))
    first = 0
    while first < len(rows):
        start, last = ends[first], first + 1
        if ends[last] - start > room:
            yield from _read_long(tokenizer, sentences[rows[first]], rows[first], step)
            first = last
            continue
        while last < len(rows) and ends[last + 1] - start <= room:
            last += 1
        stop = ends[last]
        spare = room - (stop - start)
        left = min(start, max(spare // 2, spare - (len(ids) - stop)))
        served, place = list[Served](), left + 1  # after [CLS]
        for row in rows[first:last]:
            served.append(Served(row, 0, _places(sentences[row], place)))
            place += sum(map(len, sentences[row]))
        yield TagWindow(_assemble(tokenizer, ids[start - left : stop + spare - left]), served)
        first = last


def _read_long(tokenizer: Tokenizer, sentence: WordIds, row: int, step: int) -> list[TagWindow]:
    room = tokenizer.content_length(1)
    ids = [number for word in sentence for number in word]
    places = window_spans(len(ids), room, step)
    words = _places(sentence, 0)
    chosen = [_best_window(word, places, room, step) for word in words]
    served: dict[int, list[Served]] = {}
    for window, numbers in groupby(range(len(words)), chosen.__getitem__):
        first, *others = numbers
        inside = [words[number] - places[window][0] + 1 for number in (first, *others)]  # after [CLS]
        served.setdefault(window, []).append(Served(row, first, inside))
    # Windows that are not the best for any word are left out, such as one within a word.
    return [TagWindow(_assemble(tokenizer, ids[slice(*places[window])]), served[window]) for window in sorted(served)]


def _best_window(word: int, places: Sequence[tuple[int, int]], room: int, step: int) -> int:
    """Return the window of a token with the most text on its shorter side; ties go to the first."""
    earliest = max(0, -(-(word - room + 1) // step))
    latest = min(word // step, len(places) - 1)
    return max(
        range(earliest, latest + 1), key=lambda window: min(word - places[window][0], places[window][1] - 1 - word)
    )


def _places(sentence: WordIds, start: int) -> list[int]:
    """Return the position of each word's first token, in a sentence that starts at position ``start``."""
    places = []
    for word in sentence:
        places.append(start)
        start += len(word)
    return places


def _assemble(tokenizer: Tokenizer, ids: list[int]) -> Encoding:
    return tokenizer.assemble(Pieces(ids, [(0, 0)] * len(ids)))


# -- tags and entities -------------------------------------------------------------------------------------------------


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
