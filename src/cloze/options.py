"""Literal types and constants that several packages share, and the checks of settings.

Imports nothing heavy: settings and the CLI load this.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cloze.errors import ConfigError, did_you_mean

# What to do with a text longer than the model's maximum length: see text/encoding.py.
LongTexts = Literal["cut", "head-tail", "windows"]

# What may be trained in place of the whole model: see model/adapters.py.
AdapterKind = Literal["houlsby", "lora"]
# Which frozen hidden states a head reads, and the kind of head: see model/heads.py.
Features = Literal["last", "last4", "mix"]
FeatureHead = Literal["linear", "lstm"]

# What the head of a task reads: [CLS] through the pooler, the mean of the token states without it, or a comparison of
# the mean vectors of a pair, whose two texts are encoded separately: see model/backbone.py.
HeadPooling = Literal["cls", "mean", "separate"]

# Precision of predictions: see predict/quantization/precision.py.
PrecisionName = Literal["auto", "fp32", "bf16", "int8"]

# A target that the loss ignores, as in PyTorch.
IGNORED = -100

# Maximum tokens of an answer, as in the original BERT code, unless a model was fine-tuned with another limit.
LONGEST_ANSWER = 30

# What a setting of each type is, in messages.
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Path: "a path"}


def check_types(settings: Any) -> None:
    """Check the types of all fields of a settings dataclass; scalars of NumPy become Python's.

    Raises:
        ConfigError: If a value has another type than its field, or is NaN. Values that a ``Literal`` lists are checked
            by type only: the settings have their own messages for them.
    """
    for name, annotation in _annotations(settings.__class__).items():
        value = getattr(settings, name)
        if not isinstance(value, str) and hasattr(value, "item"):
            value = value.item()
            object.__setattr__(settings, name, value)  # the dataclass is frozen
        if not _fits(value, annotation):
            raise ConfigError(f"{name} is {value!r:.40}; {_expected(annotation)} was expected")


def make_settings(kinds: Sequence[type[Any]], values: Mapping[str, Any]) -> list[Any]:
    """Distribute values by name over several settings dataclasses; refuse names that none of them has.

    Example:
        >>> finetuning, search = make_settings((FinetuneSettings, SearchSettings), {"epochs": 2, "seeds": 3})
    """
    names = {kind: {field.name for field in fields(kind)} for kind in kinds}
    known = sorted(set().union(*names.values()))
    for name in values:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}{did_you_mean(name, known)}")
    return [kind(**{name: value for name, value in values.items() if name in names[kind]}) for kind in kinds]


@cache
def _annotations(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: object, annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(annotation))
    if origin is Literal:
        return any(type(value) is type(choice) for choice in get_args(annotation))
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str | Path)
    plain = origin or annotation
    return not isinstance(plain, type) or isinstance(value, plain)


def _expected(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_expected(one) for one in get_args(annotation))
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(repr, get_args(annotation)))}"
    return "None" if annotation is NoneType else _NAMES.get(annotation, str(annotation))
