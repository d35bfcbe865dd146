"""Literal types and constants that several packages share, and validation of settings.

Imports nothing heavy: settings and the CLI load this.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cloze.errors import ConfigError, did_you_mean

# Treatment of texts longer than the model's maximum length: see text/encoding.py.
LongTexts = Literal["cut", "head-tail", "windows"]
# What an explanation compares a text with: these tokens in place of every word.
Reference = Literal["mask", "pad"]

# Adapters that can be trained instead of the whole model: see model/adapters.py.
AdapterKind = Literal["houlsby", "lora"]
# Frozen hidden states that a head uses, and the kind of head: see model/heads.py.
Features = Literal["last", "last4", "mix"]
FeatureHead = Literal["linear", "lstm"]

# Input of a task head: [CLS] through the pooler, the mean of the token states without a pooler, or a comparison of the
# mean vectors of a pair whose two texts are encoded separately: see model/backbone.py.
HeadPooling = Literal["cls", "mean", "separate"]

# Architectures that ``cloze pretrain`` trains: see model/ and train/pretraining/objectives/.
BackboneName = Literal["bert", "gpt", "deberta", "xlnet", "electra", "elmo", "word2vec", "glove"]
# Those that are one vector per word piece: see train/pretraining/static_vectors.py.
STATIC_BACKBONES: tuple[BackboneName, ...] = ("word2vec", "glove")
# What a backbone predicts in pre-training: masked tokens, or the next token at every position. (Static vectors predict
# the pieces around a piece; nothing is masked either.)
Prediction = Literal["masked", "next"]
PREDICTS: dict[BackboneName, Prediction] = {
    "bert": "masked",
    "gpt": "next",
    "deberta": "masked",
    "xlnet": "masked",
    "electra": "masked",
    "elmo": "next",
    "word2vec": "next",
    "glove": "next",
}
# Positions of BERT: a learned table, fixed sines and cosines (model/building_blocks.py), or in every layer a vector for
# each distance that queries read, or queries and keys (model/bert.py).
PositionKind = Literal["learned", "sinusoidal", "relative_key", "relative_key_query"]

# Precision of predictions: see predict/quantization/precision.py.
PrecisionName = Literal["auto", "fp32", "bf16", "int8"]

# Documents of a text file, and the ways to search an index: see predict/search/.
TextUnit = Literal["file", "blocks", "lines"]
SearchMode = Literal["hybrid", "vectors", "bm25"]


@dataclass(frozen=True)
class IndexSettings:
    """How documents are read and divided into passages. The docstring of a field is also the help text of its flag.

    Example:
        >>> cloze.IndexSettings(chunk=200).overlap
        32
    """

    text: str = "text"
    """The column with the texts of CSV, TSV, JSONL and Parquet files."""
    id: str | None = None
    """The column with the ids; by default id, _id or docid, or else the file name and row number."""
    split: TextUnit = "file"
    """What is one document in a text file: the whole file, each block between blank lines, or each line."""
    chunk: int = 128
    """Maximum number of tokens per passage; longer documents are divided between sentences."""
    overlap: int = 32
    """Maximum number of tokens, in whole sentences, that a passage repeats from the one before."""

    def __post_init__(self) -> None:
        if self.chunk < SHORTEST_CHUNK:
            raise ConfigError(f"chunk is {self.chunk}; expected at least {SHORTEST_CHUNK} tokens")
        if not 0 <= self.overlap <= self.chunk // 2:
            raise ConfigError(f"overlap is {self.overlap}; expected 0 to {self.chunk // 2}, half of chunk")


SHORTEST_CHUNK = 16

# The target that the loss ignores, as in PyTorch.
IGNORED = -100

# Default maximum answer length in tokens, as in the original BERT code.
LONGEST_ANSWER = 30

# Settings of transformers, its scripts and similar libraries, mapped to the names that the setting may have in cloze,
# or to a sentence if the setting is not needed.
_SCORED_EVERY_EPOCH = "the dev rows are evaluated after every epoch; leave it out"
_ALWAYS_BOTH = "fine-tuning trains and then evaluates on the dev rows; leave it out"
_LOGGED = "the loss is logged to metrics.jsonl in the run's folder; leave it out"
_ADAMW = "the optimizer is AdamW; leave it out"
_NO_SMOOTHING = "labels are not smoothed; leave it out"
NAMES_ELSEWHERE: dict[str, tuple[str, ...] | str] = {
    "num_train_epochs": ("epochs",),
    "num_epochs": ("epochs",),
    "n_epochs": ("epochs",),
    "max_epochs": ("epochs",),
    "max_steps": ("steps", "epochs"),
    "per_device_train_batch_size": ("batch_size",),
    "per_gpu_train_batch_size": ("batch_size",),
    "train_batch_size": ("batch_size",),
    "per_device_eval_batch_size": "scoring needs no batch size; leave it out",
    "eval_batch_size": "scoring needs no batch size; leave it out",
    "max_seq_length": ("max_length",),
    "max_seq_len": ("max_length",),
    "max_len": ("max_length",),
    "lr": ("learning_rate",),
    "warmup_ratio": ("warmup",),
    "warmup_proportion": ("warmup",),
    "weight_decay_rate": ("weight_decay",),
    "hidden_dropout_prob": ("dropout",),
    "label_smoothing": _NO_SMOOTHING,
    "label_smoothing_factor": _NO_SMOOTHING,
    "max_grad_norm": "gradients are clipped to norm 1; leave it out",
    "optim": _ADAMW,
    "optimizer": _ADAMW,
    "lr_scheduler_type": "after the warm-up, the learning rate falls linearly; leave it out",
    "gradient_accumulation_steps": ("accumulate",),
    "gradient_checkpointing": ("checkpointing",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "evaluation_strategy": _SCORED_EVERY_EPOCH,
    "eval_strategy": _SCORED_EVERY_EPOCH,
    "eval_steps": _SCORED_EVERY_EPOCH,
    "compute_metrics": "the task decides the metrics; leave it out",
    "metric_for_best_model": "the first metric of the task selects the model; leave it out",
    "logging_steps": _LOGGED,
    "logging_dir": _LOGGED,
    "report_to": _LOGGED,
    "do_train": _ALWAYS_BOTH,
    "do_eval": _ALWAYS_BOTH,
    "early_stopping_patience": ("patience",),
    "load_best_model_at_end": ("patience",),
    "save_strategy": ("save_every",),
    "save_total_limit": "only the newest checkpoints are kept, and none of a finished run; leave it out",
    "push_to_hub": "the model is a folder, which hf upload can upload; leave it out",
    "save_steps": ("save_every",),
    "output_dir": ("out",),
    "overwrite_output_dir": ("fresh",),
    "model_name_or_path": ("model",),
    "model_name": ("model",),
    "num_labels": "the labels are collected from the rows; leave it out",
    "train_file": ("train",),
    "train_dataset": ("train",),
    "validation_file": ("dev",),
    "eval_file": ("dev",),
    "eval_dataset": ("dev",),
    "text_column_name": ("text",),
    "label_column_name": ("label",),
    "lora_r": ("adapter_size",),
    "random_state": ("seed",),
    "use_cpu": ("device",),
    "no_cuda": ("device",),
}

# Settings whose valid values depend on more than their type; they have their own error messages.
_CHECKED_ELSEWHERE = ("precision", "objective")
# Names of types in messages.
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", Path: "a path"}


def check_types(settings: Any) -> None:
    """Check the types of all fields of a settings dataclass; NumPy scalars are converted to Python scalars.

    Raises:
        ConfigError: If a value does not have the type of its field, is NaN, or is not listed in its ``Literal``.
    """
    for name, annotation in _annotations(settings.__class__).items():
        value = getattr(settings, name)
        if not isinstance(value, str) and hasattr(value, "item"):
            value = value.item()
            object.__setattr__(settings, name, value)  # the dataclass is frozen
        if not _fits(value, annotation):
            raise ConfigError(f"{name} is {value!r:.40}; expected {_expected(annotation)}")
        choices = _choices(annotation)
        if choices and isinstance(value, str) and value not in choices and name not in _CHECKED_ELSEWHERE:
            raise ConfigError(f"{name} is {value!r:.40}{did_you_mean(value, choices)}")


def make_settings(kinds: Sequence[type[Any]], values: Mapping[str, Any], arguments: Collection[str] = ()) -> list[Any]:
    """Distribute values by name over several settings dataclasses; reject names that none of them has.

    Args:
        kinds: The dataclasses.
        values: The values by name.
        arguments: Names of the caller's other arguments, which are suggested for similar unknown names.

    Raises:
        ConfigError: If no dataclass has a field of this name.

    Example:
        >>> finetuning, search = make_settings((FinetuneSettings, SearchSettings), {"epochs": 2, "seeds": 3})
    """
    names = {kind: {field.name for field in fields(kind)} for kind in kinds}
    known = sorted(set().union(*names.values()))
    for name in values:
        if name not in known:
            remedy = suggest_name(name, [*known, *arguments]) or did_you_mean(name, [*known, *arguments])
            raise ConfigError(f"there is no setting {name!r}{remedy}")
    return [kind(**{name: value for name, value in values.items() if name in names[kind]}) for kind in kinds]


def suggest_name(name: str, known: Collection[str], form: Callable[[str], str] = repr) -> str | None:
    """Return ``; did you mean 'epochs'?`` for a name of another library or with other dashes; None for other names.

    Args:
        name: The wrong name.
        known: The existing names, with underscores.
        form: Formats a name for the message.
    """
    plain = name.replace("-", "_").lower()
    meant = NAMES_ELSEWHERE.get(plain, (plain,))
    if isinstance(meant, str):
        return f"; {meant}"
    return next((f"; did you mean {form(one)}?" for one in meant if one in known), None)


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


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the strings that a ``Literal`` lists, alone or in a union with None."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(choice for one in get_args(annotation) for choice in _choices(one))
    if get_origin(annotation) is not Literal:
        return ()
    return tuple(choice for choice in get_args(annotation) if isinstance(choice, str))


def _expected(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_expected(one) for one in get_args(annotation))
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(repr, get_args(annotation)))}"
    return "None" if annotation is NoneType else _NAMES.get(annotation, str(annotation))


def command_flags(settings: Any) -> list[str]:
    """Return the command-line flags of every setting of a dataclass whose value is not the default.

    Example:
        >>> command_flags(PretrainSettings(steps=100, checkpointing=True))
        ['--steps', '100', '--checkpointing']
    """
    words = []
    for field in fields(settings):
        value, flag = getattr(settings, field.name), field.name.replace("_", "-")
        if value == field.default:
            continue
        words.append(f"--no-{flag}" if value is False else f"--{flag}")
        if not isinstance(value, bool):
            words += map(str, value if isinstance(value, tuple) else (value,))
    return words


def check_given_once(more: Mapping[str, Any], *given: Any) -> Mapping[str, Any]:
    """Return settings given by name; refuse those that are also part of a given settings object."""
    for settings in given:
        twice = [] if settings is None else [name for name in more if hasattr(settings, name)]
        if twice:
            raise ConfigError(f"{twice[0]} is given twice: set it in {type(settings).__name__}")
    return more
