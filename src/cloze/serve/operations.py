"""The operations of a model: for each, the function that computes a batch of tokenized inputs.

``ModelWorker`` runs them in the model's thread. A batch mixes the inputs of several requests; the result of an input
does not depend on the rest of its batch. Results are JSON-able, except vectors, which stay arrays until the response's
format is known. What the inputs look like is decided in ``tokenization``.

The operations of fine-tuned models come from the table of task kinds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cloze.predict.fill_mask import fill_blanks
from cloze.predict.model import Model
from cloze.predict.preprocessing import read_texts
from cloze.predict.results import Score
from cloze.serve.attention_views import view_texts
from cloze.serve.batcher import Check
from cloze.serve.errors import ModelFailedError
from cloze.serve.queue import BatchKey
from cloze.serve.tokenization import ROUNDS, task_kind
from cloze.tasks.registry import labelled_kinds

Options = Mapping[str, Any]
NOT_FINITE = "the model gave no finite numbers for this; check its training"
EMBED = "embed"
PROBE_TEXT = "Are you there?"
# With a pooling that every model supports, whatever its folder specifies.
PROBE = BatchKey(EMBED, None, (("pooling", "mean"),))


class ModelWorker:
    """Computes with one base model, in one thread. No other thread uses the model, so adapters can be switched."""

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


def _fill(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    if options["joint"]:
        jointly_filled = [model.fill_together(text, options["top"], ROUNDS) for text, _ in inputs]
        return [[asdict(filled) for filled in candidates] for candidates in jointly_filled]
    filled_texts = fill_blanks(model, _sequences(inputs), options["top"])
    return [[[word._asdict() for word in blank] for blank in blanks] for blanks in filled_texts]


def _predict(model: Model, operation: str, inputs: Sequence[Any], options: Options) -> list[Any]:
    """Predict with a fine-tuned head, by the model's own kind of task if several kinds share the operation."""
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
    """Return a score as JSON; a text without tokens has no perplexity, which would be the best of all."""
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
    """Return the token sequences of inputs that are (text, its sequences)."""
    return [sequences for _, sequences in inputs]


OPERATIONS: dict[str, Callable[[Model, Sequence[Any], Options], list[Any]]] = {
    EMBED: _embed,
    "fill": _fill,
    "correct": _correct,
    "score": _score,
    "follows": _follows,
    "inspect": view_texts,
}
# Heads that these operations require; the others need the encoder alone.
_HEADS = {"fill": "mlm", "correct": "mlm", "score": "mlm", "follows": "nsp"}


def abilities(model: Model) -> frozenset[str]:
    """Return the operations that a model's heads allow."""
    general = {name for name in OPERATIONS if name not in _HEADS or _HEADS[name] in model.heads}
    return frozenset(general | {kind.operation for kind in labelled_kinds() if kind.head in model.heads})
