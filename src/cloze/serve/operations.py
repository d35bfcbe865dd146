"""What a model can be asked for, each as a function from a list of inputs to a list of results.

Inputs of several requests come together, as ``reading.py`` makes them: a result does not depend on its neighbours.
Results are what goes into JSON, except vectors, which stay arrays until it is known in which form they are wanted.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cloze.errors import RequestError
from cloze.predict.fill_mask import fill_blanks
from cloze.predict.labels import labels_that_hold, likeliest_labels
from cloze.predict.model import Model
from cloze.serve.attention_views import view_texts
from cloze.serve.errors import Failed
from cloze.serve.queue import Kind

Options = Mapping[str, Any]
NOT_FINITE = "the model gave no finite numbers for this; check its training"
# How often each of several blanks is asked about again when they are filled together.
ROUNDS = 2


def compute(model: Model, kind: Kind, inputs: Sequence[Any]) -> list[Any]:
    """The results of inputs of one kind; instead of one that is not all finite numbers, a ``Failed``."""
    return [
        result if is_finite(result) else Failed(NOT_FINITE)
        for result in OPERATIONS[kind.operation](model, inputs, dict(kind.options))
    ]


def is_finite(result: Any) -> bool:
    """Whether all numbers of a result are numbers."""
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


def _classify(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:  # noqa: ARG001 (as all here)
    rows, task = model.logits_encoded(_sequences(inputs)), model.task
    if task is None:
        raise RequestError("this model's folder does not say what its labels mean; fine-tune it with cloze")
    if task.kind == "regress":
        return [{"value": float(value)} for value in rows[:, 0]]
    found = labels_that_hold(task, rows) if task.kind == "multilabel" else likeliest_labels(task, rows)
    return [asdict(one) for one in found]


def _tag(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:  # noqa: ARG001 (as all here)
    return [asdict(one) for one in model.tag(inputs)]


def _answer(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    questions, contexts = zip(*inputs, strict=True)
    return [[asdict(one) for one in found] for found in model.answer_all(questions, contexts, options.get("top", 1))]


def _choose(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:  # noqa: ARG001 (as all here)
    prompts, choices = zip(*inputs, strict=True)
    return [[asdict(one) for one in ranked] for ranked in model.choose_all(prompts, choices)]


def _correct(model: Model, inputs: Sequence[Any], options: Options) -> list[Any]:
    corrector = model.corrector.varied(options.get("threshold"), options.get("protected", ()))
    return [asdict(one) | {"errors": one.errors} for one in corrector.correct(inputs)]


def _sequences(inputs: Sequence[Any]) -> list[Any]:
    """(text, its sequences) -> the latter."""
    return [read for _, read in inputs]


OPERATIONS: dict[str, Callable[[Model, Sequence[Any], Options], list[Any]]] = {
    "embed": _embed,
    "fill": _fill,
    "classify": _classify,
    "tag": _tag,
    "answer": _answer,
    "choose": _choose,
    "correct": _correct,
    "inspect": view_texts,
}


def abilities(model: Model) -> frozenset[str]:
    """Which operations a model's heads allow."""
    needs = {
        "fill": "mlm",
        "correct": "mlm",
        "classify": "sequence",
        "tag": "token",
        "answer": "span",
        "choose": "choice",
    }
    return frozenset(name for name in OPERATIONS if name not in needs or needs[name] in model.heads)
