"""The models that are served, by name, each base with its adapters and the thread that computes for them all."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cloze.errors import CheckpointError, ClozeError, RequestError, did_you_mean
from cloze.kinds import LongTexts, PrecisionName
from cloze.predict import Model, batch_limits, load
from cloze.predict.inputs import read_texts
from cloze.serve.batcher import Batcher, Check
from cloze.serve.errors import Invalid, Unknown
from cloze.serve.metrics import Metrics
from cloze.serve.operations import abilities, compute
from cloze.serve.queue import Kind
from cloze.serve.settings import ServiceSettings

# Of the time that a request has, in how much it should be done at the speed of late, which may become less.
IN_TIME = 0.6


@dataclass(frozen=True)
class Served:
    """A name that requests may give: a base, or an adapter on one."""

    name: str
    base: str
    adapter: str | None
    batcher: Batcher
    abilities: frozenset[str]
    description: dict[str, Any]
    tokenizer: Any
    segments: int  # texts that it tells apart in one sequence
    long_texts: LongTexts  # how texts to classify are read that are too long for one
    corrects_as_seen: bool  # in one look at a text, instead of hiding each of its words
    created: int

    @property
    def longest(self) -> int:
        """Tokens that one forward pass reads."""
        return int(self.tokenizer.max_length)


class Library:
    """Everything that is served."""

    def __init__(self, served: Sequence[Served]) -> None:
        self.served = {one.name: one for one in served}
        self.batchers = list({id(one.batcher): one.batcher for one in served}.values())

    def find(self, name: str | None, operation: str) -> Served:
        """The model with this name, or the first that can do what is asked."""
        able = [one for one in self.served.values() if operation in one.abilities]
        if name is None:
            if able:
                return able[0]
            raise Invalid(f"no model here can {operation}; serve a folder that was trained for it", "unable")
        if name not in self.served:
            raise Unknown(f"no model is called {name[:80]!r}{did_you_mean(name[:80], self.served)}", "unknown_model")
        if operation not in self.served[name].abilities:
            heads = ", ".join(self.served[name].description["heads"]) or "none"
            others = ", ".join(one.name for one in able) or "none"
            raise Invalid(
                f"model {name!r} cannot {operation} (its heads: {heads}); models that can: {others}", "unable"
            )
        return self.served[name]

    @property
    def ready(self) -> bool:
        """Whether all of them have computed something lately."""
        return all(batcher.ready for batcher in self.batchers)

    def start(self) -> None:
        """Let all begin."""
        for batcher in self.batchers:
            batcher.start()

    def drain(self, longest: float) -> bool:
        """Let all finish what waits; whether they have."""
        end = time.monotonic() + longest
        for batcher in self.batchers:
            batcher.queue.close()
        ended = [batcher.drain(max(0.0, end - time.monotonic())) for batcher in self.batchers]
        return all(ended)


class _Desk:
    """A base as its thread uses it: nobody else touches the model, so that its adapters can be changed in between."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._in_use: str | None = None

    def compute(self, kind: Kind, inputs: Sequence[Any], check: Check) -> list[Any]:
        if kind.adapter != self._in_use:
            self._model.use(kind.adapter)
            self._in_use = kind.adapter
        with self._model.paused(check):
            return compute(self._model, kind, inputs)

    def probe(self) -> None:
        (windows,) = read_texts(self._model.tokenizer, [_QUESTION])
        (result,) = self.compute(_PROBE, [(_QUESTION, windows)], lambda: None)
        if isinstance(result, Exception):
            raise result


_QUESTION = "Are you there?"
# Pooled in a way that any model has, whatever its folder asks for.
_PROBE = Kind("embed", None, (("pooling", "mean"),))


def open_library(
    settings: ServiceSettings, metrics: Metrics, *, device: str | None = None, precision: PrecisionName = "fp32"
) -> Library:
    """Load every model and adapter, and start nothing yet."""
    models = {name: load(folder, device=device, precision=precision) for name, folder in settings.models.items()}
    adapters = {name: _attach(name, folder, models) for name, folder in settings.adapters.items()}
    served = []
    for name, model in models.items():
        desk = _Desk(model)
        limits = settings.limits
        batcher = Batcher(
            name,
            desk.compute,
            desk.probe,
            metrics,
            bound=limits.queue,
            budget=limits.batch,
            padding=batch_limits(model.device)[1],
            patience=limits.patience,
            within=IN_TIME * limits.timeout,
        )
        served.append(_describe(name, name, None, model, batcher))
        for adapter in (adapter for adapter, base in adapters.items() if base == name):
            model.use(adapter)
            served.append(_describe(adapter, name, adapter, model, batcher))
            model.use(None)
    return Library(served)


def _attach(name: str, folder: str, models: dict[str, Model]) -> str:
    """Attach an adapter to the base that it was trained on, and return that one's name."""
    complaint: ClozeError | None = None
    for base, model in models.items():
        try:
            model.attach(name, folder)
        except CheckpointError as error:
            complaint = complaint or error
        else:
            return base
    assert complaint is not None, "there is a model"
    raise complaint


def _describe(name: str, base: str, adapter: str | None, model: Model, batcher: Batcher) -> Served:
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
        "precision": model.precision,
    }
    return Served(
        name,
        base,
        adapter,
        batcher,
        abilities(model),
        description,
        model.tokenizer,
        config.segments,
        task.long_texts if task else "cut",
        model.correcting is not None,
        int(time.time()),
    )


def _width(model: Model) -> int:
    """How many numbers a vector has, as a vector tells."""
    try:
        return int(model.embed(["width"]).shape[1])
    except RequestError:  # a folder whose pooling is not ours: requests name another
        return model.bert.config.hidden_size
