"""What a model can compute, each operation as a function from a list of inputs to a list of results.

Inputs of several requests are computed together, as ``tokenization.py`` makes them: a result does not depend on its
neighbours. Results are JSON-able, except vectors, which stay arrays until the response's format is known. The
operations of fine-tuned models come from the table of task kinds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cloze.predict.fill_mask import fill_blanks
from cloze.predict.model import Model
from cloze.serve.attention_views import view_texts
from cloze.serve.errors import Failed
from cloze.serve.queue import Kind
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import labelled_kinds

Options = Mapping[str, Any]
NOT_FINITE = "the model gave no finite numbers for this; check its training"
# How often each of several blanks is filled again when they are filled together.
ROUNDS = 2


def compute(model: Model, kind: Kind, inputs: Sequence[Any]) -> list[Any]:
    """Return the results of inputs of one kind; a ``Failed`` in place of a result with numbers that are not finite."""
    operation = OPERATIONS.get(kind.operation)
    if operation is None:
        results = _predict(model, kind.operation, inputs, dict(kind.options))
    else:
        results = operation(model, inputs, dict(kind.options))
    return [result if is_finite(result) else Failed(NOT_FINITE) for result in results]


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
