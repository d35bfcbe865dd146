"""The served models by name: base models and their adapters, and one batcher per base model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cloze.errors import CheckpointError, ClozeError, RequestError, did_you_mean
from cloze.hardware import choose_device
from cloze.options import LongTexts, PrecisionName
from cloze.predict import Model, batch_limits, load
from cloze.predict.quantization.quantize import Paragraphs, ServicePrecision, load_for_service
from cloze.predict.search.index import Index, open_index
from cloze.serve.batcher import Batcher
from cloze.serve.operations import EMBED, SEARCH, ModelWorker, abilities
from cloze.serve.outcomes import InvalidRequestError, Metrics, NotFoundError
from cloze.serve.settings import ServiceSettings

# A new job must be expected to finish within this fraction of the timeout; the rest is a margin for lower throughput.
EXPECTED_WITHIN = 0.6
_SHOWN_NAMES = 10  # maximum number of names in messages


@dataclass(frozen=True)
class ServedModel:
    """A model that requests can name: a base model, or an adapter of one."""

    name: str
    base: str
    adapter: str | None
    batcher: Batcher
    abilities: frozenset[str]
    description: dict[str, Any]
    tokenizer: Any
    segments: int  # number of segments that the model distinguishes
    compares_pairs: bool  # whether it classifies only pairs: see model/backbone.py
    long_texts: LongTexts  # how it classifies texts beyond the maximum length
    by_characters: bool  # whether it was trained to tag each character of a text
    corrects_as_seen: bool  # whether it corrects a text in one pass, instead of masking each word in turn
    for_vectors: bool  # see ``made_for_vectors``
    created: int

    @property
    def longest(self) -> int:
        """Return the maximum number of tokens per sequence."""
        return int(self.tokenizer.max_length)


class ModelRegistry:
    """All served models, and the batchers that compute for them."""

    def __init__(self, served: Sequence[ServedModel], index: Index | None = None) -> None:
        self.served, self.index = {model.name: model for model in served}, index
        self.batchers = list({id(model.batcher): model.batcher for model in served}.values())

    def find(self, name: str | None, operation: str) -> ServedModel:
        """Return the model with this name, or the first that supports the operation.

        Every model can embed; without a name, the first one trained for vectors is preferred.

        Raises:
            NotFoundError: There is no model with this name.
            InvalidRequestError: The model does not support the operation.
        """
        able = [model for model in self.served.values() if operation in model.abilities]
        if name is None:
            if able:
                preferred = (model for model in able if operation == EMBED and model.for_vectors)
                return next(preferred, able[0])
            if operation == SEARCH:
                raise InvalidRequestError("this service has no index to search; start it with --index INDEX", "unable")
            raise InvalidRequestError(
                f"none of the served models ({self._names}) can {operation}; serve one that was trained for it",
                "unable",
            )
        if name not in self.served:
            raise NotFoundError(
                f"no model is called {name[:80]!r}{did_you_mean(name[:80], self.served)}", "unknown_model"
            )
        if operation not in self.served[name].abilities:
            heads = ", ".join(self.served[name].description["heads"]) or "none"
            others = ", ".join(model.name for model in able) or "none"
            raise InvalidRequestError(
                f"model {name!r} cannot {operation} (its heads: {heads}); models that can: {others}", "unable"
            )
        return self.served[name]

    @property
    def _names(self) -> str:
        """Return the names of the models, for messages."""
        names = list(self.served)
        return ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")

    @property
    def ready(self) -> bool:
        """Return whether every model has computed something recently."""
        return all(batcher.ready for batcher in self.batchers)

    def start(self) -> None:
        """Start the threads of all batchers."""
        for batcher in self.batchers:
            batcher.start()

    def drain(self, longest: float) -> bool:
        """Finish all waiting jobs within ``longest`` seconds; return whether all threads have ended."""
        end = time.monotonic() + longest
        for batcher in self.batchers:
            batcher.queue.close()
        ended = [batcher.drain(max(0.0, end - time.monotonic())) for batcher in self.batchers]
        return all(ended)


def load_models(
    settings: ServiceSettings,
    metrics: Metrics,
    *,
    device: str | None = None,
    precision: PrecisionName | None = None,
    paragraphs: Paragraphs = list,
    say: Callable[[str], None] = lambda line: None,  # noqa: ARG005 (the signature)
) -> ModelRegistry:
    """Load all models and adapters; their threads are not started yet.

    Args:
        settings: The models and adapters, and the limits.
        metrics: Receives the measurements of the batchers.
        device: The device of the models.
        precision: Their precision; by default auto on a CPU (int8 if it is accurate enough) and fp32 elsewhere.
        paragraphs: Returns texts to compare int8 and float32 on.
        say: Receives a line for each model whose precision was chosen automatically.
    """
    models, chosen = _load_bases(settings, device, precision, paragraphs)
    index, indexed = _open_index(settings, models)
    adapters = {name: _attach(name, folder, models) for name, folder in settings.adapters.items()}
    _say_precisions(chosen, say)
    served = []
    for name, model in models.items():
        worker = ModelWorker(model)
        limits = settings.limits
        batcher = Batcher(
            name,
            worker.run_batch,
            worker.probe,
            metrics,
            bound=limits.queue,
            budget=limits.batch,
            padding=batch_limits(model.device)[1],
            patience=limits.patience,
            within=EXPECTED_WITHIN * limits.timeout,
        )
        served.append(_describe(name, name, None, model, batcher, chosen.get(name)))
        for adapter in (adapter for adapter, base in adapters.items() if base == name):
            model.use(adapter)
            served.append(_describe(adapter, name, adapter, model, batcher, chosen.get(name)))
            model.use(None)
    served = [replace(one, abilities=one.abilities | {SEARCH}) if one.name == indexed else one for one in served]
    return ModelRegistry(served, index)


def _open_index(settings: ServiceSettings, models: Mapping[str, Model]) -> tuple[Index | None, str | None]:
    """Return the index of the service, and the name of the served model that it was built with."""
    if settings.index is None:
        return None, None
    index = open_index(settings.index)
    fingerprint = index.manifest["model"]["fingerprint"]
    for name, model in models.items():
        if model.fingerprint == fingerprint:
            return open_index(settings.index, model=model), name
    index.check_model(next(iter(models.values())), ", ".join(models))
    raise AssertionError("a model that differs was refused")


def _load_bases(
    settings: ServiceSettings,
    device: str | None,
    precision: PrecisionName | None,
    paragraphs: Paragraphs,
) -> tuple[dict[str, Model], dict[str, ServicePrecision]]:
    """Return the models by name and, with auto, the precision that was chosen for each."""
    if precision is None:
        precision = "auto" if choose_device(device).type == "cpu" else "fp32"
    if precision != "auto":
        return {name: load(place, device=device, precision=precision) for name, place in settings.models.items()}, {}
    models: dict[str, Model] = {}
    chosen: dict[str, ServicePrecision] = {}
    for name, place in settings.models.items():
        models[name], chosen[name] = load_for_service(place, device=device, paragraphs=paragraphs)
    return models, chosen


def _say_precisions(chosen: Mapping[str, ServicePrecision], say: Callable[[str], None]) -> None:
    """Report the precision that was chosen for each model, and whether int8 weights cannot be cached."""
    for name, choice in chosen.items():
        say(f"{name}: {choice}")
    if error := next(filter(None, (choice.cache_error for choice in chosen.values())), None):
        remedy = "set XDG_CACHE_HOME to a writable folder, or every start repeats the measurement"
        say(f"int8 weights cannot be cached: {error}; {remedy}")


def _attach(name: str, folder: str, models: dict[str, Model]) -> str:
    """Attach an adapter to the base model it was trained on, and return that model's name."""
    first_error: ClozeError | None = None
    for base, model in models.items():
        try:
            model.attach(name, folder)
        except CheckpointError as error:
            first_error = first_error or error
        else:
            return base
    assert first_error is not None, "there is a model"
    raise first_error


def _describe(
    name: str, base: str, adapter: str | None, model: Model, batcher: Batcher, chosen: ServicePrecision | None
) -> ServedModel:
    task, config = model.task, model.bert.config
    description = {
        "heads": list(model.heads),
        "task": task.kind if task else None,
        "labels": list(task.names) if task else [],
        "max_length": model.tokenizer.max_length,
        "width": _width(model),
        "layers": config.layers,
        "vocabulary": model.tokenizer.size,
        "parameters": sum(parameter.numel() for parameter in model.bert.parameters()),
        "pooling": model.embedding.pooling,
        "for_vectors": made_for_vectors(model),
        "precision": model.precision,
        "precision_reason": None if chosen is None else chosen.reason,
        "least_cosine": None if chosen is None else chosen.least_cosine,
    }
    return ServedModel(
        name,
        base,
        adapter,
        batcher,
        abilities(model),
        description,
        model.tokenizer,
        config.segments,
        model.bert.pooling == "separate",
        task.long_texts if task else "cut",
        task.characters if task else False,
        model.correcting is not None,
        made_for_vectors(model),
        int(time.time()),
    )


def made_for_vectors(model: Model) -> bool:
    """Return whether a model was trained for vectors, judging by its folder.

    The folder declares a pooling, and either normalizes or projects the vectors (as after training for similarity, or
    whitening) or has no heads. A pooling alone proves nothing, since every folder of cloze declares one; nor is
    normalization alone, since a classifier that was fine-tuned from a model for vectors normalizes too.
    """
    embedding = model.embedding
    if not embedding.configured or embedding.unsupported is not None:
        return False
    return (embedding.normalize and model.task is None) or bool(embedding.projections) or not model.heads


def _width(model: Model) -> int:
    """Return the size of an embedding."""
    try:
        return int(model.embed_encoded([]).shape[1])
    except RequestError:  # the folder specifies an unsupported pooling; requests may name another one
        return model.bert.config.hidden_size
