"""Texts -> sequences and their token counts, before they are queued: off the event loop, and bounded.

Texts that the model reads as they are become tokens here, once, and are queued as a text with its sequences. Operations
that split texts in their own way (words, contexts, options) get the texts, whose tokens are only counted here.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cloze.kinds import LongTexts
from cloze.predict.fill_mask import count_blanks, most_passes
from cloze.predict.inputs import count_corrected, count_windows, count_words, read_blanks, read_texts
from cloze.serve.errors import Overloaded
from cloze.serve.metrics import Metrics
from cloze.serve.models import Served
from cloze.serve.operations import ROUNDS, task_kind
from cloze.tasks.kind import TaskKind

# Texts of up to so many characters are tokenized without a thread: handing them over takes longer.
AT_ONCE = 500
# Characters that may be queued for the threads.
PENDING = 2_000_000
SPECIAL = 3  # [CLS] and two [SEP]


@dataclass(frozen=True)
class Usage:
    """Token count of each input, and how many inputs were truncated."""

    lengths: list[int]
    truncated: int

    @property
    def tokens(self) -> int:
        """Tokens of all inputs."""
        return sum(self.lengths)


@dataclass(frozen=True)
class Read:
    """Inputs as the model's thread takes them, and their token counts."""

    inputs: Sequence[Any]
    usage: Usage


class Reader:
    """Two threads, and a limit on what is queued for them."""

    def __init__(self, metrics: Metrics) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="reader")
        self._pending = 0
        self._seconds = metrics.reading_seconds

    async def run(self, characters: int, read: Any, *arguments: Any) -> Any:
        """Call a function that tokenizes so many characters."""
        start = time.monotonic()
        if characters <= AT_ONCE:
            result = read(*arguments)
        elif self._pending + characters > PENDING:
            raise Overloaded("too many texts wait to be read; try again in 1 s", retry_after=1)
        else:
            self._pending += characters
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._pool, read, *arguments)
            finally:
                self._pending -= characters
        self._seconds.observe(time.monotonic() - start)
        return result

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)


def read(
    served: Served,
    operation: str,
    inputs: Sequence[Any],
    parts: Sequence[Sequence[str]],
    options: Mapping[str, Any],
) -> Read:
    """Tokenize inputs, each of which consists of some texts, or count their tokens, as an operation needs them."""
    kind = task_kind(operation)
    if kind is not None and kind.inputs == "texts":
        return _read_texts(served, inputs, served.long_texts)
    if kind is not None and kind.inputs == "words":
        return Read(inputs, Usage(_count_tagged(served, inputs, worded=options["worded"]), 0))
    if operation == "embed":
        return _read_texts(served, inputs, options.get("long_texts", "cut"))
    if operation == "fill":
        return _read_blanks(served, inputs, options)
    if operation == "correct":
        lengths = count_corrected(served.tokenizer, inputs, seen=served.corrects_as_seen)
        return Read(inputs, Usage(lengths, 0))
    return Read(inputs, _count(served, kind, parts))


def _read_texts(served: Served, inputs: Sequence[Any], long_texts: LongTexts) -> Read:
    texts, pairs = zip(*inputs, strict=True)
    paired = None if pairs[0] is None else pairs
    windows = read_texts(served.tokenizer, texts, paired, long_texts, segments=served.segments)
    lengths = [sum(len(window.ids) for window in text) for text in windows]
    usage = Usage(lengths, sum(text[0].dropped > 0 for text in windows))
    return Read(list(zip(texts, windows, strict=True)), usage)


def _read_blanks(served: Served, texts: Sequence[str], options: Mapping[str, Any]) -> Read:
    """Tokenize texts with blanks; blanks that are filled together take several passes."""
    sequences = read_blanks(served.tokenizer, texts, options["top"])
    lengths = [len(one.ids) for one in sequences]
    if options["joint"]:
        passes = [most_passes(count_blanks(text), options["top"], ROUNDS) for text in texts]
        lengths = [length * times for length, times in zip(lengths, passes, strict=True)]
    usage = Usage(lengths, sum(one.dropped > 0 for one in sequences))
    return Read(list(zip(texts, sequences, strict=True)), usage)


def _count_tagged(served: Served, inputs: Sequence[Any], *, worded: bool) -> list[int]:
    """Return the tokens of texts, or of sentences given as words; long ones are read in half-overlapping windows."""
    tokenizer = served.tokenizer
    counts = count_words(tokenizer, inputs) if worded else [len(ids) for ids in tokenizer.encode_ids(inputs)]
    lengths = [count + SPECIAL - 1 for count in counts]
    return [length if length <= served.longest else 2 * length for length in lengths]


def _count(served: Served, kind: TaskKind | None, parts: Sequence[Sequence[str]]) -> Usage:
    """Count the tokens that are computed for inputs."""
    counts = iter(served.tokenizer.encode_ids([text for texts in parts for text in texts]))
    weighed = [_weigh(served, kind, [len(next(counts)) for _ in texts]) for texts in parts]
    return Usage([length for length, _ in weighed], sum(cut for _, cut in weighed))


def _weigh(served: Served, kind: TaskKind | None, counts: Sequence[int]) -> tuple[int, bool]:
    """Return the tokens computed for texts of these token counts, and whether some are left out."""
    length = sum(counts) + SPECIAL - (len(counts) == 1)
    if kind is not None and kind.inputs == "question":
        return count_windows(served.tokenizer, *counts)
    # Options are sequences of their own.
    limit = served.longest * (len(counts) // 2 if kind is not None and kind.inputs == "options" else 1)
    return min(length, limit), length > limit
