"""The attention of a text as the service keeps it: facts to be told at once, and weights to be fetched layer by layer.

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
from cloze.serve.errors import Failed, Unknown

# 24 layers of 16 heads at 512 tokens are a hundred million, which take 400 MB while they are computed.
MOST_WEIGHTS = 128_000_000
# Of all texts that were looked at, as bytes; the oldest are forgotten.
KEPT_BYTES = 256_000_000


@dataclass(frozen=True)
class Seen:
    """A text that was looked at."""

    facts: dict[str, Any]
    steps: NDArray[np.uint8]  # (L, A, T, T)

    def layer(self, number: int) -> bytes:
        """The weights of one layer, deflated: quickly rather than well, since somebody waits."""
        return zlib.compress(self.steps[number].tobytes(), 1)


def view_texts(model: Model, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001 (as all)
    """Run a model on texts or pairs, one after another."""
    return [_view(model, text, pair) for text, pair in inputs]


def _view(model: Model, text: str, pair: str | None) -> Seen | Failed:
    config = model.bert.config
    tokens = len(model.tokenizer(text, pair, read_mask=True).ids)
    weights = config.layers * config.heads * tokens**2
    if weights > MOST_WEIGHTS:
        raise RequestError(
            f"{tokens} tokens have {weights:,} weights, of at most {MOST_WEIGHTS:,}; give a shorter text"
        )
    looked = trace_forward(model, text, pair)
    if not (np.isfinite(looked.attention.weights).all() and looked.states[-1].isfinite().all()):
        return Failed("the model gave no finite numbers for this; check its training")
    steps = to_levels(looked.attention.weights, LEVELS[0])
    return Seen(build_facts(looked) | {"levels": LEVELS[0], "error": quantization_error(1.0, LEVELS[0])}, steps)


class Views:
    """The texts that were looked at last, each by a name that nobody can guess."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._seen = most, OrderedDict[str, Seen]()

    def keep(self, seen: Seen) -> str:
        """Keep one and return its name; the oldest go, as many as it takes."""
        name = secrets.token_urlsafe(16)
        self._seen[name] = seen
        while len(self._seen) > 1 and sum(one.steps.nbytes for one in self._seen.values()) > self._most:
            self._seen.popitem(last=False)
        return name

    def find(self, name: str, layer: str) -> tuple[Seen, int]:
        """The text with this name, and a layer of its that there is."""
        seen = self._seen.get(name)
        if seen is None:
            raise Unknown("this text is no longer kept; look at it again", "forgotten")
        if not (layer.isascii() and layer.isdecimal() and len(layer) < 5 and int(layer) < len(seen.steps)):
            raise Unknown(f"no layer {layer[:20]!r}; 0 to {len(seen.steps) - 1} were expected", "unknown_layer")
        self._seen.move_to_end(name)
        return seen, int(layer)
