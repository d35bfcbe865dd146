"""Tokenize the inputs of a request before they are queued, in a bounded pool of threads alongside the event loop.

There are two cases. If the operation takes whole texts (embed, fill, classify), each text is tokenized once, here, and
is queued together with its token sequences. If the operation splits its texts itself (tag, answer, choose, correct,
score, follows, inspect), the texts are queued unchanged and their tokens are only counted. The queue is bounded by
these counts.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import Histogram

from cloze.options import LongTexts
from cloze.predict.fill_mask import count_blanks, most_passes
from cloze.predict.preprocessing import (
    count_corrected,
    count_scored,
    count_windows,
    count_words,
    read_blanks,
    read_texts,
    require_pairs,
)
from cloze.serve.outcomes import OverloadedError
from cloze.serve.queue import FairShare
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import labelled_kinds
from cloze.tasks.tagging.sequences import split_characters

if TYPE_CHECKING:
    from cloze.serve.models import ServedModel

# Joint filling: how many times each blank is predicted again, given the words chosen for the others.
ROUNDS = 2
# Requests of at most this many characters are tokenized in the event loop, because using a thread would take longer.
INLINE_CHARACTERS = 500
# Maximum number of characters that may wait for the threads.
PENDING_CHARACTERS = 2_000_000
SPECIAL = 3  # [CLS] and two [SEP]


@dataclass(frozen=True)
class Usage:
    """The number of tokens of each input, of truncated inputs, and of ``[UNK]`` tokens."""

    lengths: list[int]
    truncated: int
    unknown: int

    @property
    def tokens(self) -> int:
        """Return the total number of tokens of all inputs."""
        return sum(self.lengths)


@dataclass(frozen=True)
class TokenizedInputs:
    """Inputs in the form that the operation expects, and their token counts."""

    inputs: Sequence[Any]
    usage: Usage


class TokenizerPool:
    """Two threads that tokenize or search, and a limit on the characters waiting for them, shared fairly by clients."""

    def __init__(self, seconds: Histogram, *, name: str = "tokenizer", inline: int = INLINE_CHARACTERS) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix=name)
        self._pending = FairShare(PENDING_CHARACTERS)
        self._seconds, self._inline = seconds, inline

    async def run(self, client: str, characters: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, in a thread unless its input is short.

        Args:
            client: The client of the request.
            characters: The size of its input.
            function: The function to call.
            *arguments: The arguments of the function.

        Raises:
            OverloadedError: Too many characters are waiting for the threads.
        """
        start = time.monotonic()
        if characters <= self._inline:
            result = function(*arguments)
        elif not self._pending.has_room(client, characters):
            raise OverloadedError("too many texts wait for tokenization or search; try again in 1 s", retry_after=1)
        else:
            self._pending.add(client, characters)
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
            finally:
                self._pending.add(client, -characters)
        self._seconds.observe(time.monotonic() - start)
        return result

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)


def task_kind(operation: str) -> TaskKind | None:
    """Return the first kind of task with this operation; None for operations of every model, such as embed."""
    return next((kind for kind in labelled_kinds() if kind.operation == operation), None)


def tokenize(
    served: "ServedModel",
    operation: str,
    inputs: Sequence[Any],
    parts: Sequence[Sequence[str]],
    options: Mapping[str, Any],
) -> TokenizedInputs:
    """Tokenize inputs, or count their tokens, as the operation requires.

    Args:
        served: The model.
        operation: What will be computed, such as "embed".
        inputs: The inputs of the operation.
        parts: The texts of each input.
        options: Options of the operation.
    """
    kind = task_kind(operation)
    if kind is not None and kind.inputs == "texts":
        require_pairs(served.compares_pairs, inputs[0][1])
        return _tokenize_texts(served, inputs, served.long_texts)
    if kind is not None and kind.inputs == "words":
        lengths = _count_tagged(served, inputs, worded=options["worded"])
        return TokenizedInputs(inputs, Usage(lengths, 0, _count_unknown(served, parts)))
    if operation == "rerank":
        return _tokenize_texts(served, inputs, served.long_texts)
    if operation == "embed":
        return _tokenize_texts(served, inputs, options.get("long_texts", "cut"))
    if operation == "fill":
        return _tokenize_blanks(served, inputs, options)
    if operation == "correct":
        lengths = count_corrected(served.tokenizer, inputs, seen=served.corrects_as_seen)
        return TokenizedInputs(inputs, Usage(lengths, 0, _count_unknown(served, parts)))
    if operation == "score":
        return TokenizedInputs(inputs, Usage(count_scored(served.tokenizer, inputs), 0, _count_unknown(served, parts)))
    return TokenizedInputs(inputs, _count_tokens(served, kind, parts))


def _tokenize_texts(served: "ServedModel", inputs: Sequence[Any], long_texts: LongTexts) -> TokenizedInputs:
    texts, pairs = zip(*inputs, strict=True)
    paired = None if pairs[0] is None else pairs
    windows = read_texts(served.tokenizer, texts, paired, long_texts, segments=served.segments)
    lengths = [sum(len(window.ids) for window in text) for text in windows]
    unknown = sum(window.unknown for text in windows for window in text)
    usage = Usage(lengths, sum(text[0].dropped > 0 for text in windows), unknown)
    return TokenizedInputs(list(zip(texts, windows, strict=True)), usage)


def _tokenize_blanks(served: "ServedModel", texts: Sequence[str], options: Mapping[str, Any]) -> TokenizedInputs:
    """Tokenize texts with blanks; joint filling counts the tokens of each of its forward passes."""
    sequences = read_blanks(served.tokenizer, texts, options["top"])
    lengths = [len(sequence.ids) for sequence in sequences]
    if options["joint"]:
        passes = [most_passes(count_blanks(text), options["top"], ROUNDS) for text in texts]
        lengths = [length * count for length, count in zip(lengths, passes, strict=True)]
    unknown = sum(sequence.unknown for sequence in sequences)
    usage = Usage(lengths, sum(sequence.dropped > 0 for sequence in sequences), unknown)
    return TokenizedInputs(list(zip(texts, sequences, strict=True)), usage)


def _count_tagged(served: "ServedModel", inputs: Sequence[Any], *, worded: bool) -> list[int]:
    """Count the tokens of texts, or of sentences given as words.

    Long ones count twice, because they are split into half-overlapping windows.
    """
    tokenizer = served.tokenizer
    if served.by_characters and not worded:
        inputs, worded = [split_characters(text)[0] for text in inputs], True
    counts = count_words(tokenizer, inputs) if worded else [len(ids) for ids in tokenizer.encode_ids(inputs)]
    lengths = [count + SPECIAL - 1 for count in counts]
    return [length if length <= served.longest else 2 * length for length in lengths]


def _count_tokens(served: "ServedModel", kind: TaskKind | None, parts: Sequence[Sequence[str]]) -> Usage:
    """Count the tokens in the forward passes of each input."""
    counts = map(len, served.tokenizer.encode_ids([text for texts in parts for text in texts]))
    counted = [_count_input(served, kind, [next(counts) for _ in texts]) for texts in parts]
    return Usage([length for length, _ in counted], sum(cut for _, cut in counted), _count_unknown(served, parts))


def _count_unknown(served: "ServedModel", parts: Sequence[Sequence[str]]) -> int:
    """Count the ``[UNK]`` tokens of texts."""
    ids = served.tokenizer.encode_ids([text for texts in parts for text in texts])
    return sum(own.count(served.tokenizer.unknown_id) for own in ids)


def _count_input(served: "ServedModel", kind: TaskKind | None, counts: Sequence[int]) -> tuple[int, bool]:
    """Return the number of tokens of one input, given those of its texts, and whether it is truncated."""
    length = sum(counts) + SPECIAL - (len(counts) == 1)
    if kind is not None and kind.inputs == "question":
        return count_windows(served.tokenizer, *counts)
    # Each option forms a separate sequence together with the prompt.
    limit = served.longest * (len(counts) // 2 if kind is not None and kind.inputs == "options" else 1)
    return min(length, limit), length > limit
