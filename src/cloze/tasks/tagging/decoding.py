"""Predict a tag for each word of running texts or of sentences given as words, and evaluate against tagged rows.

Tags of entities are decoded with the Viterbi algorithm: the best sequence of tags must be a legal one.

Dimensions: N words, L labels.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.model.losses import task_logits
from cloze.tasks.classification.decoding import probabilities
from cloze.tasks.kind import Predictor, TaskLabels
from cloze.tasks.metrics import confusion
from cloze.tasks.reports import Confusion, Evaluation
from cloze.tasks.tagging.columns import columns_text
from cloze.tasks.tagging.kind import TAG, TaggedSentences, join_words
from cloze.tasks.tagging.sequences import (
    OUTSIDE,
    TaggedRows,
    WordIds,
    find_entities,
    is_constrained,
    may_follow,
    read_words,
    score_tags,
    split_characters,
    split_text,
    tag_windows,
)

logger = logging.getLogger("cloze")

Floats = NDArray[np.float32]
Indices = NDArray[np.intp]
Texts = Sequence[str] | Sequence[Sequence[str]]
Groups = Sequence[Sequence[int]]


@dataclass(frozen=True)
class TaggedWord:
    """A word of a text, its position in characters, and its tag."""

    text: str
    tag: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Entity:
    """A named entity: a span of a text in characters; ``probability`` is the mean over its words."""

    text: str
    label: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Tagged:
    """A text with its words and entities; for sentences given as words, the text that they form."""

    text: str
    words: tuple[TaggedWord, ...]
    entities: tuple[Entity, ...]


class Words(NamedTuple):
    """A text, the spans of its words in characters, and the token ids of each word."""

    text: str
    places: Sequence[tuple[int, int]]
    ids: WordIds


def tag_texts(predictor: Predictor, texts: Texts, groups: Groups | None = None) -> list[Tagged]:
    """Tag texts, or sentences given as words; ``groups`` are sentences that are encoded together."""
    task = _require_tags(predictor)
    rows = _read(predictor, texts)
    logits = word_logits(predictor, [row.ids for row in rows], groups)
    chosen = decode_tags(task.names, logits)
    return [_tagged(task, row, scores, tags) for row, scores, tags in zip(rows, logits, chosen, strict=True)]


def respond(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001
    """Return words, tags and entities of each text as JSON values."""
    return [asdict(tagged) for tagged in tag_texts(predictor, inputs)]


@torch.inference_mode()
def word_logits(predictor: Predictor, sentences: Sequence[WordIds], groups: Groups | None = None) -> list[Floats]:
    """Return the logits of each sentence's words, (N, L)."""
    windows = tag_windows(predictor.tokenizer, sentences, groups)

    def step(batch: Batch) -> list[Floats]:
        last = predictor.bert(batch.ids, batch.segments, batch.mask).last
        logits = task_logits(predictor.bert, "token", last, ()).float().cpu().numpy()
        if not np.isfinite(logits).all():
            raise RequestError("the scores of this model are not finite numbers; check its training")
        return list(logits)

    window_logits = predictor.run([window.encoding for window in windows], step)
    rows = [np.zeros((len(words), predictor.bert.labels), np.float32) for words in sentences]
    for window, logits in zip(windows, window_logits, strict=True):
        for served in window.served:
            rows[served.row][served.first : served.first + len(served.places)] = logits[served.places]
    return rows


class Transitions(NamedTuple):
    """Which tags may start a sentence, (L,), end it, (L,), and follow each other, (L, L): column after row."""

    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    between: NDArray[np.bool_]

    def allow(self, tags: Indices) -> bool:
        """Return whether a sequence of at least one tag is legal."""
        inside = self.between[tags[:-1], tags[1:]].all()
        return bool(self.first[tags[0]] and self.last[tags[-1]] and inside)


@lru_cache(maxsize=64)
def find_transitions(names: tuple[str, ...]) -> Transitions | None:
    """Return the legal transitions of BIO, BIOES and similar schemes; None for plain tags, which have any order."""
    if not is_constrained(names):
        return None
    return Transitions(
        np.array([may_follow(names, name, OUTSIDE) for name in names]),
        np.array([may_follow(names, OUTSIDE, name) for name in names]),
        np.array([[may_follow(names, name, before) for name in names] for before in names]),
    )


def decode_tags(names: tuple[str, ...], logits: Sequence[Floats]) -> list[Indices]:
    """Return the best tag sequence of each sentence; for entity tags, the best legal one.

    Args:
        names: The tags, in the order of the outputs.
        logits: The logits of each sentence's words, (N, L).

    Returns:
        The index of the tag of each word, (N,) per sentence.
    """
    transitions = find_transitions(names)
    # The tags with the highest logits are the best sequence of all. If it is legal, which is usual, no search is
    # needed.
    best = [row.argmax(-1) for row in logits]
    if transitions is None:
        return best
    return [
        tags if not len(tags) or transitions.allow(tags) else _viterbi(row, transitions)
        for row, tags in zip(logits, best, strict=True)
    ]


def _viterbi(logits: Floats, transitions: Transitions) -> Indices:
    """Return the legal tag sequence with the highest sum of logits (the Viterbi algorithm).

    The number of sequences is L to the power of N, but the best path to a tag at a word extends the best path to one of
    the tags at the word before. One pass over the words is therefore enough: for each tag, keep the score of the best
    path that ends in it, and the tag before it on that path. The best path is then read backwards from its last tag.

    Logits need no softmax, which would only subtract a constant per word from all tags. Illegal transitions have a
    score of minus infinity.

    For example, "Ada Lovelace" has these logits (the best are marked), and I-PER may follow only B-PER or I-PER:

                     O   B-PER  I-PER
        Ada          3*    2      0
        Lovelace     1     0      4*

    The marked sequence O I-PER is illegal. The best paths to the tags of "Lovelace" are O O (4), O B-PER (3) and
    B-PER I-PER (2 + 4 = 6), so the result is B-PER I-PER.
    """
    penalties = np.where(transitions.between, 0.0, -np.inf)  # (L, L): from row to column
    scores = np.where(transitions.first, logits[0].astype(np.float64), -np.inf)  # (L,): of the best path to each tag
    before = np.zeros(logits.shape, np.intp)  # (N, L): the previous tag on the best path to each tag at each word
    for word in range(1, len(logits)):
        paths = scores[:, None] + penalties  # (L, L): extend the best path to each tag (row) by each tag (column)
        before[word] = paths.argmax(0)
        scores = paths.max(0) + logits[word]
    tags = np.zeros(len(logits), np.intp)
    tags[-1] = np.where(transitions.last, scores, -np.inf).argmax()
    for word in range(len(logits) - 1, 0, -1):
        tags[word - 1] = before[word, tags[word]]
    return tags


def evaluate_tags(predictor: Predictor, examples: TaggedSentences, metrics: Sequence[str]) -> Evaluation:  # noqa: ARG001
    """Evaluate a model that tags words; the metrics depend on the tags."""
    task = _require_tags(predictor)
    groups = examples.neighbours if task.context else None
    logits = word_logits(predictor, read_words(predictor.tokenizer, examples.words), groups)
    predicted = [row.tolist() for row in decode_tags(task.names, logits)]
    names = task.names
    expected_tags, predicted_tags = (
        [[names[tag] for tag in row] for row in rows] for rows in (examples.targets, predicted)
    )
    return Evaluation(
        score_tags(examples.labels, expected_tags, predicted_tags),
        [" ".join(tags) for tags in predicted_tags],
        examples.places,
        [" ".join(tags) for tags in expected_tags],
        [{"text": text} for (text,) in examples.documents()],
        Confusion(
            names,
            confusion(
                examples.labels, *([tag for row in rows for tag in row] for rows in (examples.targets, predicted))
            ),
        ),
        {
            "predictions.txt": columns_text(
                list(zip(examples.words, examples.between, expected_tags, predicted_tags, strict=True))
            )
        },
        rows=TaggedRows(examples.labels, expected_tags, predicted_tags),
        probabilities=[
            float(np.take_along_axis(probabilities(task, row), np.asarray(tags)[:, None], 1).prod())
            for row, tags in zip(logits, predicted, strict=True)
        ],
    )


def _read(predictor: Predictor, texts: Texts) -> list[Words]:
    if isinstance(texts, str) or any(isinstance(text, str) != isinstance(texts[0], str) for text in texts):
        raise RequestError("expected a list of texts, or a list of sentences that are lists of words")
    if texts and isinstance(texts[0], str):
        return _read_running(predictor, [text for text in texts if isinstance(text, str)])
    sentences = [list(words) for words in texts]
    for number, words in enumerate(sentences, start=1):
        if "" in words:
            raise RequestError(f"word {words.index('') + 1} of sentence {number} is empty; leave it out")
    found = read_words(predictor.tokenizer, sentences)
    return [Words(*join_words(words), ids) for words, ids in zip(sentences, found, strict=True)]


def _read_running(predictor: Predictor, texts: Sequence[str]) -> list[Words]:
    if predictor.task is not None and predictor.task.characters:
        return _read_characters(predictor, texts)
    found = predictor.tokenizer.encode_pieces(texts)
    unread = sum(pieces.unread > 0 for pieces in found)
    if unread:
        logger.warning("%d of %d texts are too long and were cut; split them", unread, len(texts))
    return [Words(text, *split_text(predictor.tokenizer, pieces)) for text, pieces in zip(texts, found, strict=True)]


def _read_characters(predictor: Predictor, texts: Sequence[str]) -> list[Words]:
    """Read each character except whitespace as a word, as in the training rows."""
    split = [split_characters(text) for text in texts]
    ids = read_words(predictor.tokenizer, [words for words, _ in split])
    return [Words(text, places, row) for text, (_, places), row in zip(texts, split, ids, strict=True)]


def _tagged(task: TaskLabels, row: Words, logits: Floats, chosen: Indices) -> Tagged:
    confidence = np.take_along_axis(probabilities(task, logits), chosen[:, None], 1)[:, 0]
    tags = [task.names[tag] for tag in chosen]
    words = [
        TaggedWord(row.text[start:end], tag, start, end, float(value))
        for (start, end), tag, value in zip(row.places, tags, confidence, strict=True)
    ]
    entities = []
    for label, first, last in find_entities(tags):
        start, end = words[first].start, words[last].end
        entities.append(Entity(row.text[start:end], label, start, end, float(confidence[first : last + 1].mean())))
    return Tagged(row.text, tuple(words), tuple(entities))


def _require_tags(predictor: Predictor) -> TaskLabels:
    task = predictor.task
    if task is None or task.kind != TAG.name or TAG.head not in predictor.heads:
        does = (
            f"its head was trained for: {task.kind}" if task else f"its heads: {', '.join(predictor.heads) or 'none'}"
        )
        raise RequestError(
            f"this model was not trained to tag ({does}); load a folder that 'cloze finetune tag' has written"
        )
    return task
