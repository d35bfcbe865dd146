"""Texts -> how many tokens they have, before they may wait: off the event loop, and bounded."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cloze.serve.library import Served
from cloze.serve.metrics import Metrics
from cloze.serve.refusals import Overloaded

# Characters that are read at once, without a thread: the way there and back takes longer than such a text.
AT_ONCE = 2000
# Characters that may be in the hands of the threads.
PENDING = 2_000_000
# What is read whole, in windows; of all else, no more than one sequence.
WHOLE = {"answer", "tag", "correct"}
SPECIAL = 3  # [CLS] and two [SEP]


@dataclass(frozen=True)
class Usage:
    """The tokens of each input, and how many inputs were cut."""

    lengths: list[int]
    truncated: int

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum(self.lengths)


class Reader:
    """Two threads and a bound on what waits for them."""

    def __init__(self, metrics: Metrics) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="reader")
        self._pending = 0
        self._seconds = metrics.reading_seconds

    async def run(self, characters: int, read: Any, *arguments: Any) -> Any:
        """Call a function that reads so many characters."""
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
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


def measure(served: Served, operation: str, parts: Sequence[Sequence[str]]) -> Usage:
    """Count the tokens of inputs, each of which consists of some texts."""
    counts = iter(served.tokenizer.encode_ids([text for texts in parts for text in texts]))
    whole = operation in WHOLE or (operation == "classify" and served.windows)
    lengths, truncated = [], 0
    for texts in parts:
        length = sum(len(next(counts)) for _ in texts) + SPECIAL - (len(texts) == 1)
        # Options are sequences of their own.
        limit = served.longest * (len(texts) // 2 if operation == "choose" else 1)
        truncated += not whole and length > limit
        # To correct a text, each of its tokens is hidden in turn.
        times = min(length, limit) if operation == "correct" else 1
        lengths.append(times * length if whole else min(length, limit))
    return Usage(lengths, truncated)
