"""What a model can compute: how the inputs of each operation are tokenized, and the function that computes them.

Tokenizing happens before inputs are queued, off the event loop and bounded. Texts that the model reads as they are
become tokens once and are queued as a text with its sequences; operations that split texts in their own way (words,
contexts, options) get the texts, whose tokens are only counted.

Computing happens in the model's thread. Inputs of several requests are computed together: a result does not depend on
its neighbours. Results are JSON-able, except vectors, which stay arrays until the response's format is known.

The operations of fine-tuned models come from the table of task kinds.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloze.options import LongTexts
from cloze.predict.fill_mask import count_blanks, fill_blanks, most_passes
from cloze.predict.model import Model
from cloze.predict.preprocessing import count_corrected, count_windows, count_words, read_blanks, read_texts
from cloze.serve.attention_views import view_texts
from cloze.serve.batcher import BatchKey
from cloze.serve.errors import ModelFailedError, OverloadedError
from cloze.serve.metrics import Metrics
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import labelled_kinds

if TYPE_CHECKING:
    from cloze.serve.models import ServedModel

Options = Mapping[str, Any]
NOT_FINITE = "the model gave no finite numbers for this; check its training"
# How often each of several blanks is filled again when they are filled together.
ROUNDS = 2

# Texts of up to so many characters are tokenized without a thread: handing them over takes longer.
AT_ONCE = 500
# Characters that may be queued for the threads.
PENDING = 2_000_000
SPECIAL = 3  # [CLS] and two [SEP]


def compute(model: Model, kind: BatchKey, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of inputs with one key; a ``ModelFailedError`` in place of a result that is not finite."""
    operation = OPERATIONS.get(kind.operation)
    if operation is None:
        results = _predict(model, kind.operation, inputs, dict(kind.options))
    else:
        results = operation(model, inputs, dict(kind.options))
    return [result if is_finite(result) else ModelFailedError(NOT_FINITE) for result in results]


def is_finite(result: Any) -> bool:
    """Return whether all numbers of a result are finite."""
    if isinstance(result, np.ndarray):
        return bool(np.isfinite(result).all())
    if isinstance(result, Mapping):
        return all(map(is_finite, result.values()))
    if isinstance(result, list | tuple):
        return all(map(is_finite, result))
    return not isinstance(result, float) or math.isfinite(result)


def _embed(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    return list(model.embed_encoded(_sequences(inputs), options.get("pooling"), options.get("layer", -1)))


def _fill(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    if options["joint"]:
        ways = [model.fill_together(text, options["top"], ROUNDS) for text, _ in inputs]
        return [[asdict(way) for way in found] for found in ways]
    found = fill_blanks(model, _sequences(inputs), options["top"])
    return [[[word._asdict() for word in blank] for blank in blanks] for blanks in found]


def _predict(model: Model, operation: str, inputs: Sequence[Any], options: Options) -> list[Any]:
    """Predict with a fine-tuned head, by the model's own kind of task where several share an operation."""
    kind = model.kind
    if kind is None or kind.operation != operation:
        kind = task_kind(operation)
    assert kind is not None, "an operation is of the model itself or of a kind"
    assert kind.respond is not None, "a kind that has an operation responds to it"
    return kind.respond(model, _sequences(inputs) if kind.inputs == "texts" else inputs, options)


def _correct(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    corrector = model.corrector.varied(options.get("threshold"), options.get("protected", ()))
    return [asdict(one) | {"errors": one.errors} for one in corrector.correct(inputs)]


def _sequences(inputs: Sequence[Any]) -> list[Any]:
    """(text, its sequences) -> the latter."""
    return [read for _, read in inputs]


OPERATIONS: dict[str, Callable[[Model, Sequence[Any], Options], list[Any]]] = {
    "embed": _embed,
    "fill": _fill,
    "correct": _correct,
    "inspect": view_texts,
}
_HEADS = {"fill": "mlm", "correct": "mlm"}


def task_kind(operation: str) -> TaskKind | None:
    """Return the first kind of task that has this operation; None if it is one of the model itself."""
    return next((kind for kind in labelled_kinds() if kind.operation == operation), None)


def abilities(model: Model) -> frozenset[str]:
    """Return the operations that a model's heads allow."""
    own = {name for name in OPERATIONS if name not in _HEADS or _HEADS[name] in model.heads}
    return frozenset(own | {kind.operation for kind in labelled_kinds() if kind.head in model.heads})


# -- tokenizing, before inputs are queued ------------------------------------------------------------------------------


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
            raise OverloadedError("too many texts wait to be read; try again in 1 s", retry_after=1)
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
    served: "ServedModel",
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


def _read_texts(served: "ServedModel", inputs: Sequence[Any], long_texts: LongTexts) -> Read:
    texts, pairs = zip(*inputs, strict=True)
    paired = None if pairs[0] is None else pairs
    windows = read_texts(served.tokenizer, texts, paired, long_texts, segments=served.segments)
    lengths = [sum(len(window.ids) for window in text) for text in windows]
    usage = Usage(lengths, sum(text[0].dropped > 0 for text in windows))
    return Read(list(zip(texts, windows, strict=True)), usage)


def _read_blanks(served: "ServedModel", texts: Sequence[str], options: Mapping[str, Any]) -> Read:
    """Tokenize texts with blanks; blanks that are filled together take several passes."""
    sequences = read_blanks(served.tokenizer, texts, options["top"])
    lengths = [len(one.ids) for one in sequences]
    if options["joint"]:
        passes = [most_passes(count_blanks(text), options["top"], ROUNDS) for text in texts]
        lengths = [length * times for length, times in zip(lengths, passes, strict=True)]
    usage = Usage(lengths, sum(one.dropped > 0 for one in sequences))
    return Read(list(zip(texts, sequences, strict=True)), usage)


def _count_tagged(served: "ServedModel", inputs: Sequence[Any], *, worded: bool) -> list[int]:
    """Return the tokens of texts, or of sentences given as words; long ones are read in half-overlapping windows."""
    tokenizer = served.tokenizer
    counts = count_words(tokenizer, inputs) if worded else [len(ids) for ids in tokenizer.encode_ids(inputs)]
    lengths = [count + SPECIAL - 1 for count in counts]
    return [length if length <= served.longest else 2 * length for length in lengths]


def _count(served: "ServedModel", kind: TaskKind | None, parts: Sequence[Sequence[str]]) -> Usage:
    """Count the tokens that are computed for inputs."""
    counts = iter(served.tokenizer.encode_ids([text for texts in parts for text in texts]))
    weighed = [_weigh(served, kind, [len(next(counts)) for _ in texts]) for texts in parts]
    return Usage([length for length, _ in weighed], sum(cut for _, cut in weighed))


def _weigh(served: "ServedModel", kind: TaskKind | None, counts: Sequence[int]) -> tuple[int, bool]:
    """Return the tokens computed for texts of these token counts, and whether some are left out."""
    length = sum(counts) + SPECIAL - (len(counts) == 1)
    if kind is not None and kind.inputs == "question":
        return count_windows(served.tokenizer, *counts)
    # Options are sequences of their own.
    limit = served.longest * (len(counts) // 2 if kind is not None and kind.inputs == "options" else 1)
    return min(length, limit), length > limit
