"""A tag for each word: of running texts, of sentences given as words, and scored against rows that bear tags.

Dimensions: N words, L labels.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.model.losses import task_logits
from cloze.predict.batching import Batch
from cloze.predict.labels import probabilities
from cloze.predict.model import Model
from cloze.predict.reports import Confusion, Evaluation
from cloze.predict.results import Entity, Tagged, TaggedWord
from cloze.tasks.metrics import confusion
from cloze.tasks.tagging.columns import columns_text
from cloze.tasks.tagging.entities import find_entities, score_tags
from cloze.tasks.tagging.examples import TaggedSentences, join_words
from cloze.tasks.tagging.windows import WordIds, read_words, split_text, tag_windows

logger = logging.getLogger("cloze")

Floats = NDArray[np.float32]
Texts = Sequence[str] | Sequence[Sequence[str]]
Groups = Sequence[Sequence[int]]


class Words(NamedTuple):
    """A text, where its words stand in it, and their ids."""

    text: str
    places: Sequence[tuple[int, int]]
    ids: WordIds


def tag_texts(model: Model, texts: Texts, groups: Groups | None = None) -> list[Tagged]:
    """The words and the entities of texts, or of sentences as words; ``groups`` are those that are read together."""
    task = _need_tags(model)
    rows = _read(model, texts)
    logits = word_logits(model, [row.ids for row in rows], groups)
    return [_tagged(task, row, said) for row, said in zip(rows, logits, strict=True)]


@torch.inference_mode()
def word_logits(model: Model, sentences: Sequence[WordIds], groups: Groups | None = None) -> list[Floats]:
    """What the head says of the words of each sentence: (N, L)."""
    windows = tag_windows(model.tokenizer, sentences, groups)

    def step(batch: Batch) -> list[Floats]:
        last = model.bert(batch.ids, batch.segments, batch.mask).last
        logits = task_logits(model.bert, "token", last, ()).float().cpu().numpy()
        if not np.isfinite(logits).all():
            raise RequestError("the scores of this model are not finite numbers; check its training")
        return list(logits)

    said = model.run([window.encoding for window in windows], step)
    rows = [np.zeros((len(words), model.bert.labels), np.float32) for words in sentences]
    for window, logits in zip(windows, said, strict=True):
        for served in window.served:
            rows[served.row][served.first : served.first + len(served.places)] = logits[served.places]
    return rows


def evaluate_tags(model: Model, examples: TaggedSentences, metrics: Sequence[str]) -> Evaluation:  # noqa: ARG001
    """Score a model that tags words; which metrics there are follows from the tags."""
    task = _need_tags(model)
    groups = examples.neighbours if task.context else None
    logits = word_logits(model, read_words(model.tokenizer, examples.words), groups)
    told = [row.argmax(-1).tolist() for row in logits]
    names = task.names
    expected_tags, told_tags = ([[names[tag] for tag in row] for row in rows] for rows in (examples.targets, told))
    return Evaluation(
        score_tags(examples.labels, expected_tags, told_tags),
        [" ".join(tags) for tags in told_tags],
        examples.places,
        [" ".join(tags) for tags in expected_tags],
        [{"text": text} for (text,) in examples.documents()],
        Confusion(
            names,
            confusion(examples.labels, *([tag for row in rows for tag in row] for rows in (examples.targets, told))),
        ),
        {
            "predictions.txt": columns_text(
                list(zip(examples.words, examples.between, expected_tags, told_tags, strict=True))
            )
        },
    )


def _read(model: Model, texts: Texts) -> list[Words]:
    if isinstance(texts, str) or any(isinstance(text, str) != isinstance(texts[0], str) for text in texts):
        raise RequestError("expected a list of texts, or a list of sentences that are lists of words")
    if texts and isinstance(texts[0], str):
        return _read_running(model, [text for text in texts if isinstance(text, str)])
    sentences = [list(words) for words in texts]
    for number, words in enumerate(sentences, start=1):
        if "" in words:
            raise RequestError(f"word {words.index('') + 1} of sentence {number} is empty; leave it out")
    found = read_words(model.tokenizer, sentences)
    return [Words(*join_words(words), ids) for words, ids in zip(sentences, found, strict=True)]


def _read_running(model: Model, texts: Sequence[str]) -> list[Words]:
    found = model.tokenizer.encode_pieces(texts)
    unread = sum(pieces.unread > 0 for pieces in found)
    if unread:
        logger.warning("%d of %d texts are longer than can be read at once; give them in parts", unread, len(texts))
    return [Words(text, *split_text(model.tokenizer, pieces)) for text, pieces in zip(texts, found, strict=True)]


def _tagged(task: TaskLabels, row: Words, logits: Floats) -> Tagged:
    chosen = logits.argmax(-1)
    sure = np.take_along_axis(probabilities(task, logits), chosen[:, None], 1)[:, 0]
    tags = [task.names[tag] for tag in chosen]
    words = [
        TaggedWord(row.text[start:end], tag, start, end, float(value))
        for (start, end), tag, value in zip(row.places, tags, sure, strict=True)
    ]
    entities = []
    for label, first, last in find_entities(tags):
        start, end = words[first].start, words[last].end
        entities.append(Entity(row.text[start:end], label, start, end, float(sure[first : last + 1].mean())))
    return Tagged(row.text, tuple(words), tuple(entities))


def _need_tags(model: Model) -> TaskLabels:
    task = model.task
    if task is None or task.kind != "tag" or "token" not in model.heads:
        does = f"its head does: {task.kind}" if task else f"its heads: {', '.join(model.heads) or 'none'}"
        raise RequestError(
            f"this model was not trained to tag ({does}); load a folder that 'cloze finetune tag' has written"
        )
    return task
