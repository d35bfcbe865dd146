"""Steps before the forward pass, which need no weights: encode texts, check inputs, and warn about truncation.

The service runs them in threads other than the one that computes. Also checks that a model has the required head.
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
from cloze.tasks.tagging.sequences import read_words
from cloze.text import Encoding, Tokenizer, encode_long
from cloze.text.encoding import word_spans
from cloze.text.oov.coverage import unknown_note

logger = logging.getLogger("cloze")


class InputWarnings:
    """Warnings about the texts of one model: how many were truncated, and how many tokens are ``[UNK]``."""

    def __init__(self) -> None:
        self._last_note: str | None = None
        self._last_cut: int | None = None  # a hash of the sequences in the last warning

    def check(
        self,
        tokenizer: Tokenizer,
        encoded: Sequence[Sequence[Encoding]],
        texts: Sequence[str],
        pairs: Sequence[str] | None,
    ) -> None:
        """Warn if texts were truncated or the vocabulary does not fit them; ``encoded`` has the sequences of each."""
        self.truncated(tokenizer, [windows[0] for windows in encoded])
        # Usually no token is [UNK]; then the slower check is skipped.
        if any(tokenizer.unknown_id in window.ids for windows in encoded for window in windows):
            self.unknown(tokenizer, [*texts, *(pairs or ())])

    def truncated(self, tokenizer: Tokenizer, encodings: Sequence[Encoding]) -> None:
        """Warn if texts were truncated."""
        self.cut(encodings, f"texts are longer than {tokenizer.max_length} tokens and were cut")

    def cut(self, encodings: Sequence[Encoding], note: str) -> None:
        """Warn if sequences were truncated, but only once for the same ones, such as dev rows evaluated every epoch."""
        cut = [tuple(encoding.ids) for encoding in encodings if encoding.dropped]
        key = hash((note, len(encodings), *cut))
        if cut and key != self._last_cut:
            logger.warning("%d of %d %s", len(cut), len(encodings), note)
            self._last_cut = key

    def unknown(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Warn if the vocabulary does not fit the texts, but only once for the same texts."""
        note = unknown_note(tokenizer, texts)
        if note is not None and note != self._last_note:
            logger.warning("%s", note)
        self._last_note = note


Result = TypeVar("Result")


def adds_columns(*, trained: bool = False) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a prediction method so that it accepts a data frame and returns it with columns for the results.

    The decorated method has two additional arguments for frames: ``text`` names the column with the texts, and ``pair``
    the column with the second texts. Arrays, series and iterators of texts are converted to lists.

    Args:
        trained: Whether the columns default to those that the model was trained on.
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
    """Return the texts of a frame and, if any, their pairs; columns default to those recorded in training."""
    if task is None:
        return read_columns(frame, [text or "text", *([] if pair is None else [pair])])
    # If only the text column is named, there is no pair column: a model of pairs also accepts single texts.
    pair = task.pair_column if pair is None and text is None else pair
    return read_columns(frame, [text or task.text_column, *([] if pair is None else [pair])], trained=True)


def put_in_front(prefix: str, texts: Sequence[str]) -> Sequence[str]:
    """Put a prefix in front of each text; values that are not texts are refused later."""
    if isinstance(texts, str):
        return texts
    return [prefix + text if isinstance(text, str) else text for text in texts]


def read_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    how: LongTexts = "cut",
    *,
    segments: int = 2,
) -> list[list[Encoding]]:
    """Return the sequences of each text or pair of texts; ``segments`` is the number of segments of the model."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    for number, text in enumerate([*texts, *(pairs or ())]):
        if not isinstance(text, str):
            raise RequestError(
                f"text {number % max(1, len(texts)) + 1} is {text!r:.40} ({type(text).__name__}); expected a str: "
                "leave out missing values"
            )
    if pairs is not None:
        _check_pairs(texts, pairs, segments)
    return encode_long(tokenizer, texts, pairs, how)


def require_pairs(compares: bool, pairs: Sequence[str] | None) -> None:
    """Raise ``RequestError`` if a model ``compares`` the two texts of a pair, but single texts were given."""
    if compares and pairs is None:
        raise RequestError("this model compares the two texts of a pair; give a second text for each (pair)")


def _check_pairs(texts: Sequence[str], pairs: Sequence[str], segments: int) -> None:
    if len(pairs) != len(texts):
        raise RequestError(f"{len(texts)} texts, but {len(pairs)} pairs; expected one for each")
    if segments < 2:
        raise RequestError(
            "this model has only one segment type and does not support pairs of texts; give single texts"
        )


def read_blanks(tokenizer: Tokenizer, texts: Sequence[str], top: int) -> list[Encoding]:
    """Return the sequence of each text; all its ``[MASK]`` must be within the maximum length."""
    if isinstance(texts, str):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    return [find_blanks(tokenizer, text, top)[0] for text in texts]


def count_windows(tokenizer: Tokenizer, question: int, context: int) -> tuple[int, bool]:
    """Return the number of tokens in all windows of a question and context, and whether the question is truncated."""
    kept, places = plan_windows(tokenizer, question, context)
    special = tokenizer.max_length - tokenizer.content_length(2)
    return sum(kept + special + stop - start for start, stop in places), kept < question


def count_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[int]:
    """Return the number of tokens of each sentence given as words; a word without pieces counts as one token."""
    return [sum(map(len, words)) for words in read_words(tokenizer, sentences)]


def count_corrected(tokenizer: Tokenizer, texts: Sequence[str], *, seen: bool) -> list[int]:
    """Return the maximum number of tokens computed to correct each text, unmasked (``seen``) or masked word by word."""
    return [
        sum(_passes(tokenizer, window, seen=seen) * len(window.encoding.ids) for window in windows)
        for windows in token_windows(tokenizer, texts)
    ]


def count_scored(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens computed to score each text: one pass over its window per token."""
    return [
        sum(len(window.places) * len(window.encoding.ids) for window in windows)
        for windows in token_windows(tokenizer, texts)
    ]


def _passes(tokenizer: Tokenizer, window: TokenWindow, *, seen: bool) -> int:
    """Return the number of forward passes of a window: one, or one per word, and more for words of several pieces."""
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
        if head == "mlm" and "lm" in bert.heads:
            remedy = (
                "it predicts the next word from those before it: use generate to continue a text, or score to compare "
                "texts"
            )
        if head == "lm":
            remedy = "load a model that predicts the next word, which cloze pretrain --recipe gpt trains"
            remedy += ", or predict words for [MASK] with fill" if "mlm" in bert.heads else ""
        raise RequestError(f"this model has no {head!r} head (its heads: {heads}); {remedy}")


def require_task(bert: Backbone, task: TaskLabels | None, kind: TaskKind) -> TaskLabels:
    """Return the labels of the head; raise ``RequestError`` if it was trained for another kind of task."""
    assert kind.head is not None, "a kind that predicts has a head"
    require_head(bert, kind.head)
    if task is None or task.kind != kind.name:
        raise RequestError(
            f"this model was not trained to {kind}; its head was trained for: {task.kind if task else 'nothing'}"
        )
    return task
