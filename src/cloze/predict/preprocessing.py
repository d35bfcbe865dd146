"""Texts -> checked sequences: everything that happens before the forward pass and needs no weights.

The service runs it in another thread than the one that computes. Also checks that a model has the required head.
"""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from cloze.errors import RequestError
from cloze.model import Backbone, HeadName
from cloze.options import LongTexts
from cloze.predict.fill_mask import TokenWindow, find_blanks, token_windows
from cloze.predict.results import results_to_columns
from cloze.tasks.answering.examples import plan_windows
from cloze.tasks.in_memory import add_columns, is_frame, read_columns, texts_of
from cloze.tasks.kind import TaskKind, TaskLabels
from cloze.tasks.registry import labelled_kinds
from cloze.tasks.tagging.windows import read_words
from cloze.text import Encoding, Tokenizer, encode_long
from cloze.text.encoding import word_spans
from cloze.text.oov.coverage import unknown_note

logger = logging.getLogger("cloze")


class InputWarnings:
    """Warnings about the texts of one model: how many were truncated, and how many tokens are ``[UNK]``."""

    def __init__(self) -> None:
        self._last_note: str | None = None
        self._last_cut: int | None = None  # a hash of the sequences that were last warned of

    def check(
        self,
        tokenizer: Tokenizer,
        encoded: Sequence[Sequence[Encoding]],
        texts: Sequence[str],
        pairs: Sequence[str] | None,
    ) -> None:
        """Warn of texts, given with the sequences of each, for either reason."""
        self.truncated(tokenizer, [windows[0] for windows in encoded])
        # The usual case, without any [UNK], costs a search in lists of numbers.
        if any(tokenizer.unknown_id in window.ids for windows in encoded for window in windows):
            self.unknown(tokenizer, [*texts, *(pairs or ())])

    def truncated(self, tokenizer: Tokenizer, encodings: Sequence[Encoding]) -> None:
        """Warn if texts were truncated."""
        self.cut(encodings, f"texts are longer than {tokenizer.max_length} tokens and were cut")

    def cut(self, encodings: Sequence[Encoding], note: str) -> None:
        """Warn if sequences were truncated; not twice of the same ones, as of dev rows that are scored every epoch."""
        cut = [tuple(encoding.ids) for encoding in encodings if encoding.dropped]
        key = hash((note, len(encodings), *cut))
        if cut and key != self._last_cut:
            logger.warning("%d of %d %s", len(cut), len(encodings), note)
            self._last_cut = key

    def unknown(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Warn if the vocabulary does not fit the texts; not twice of the same texts, as of dev rows."""
        note = unknown_note(tokenizer, texts)
        if note is not None and note != self._last_note:
            logger.warning("%s", note)
        self._last_note = note


Result = TypeVar("Result")


def adds_columns(*, trained: bool = False) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a prediction method take a data frame: it returns the frame with columns for its results.

    The decorated method has two more arguments, for frames: ``text`` names the column with the texts, and ``pair`` that
    of second texts. Arrays, series and iterators of texts are read as lists.

    Args:
        trained: Whether the columns that the model was trained on are read by default.
    """

    def decorate(method: Callable[..., Result]) -> Callable[..., Result]:
        @wraps(method)
        def call(
            model: Any, texts: Any, *arguments: Any, text: str | None = None, pair: str | None = None, **more: Any
        ) -> Any:
            if is_frame(texts):
                columns = _frame_columns(texts, model.task if trained else None, text, pair)
                return add_columns(texts, results_to_columns(method(model, *columns, *arguments, **more)))
            if (text or "text", pair) != ("text", None):
                raise RequestError(f"text is {text!r} and pair {pair!r}, which name columns of a data frame; give one")
            if not isinstance(texts, list | tuple | str):
                texts = texts_of(texts, "texts")
            return method(model, texts, *arguments, **more)

        return call

    return decorate


def _frame_columns(frame: Any, task: TaskLabels | None, text: str | None, pair: str | None) -> list[list[Any]]:
    """Return the texts of a frame and their pairs, if there are any; by default, of the columns that a task records."""
    if task is None:
        return read_columns(frame, [text or "text", *([] if pair is None else [pair])])
    # Where the texts are named, so are the pairs: a model of pairs may be given single texts.
    pair = task.pair_column if pair is None and text is None else pair
    return read_columns(frame, [text or task.text_column, *([] if pair is None else [pair])], trained=True)


def read_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    how: LongTexts = "cut",
    *,
    segments: int = 2,
) -> list[list[Encoding]]:
    """Return the sequences of each text or pair of texts; ``segments`` is how many the model distinguishes."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    if pairs is not None:
        _check_pairs(texts, pairs, segments)
    return encode_long(tokenizer, texts, pairs, how)


def require_pairs(compares: bool, pairs: Sequence[str] | None) -> None:
    """Raise ``RequestError`` if a model ``compares`` the two texts of a pair, but single texts were given."""
    if compares and pairs is None:
        raise RequestError("this model compares the two texts of a pair; give a second text for each (pair)")


def _check_pairs(texts: Sequence[str], pairs: Sequence[str], segments: int) -> None:
    if len(pairs) != len(texts):
        raise RequestError(f"{len(texts)} texts, but {len(pairs)} pairs; one for each was expected")
    if segments < 2:
        raise RequestError("this model tells no second text from a first (it has one segment); give single texts")


def read_blanks(tokenizer: Tokenizer, texts: Sequence[str], top: int) -> list[Encoding]:
    """Return the sequence of each text; all its ``[MASK]`` must fit. ``top`` words are wanted for each."""
    if isinstance(texts, str):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    return [find_blanks(tokenizer, text, top)[0] for text in texts]


def count_windows(tokenizer: Tokenizer, question: int, context: int) -> tuple[int, bool]:
    """Return the tokens of all windows of a question and its context, and whether the question is cut."""
    kept, places = plan_windows(tokenizer, question, context)
    special = tokenizer.max_length - tokenizer.content_length(2)
    return sum(kept + special + stop - start for start, stop in places), kept < question


def count_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the tokens of each sentence given as words; a word without any piece counts as one token."""
    return [sum(map(len, words)) for words in read_words(tokenizer, sentences)]


def count_corrected(tokenizer: Tokenizer, texts: Sequence[str], *, seen: bool) -> list[int]:
    """Return the maximum tokens computed to correct each text, ``seen`` as it stands or masked word by word."""
    return [
        sum(_passes(tokenizer, window, seen=seen) * len(window.encoding.ids) for window in windows)
        for windows in token_windows(tokenizer, texts)
    ]


def count_scored(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Return the tokens computed to score each text: a pass over its window for every token."""
    return [
        sum(len(window.places) * len(window.encoding.ids) for window in windows)
        for windows in token_windows(tokenizer, texts)
    ]


def _passes(tokenizer: Tokenizer, window: TokenWindow, *, seen: bool) -> int:
    """Return the forward passes of a window: one, or one per word; words of several pieces need more either way."""
    starts = tokenizer.word_starts(window.encoding.ids)
    stretches = word_spans(starts, window.encoding.marks)
    sizes = [stop - start for start, stop in stretches if start in window.places]
    alone = 0 if seen else sizes.count(1)
    return max(1, seen + alone + sum(1 + size for size in sizes if size > 1))


def require_head(bert: Backbone, head: HeadName) -> None:
    """Raise ``RequestError`` if the model lacks this head."""
    if head not in bert.heads:
        heads = ", ".join(bert.head_names) or "none"
        remedy = "load a folder that has one"
        kind = next((kind for kind in labelled_kinds() if kind.head == head), None)
        if kind is not None:
            remedy += f", or make one with cloze finetune {kind}"
        raise RequestError(f"this model has no {head!r} head (its heads: {heads}); {remedy}")


def require_task(bert: Backbone, task: TaskLabels | None, kind: TaskKind) -> TaskLabels:
    """Return what the outputs of the head mean; raise ``RequestError`` if it was trained for another kind."""
    assert kind.head is not None, "a kind that predicts has a head"
    require_head(bert, kind.head)
    if task is None or task.kind != kind.name:
        raise RequestError(f"this model was not trained to {kind}; its head does: {task.kind if task else 'nothing'}")
    return task
