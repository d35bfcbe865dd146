"""The operations of a model: for each, the function that computes a batch of tokenized inputs.

The batcher calls ``ModelWorker.run_batch`` in the model's thread. It switches to the adapter and calls
``run_operation``, which finds the operation by name; operations call methods of ``Model``. A batch may contain inputs
of several requests; the result of an input does not depend on the rest of its batch. Results are JSON-able, except
vectors, which stay arrays until the format of the response is known. ``tokenization`` decides the form of the inputs.
The operations of fine-tuned models come from the table of task kinds.

``AttentionCache`` stores attention weights for the page at ``/inspect``: the first response describes a text, later
ones contain the weights of one layer each. Dimensions: L layers, A heads, T tokens.
"""

import math
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.inspect.views.data import LEVELS, build_facts, quantization_error, to_levels, trace_forward
from cloze.predict.fill_mask import fill_blanks
from cloze.predict.model import Model
from cloze.predict.preprocessing import read_texts
from cloze.predict.results import Score
from cloze.serve.batcher import Check
from cloze.serve.outcomes import ModelFailedError, NotFoundError
from cloze.serve.queue import BatchKey
from cloze.serve.tokenization import ROUNDS, task_kind
from cloze.tasks.registry import labelled_kinds

# Maximum number of attention weights of a text. 24 layers of 16 heads at 512 tokens have 100 million: 400 MB in fp32.
MOST_WEIGHTS = 128_000_000
# Maximum size of the cache in bytes; the oldest entries are evicted.
CACHE_BYTES = 256_000_000
ENTRY_BYTES = 1000  # estimated overhead per entry: its name, the header of the array, and the cache itself


@dataclass(frozen=True)
class AttentionRecord:
    """The data and the quantized attention weights of one text."""

    facts: dict[str, Any]
    steps: NDArray[np.uint8]  # (L, A, T, T)


def deflate_layer(steps: NDArray[np.uint8], number: int) -> bytes:
    """Return the weights of one layer, deflated at the fastest level, since a client waits for them."""
    return zlib.compress(steps[number].tobytes(), 1)


def view_texts(model: Model, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001 (as all)
    """Run a model on texts or pairs, one at a time, and return their attention."""
    return [_view(model, text, pair) for text, pair in inputs]


def _view(model: Model, text: str, pair: str | None) -> AttentionRecord | ModelFailedError:
    config = model.bert.config
    tokens = len(model.tokenizer(text, pair, read_mask=True).ids)
    weights = config.layers * config.heads * tokens**2
    if weights > MOST_WEIGHTS:
        raise RequestError(
            f"{tokens} tokens have {weights:,} attention weights, but at most {MOST_WEIGHTS:,} are allowed; give a "
            f"shorter text"
        )
    trace = trace_forward(model, text, pair)
    if not (np.isfinite(trace.attention.weights).all() and trace.states[-1].isfinite().all()):
        return ModelFailedError("the model gave no finite numbers for this; check its training")
    steps = to_levels(trace.attention.weights, LEVELS[0])
    return AttentionRecord(
        build_facts(trace) | {"levels": LEVELS[0], "error": quantization_error(1.0, LEVELS[0])}, steps
    )


class AttentionCache:
    """The attention weights of recent texts, which pages fetch layer by layer.

    The least recently used texts are evicted. Each text has a random name that other clients cannot guess.
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
            raise NotFoundError("this text is no longer cached; submit it again", "forgotten")
        if not (layer.isascii() and layer.isdecimal() and len(layer) < 5 and int(layer) < len(steps)):
            raise NotFoundError(f"no layer {layer[:20]!r}; expected 0 to {len(steps) - 1}", "unknown_layer")
        self._steps.move_to_end(name)
        return steps, int(layer)


def _size(steps: NDArray[np.uint8]) -> int:
    """Return the memory of an entry in bytes; for a view, the memory of the underlying array."""
    owner = steps if steps.base is None else steps.base
    return getattr(owner, "nbytes", steps.nbytes) + ENTRY_BYTES


Options = Mapping[str, Any]
NOT_FINITE = "the model gave no finite numbers for this; check its training"
EMBED = "embed"
SEARCH = "search"  # of the model of an index: computed as EMBED
RERANK = "rerank"  # of cross-encoders
PROBE_TEXT = "Are you there?"
# With a pooling that every model supports, regardless of what its folder specifies.
PROBE = BatchKey(EMBED, None, (("pooling", "mean"),))


class ModelWorker:
    """Computes with one base model in one thread. No other thread uses the model, so adapters can be switched."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._adapter: str | None = None

    def run_batch(self, key: BatchKey, inputs: Sequence[Any], check: Check) -> list[Any]:
        """Switch to the adapter of the batch and compute its results."""

        def check_and_return() -> None:
            check()
            self._use(key.adapter)  # the check may have computed another batch meanwhile

        self._use(key.adapter)
        with self._model.before_each_batch(check_and_return):
            return run_operation(self._model, key, inputs)

    def probe(self) -> None:
        """Compute one embedding; raise if the model fails."""
        (windows,) = read_texts(self._model.tokenizer, [PROBE_TEXT])
        (result,) = self.run_batch(PROBE, [(PROBE_TEXT, windows)], lambda: None)
        if isinstance(result, Exception):
            raise result

    def _use(self, adapter: str | None) -> None:
        if adapter != self._adapter:
            self._model.use(adapter)
            self._adapter = adapter


def run_operation(model: Model, key: BatchKey, inputs: Sequence[Any]) -> list[Any]:
    """Compute the results of inputs that share a key.

    Returns:
        One result per input; a ``ModelFailedError`` in place of a result that is not finite.
    """
    operation = OPERATIONS.get(key.operation)
    if operation is None:
        results = _predict(model, key.operation, inputs, dict(key.options))
    else:
        results = operation(model, inputs, dict(key.options))
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


def _rerank(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:  # noqa: ARG001 (as all)
    logits = model.logits_encoded(_sequences(inputs))[:, 0].astype(np.float64)
    scores: list[float] = (1 / (1 + np.exp(-logits))).tolist()
    return scores


def _fill(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    if options["joint"]:
        jointly_filled = [model.fill_together(text, options["top"], ROUNDS) for text, _ in inputs]
        return [[asdict(filled) for filled in candidates] for candidates in jointly_filled]
    filled_texts = fill_blanks(model, _sequences(inputs), options["top"])
    return [[[word._asdict() for word in blank] for blank in blanks] for blanks in filled_texts]


def _predict(model: Model, operation: str, inputs: Sequence[Any], options: Options) -> list[Any]:
    """Predict with a fine-tuned head; if several kinds share the operation, with the model's own kind."""
    kind = model.kind
    if kind is None or kind.operation != operation:
        kind = task_kind(operation)
    assert kind is not None, "every operation is in OPERATIONS or belongs to a kind"
    assert kind.respond is not None, "a kind with an operation has a function that computes it"
    return kind.respond(model, _sequences(inputs) if kind.inputs == "texts" else inputs, options)


def _correct(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    corrector = model.corrector.varied(options.get("threshold"), options.get("protected", ()))
    return [asdict(corrected) | {"errors": corrected.errors} for corrected in corrector.correct(inputs)]


def _score(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    return [_describe_score(score, tokens=options["tokens"]) for score in model.score(inputs)]


def _describe_score(score: Score, *, tokens: bool) -> dict[str, Any]:
    """Return a score as JSON; for a text without tokens, perplexities are None instead of a perfect 1."""
    body: dict[str, Any] = {"log_probability": score.total}
    for name in ("perplexity", "loss_per_word", "loss_per_character"):
        body[name] = getattr(score, name) if score.tokens else None
    if tokens:
        pairs = zip(score.tokens, score.log_probabilities, strict=True)
        body["tokens"] = [{"token": token, "log_probability": value} for token, value in pairs]
    return body


def _follows(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:  # noqa: ARG001 (as all)
    firsts, seconds = zip(*inputs, strict=True)
    return list(model.follows_all(firsts, seconds))


def _sequences(inputs: Sequence[Any]) -> list[Any]:
    """Return the token sequences of inputs of the form (text, sequences)."""
    return [sequences for _, sequences in inputs]


OPERATIONS: dict[str, Callable[[Model, Sequence[Any], Options], list[Any]]] = {
    EMBED: _embed,
    RERANK: _rerank,
    "fill": _fill,
    "correct": _correct,
    "score": _score,
    "follows": _follows,
    "inspect": view_texts,
}
# Heads of which these operations require one; the others need only the encoder.
_HEADS = {"fill": {"mlm"}, "correct": {"mlm"}, "score": {"mlm", "lm"}, "follows": {"nsp"}}


def abilities(model: Model) -> frozenset[str]:
    """Return the operations that a model supports with its heads."""
    general = {name for name in OPERATIONS if name not in _HEADS or _HEADS[name] & set(model.heads)}
    if not model.is_cross_encoder:
        general.discard(RERANK)
    return frozenset(general | {kind.operation for kind in labelled_kinds() if kind.head in model.heads})
