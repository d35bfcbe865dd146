"""The attention of a text as the service keeps it: facts for the first response, weights for later requests.

Dimensions: L layers, A heads, T tokens.
"""

import secrets
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.inspect.views.data import LEVELS, build_facts, quantization_error, to_levels, trace_forward
from cloze.predict.model import Model
from cloze.serve.errors import ModelFailedError, NotFoundError

# 24 layers of 16 heads at 512 tokens have a hundred million weights: 400 MB while they are computed.
MOST_WEIGHTS = 128_000_000
# Maximum size of all that is cached in bytes; the oldest are evicted.
CACHE_BYTES = 256_000_000
ENTRY_BYTES = 1000  # of an entry beside its weights: its name, the array's header, its place in the cache


@dataclass(frozen=True)
class AttentionRecord:
    """The facts and the quantized weights of one text."""

    facts: dict[str, Any]
    steps: NDArray[np.uint8]  # (L, A, T, T)


def deflate_layer(steps: NDArray[np.uint8], number: int) -> bytes:
    """Return the weights of one layer, deflated with the fastest compression, since a client waits."""
    return zlib.compress(steps[number].tobytes(), 1)


def view_texts(model: Model, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001 (as all)
    """Run a model on texts or pairs, one after another."""
    return [_view(model, text, pair) for text, pair in inputs]


def _view(model: Model, text: str, pair: str | None) -> AttentionRecord | ModelFailedError:
    config = model.bert.config
    tokens = len(model.tokenizer(text, pair, read_mask=True).ids)
    weights = config.layers * config.heads * tokens**2
    if weights > MOST_WEIGHTS:
        raise RequestError(
            f"{tokens} tokens have {weights:,} weights, of at most {MOST_WEIGHTS:,}; give a shorter text"
        )
    trace = trace_forward(model, text, pair)
    if not (np.isfinite(trace.attention.weights).all() and trace.states[-1].isfinite().all()):
        return ModelFailedError("the model gave no finite numbers for this; check its training")
    steps = to_levels(trace.attention.weights, LEVELS[0])
    return AttentionRecord(
        build_facts(trace) | {"levels": LEVELS[0], "error": quantization_error(1.0, LEVELS[0])}, steps
    )


class AttentionCache:
    """The weights of the latest texts, which are fetched layer by layer; the facts are sent once, and not kept.

    The least recently used texts are evicted; each text has a random name that cannot be guessed.
    """

    def __init__(self, most: int = CACHE_BYTES) -> None:
        self._most, self._steps, self._bytes = most, OrderedDict[str, NDArray[np.uint8]](), 0

    def add(self, record: AttentionRecord) -> str:
        """Add the weights of a text, evict the oldest beyond the size limit, and return the text's name."""
        name = secrets.token_urlsafe(16)
        self._steps[name] = record.steps
        self._bytes += _size(record.steps)
        while len(self._steps) > 1 and self._bytes > self._most:
            _, evicted = self._steps.popitem(last=False)
            self._bytes -= _size(evicted)
        return name

    def find(self, name: str, layer: str) -> tuple[NDArray[np.uint8], int]:
        """Return the weights of the text with this name, (L, A, T, T), and the checked number of a layer."""
        steps = self._steps.get(name)
        if steps is None:
            raise NotFoundError("this text is no longer kept; look at it again", "forgotten")
        if not (layer.isascii() and layer.isdecimal() and len(layer) < 5 and int(layer) < len(steps)):
            raise NotFoundError(f"no layer {layer[:20]!r}; 0 to {len(steps) - 1} were expected", "unknown_layer")
        self._steps.move_to_end(name)
        return steps, int(layer)


def _size(steps: NDArray[np.uint8]) -> int:
    """Return the bytes that an entry keeps: those of the array that owns the memory, if this is a view of one."""
    owner = steps if steps.base is None else steps.base
    return getattr(owner, "nbytes", steps.nbytes) + ENTRY_BYTES
