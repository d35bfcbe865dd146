"""Convert between ``config.json`` and ``BertConfig``; Google's ``bert_config.json`` uses the same keys.

A head that mean-pools the token states, or compares the vectors of two texts, is recorded under
``cloze_pooling`` and ``cloze_head``. ``transformers`` loads such a folder as a bare encoder, because its own head
classes would apply a pooler.

A model with factorized embeddings is saved as ALBERT, any other as BERT. Settings without a key in ``transformers``
(long texts, calibration temperature, columns of the training rows, an ambiguous task kind) are stored under
``cloze_task``.
"""

import math
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args

from cloze.checkpoint.names import HEAD_CLASSES, Layout, class_name, layout_of
from cloze.errors import CheckpointError, ConfigError, did_you_mean
from cloze.model import Backbone, BertConfig, HeadName
from cloze.model.backbone import find_backbone, registered_types
from cloze.model.heads import POOLED_HEADS
from cloze.options import LONGEST_ANSWER, HeadPooling, LongTexts
from cloze.tasks.kind import TaskKind, TaskLabels
from cloze.tasks.registry import KINDS, find_kind, labelled_kinds

_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feedforward_size": "intermediate_size",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "initial_deviation": "initializer_range",
    "pad_id": "pad_token_id",
}
_NEEDED = ("vocab_size", "hidden_size", "layers", "heads", "feedforward_size")

# ALBERT's defaults for missing keys; other keys have the defaults of BERT.
_ALBERT_DEFAULTS = {
    "embedding_size": 128,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

# NSP and SOP heads have the same tensors; the task is recorded if it is not the default of the architecture.
_SENTENCE_TASK = "cloze_sentence_task"
_USUAL_TASK: dict[Layout, HeadName] = {"albert": "sop"}  # all others: nsp

# Key of task properties that other libraries do not have.
_TASK_KEY = "cloze_task"
# Key of the confidence threshold of a model fine-tuned for correction.
_CORRECTING_KEY = "cloze_correcting"

# Keys of a head that mean-pools the token states or compares two texts; transformers has no such class.
_POOLING_KEY, _HEAD_KEY = "cloze_pooling", "cloze_head"
_POOLED_BY_MEAN: dict[HeadPooling, tuple[HeadName, ...]] = {"mean": ("sequence", "choice"), "separate": ("sequence",)}
# Key of position embeddings that are not learned. The table is stored, so that other libraries compute the same states.
_POSITIONS_KEY = "cloze_positions"
# Key for normalized vectors in a folder with a head on the mean, whose modules.json describes the logits instead.
_NORMALIZE_KEY = "cloze_normalize"


def read_head_pooling(values: dict[str, Any], path: Path) -> HeadPooling:
    """Return the input of the task head."""
    pooling: HeadPooling = _one_of(values.get(_POOLING_KEY, "cls"), get_args(HeadPooling), _POOLING_KEY, path)
    return pooling


def read_mean_head(values: dict[str, Any], path: Path) -> HeadName | None:
    """Return the head that mean-pools the token states of one or two texts; None if it uses a pooler."""
    pooling = read_head_pooling(values, path)
    if pooling == "cls":
        return None
    head: HeadName = _one_of(values.get(_HEAD_KEY, "sequence"), _POOLED_BY_MEAN[pooling], _HEAD_KEY, path)
    return head


def read_normalized(values: dict[str, Any], path: Path) -> bool:
    """Return whether vectors are normalized, for a folder whose head mean-pools the token states."""
    return _switch(values.get(_NORMALIZE_KEY, False), _NORMALIZE_KEY, path)


def read_backbone(values: dict[str, Any], path: Path) -> type[Backbone]:
    """Return the registered architecture for the ``model_type`` of a folder."""
    model_type = backbone_type(values)
    backbone = find_backbone(model_type) if isinstance(model_type, str) else None
    if backbone is None:
        *others, last = map(repr, (*registered_types(), "ernie"))
        raise CheckpointError(
            f"{path}: model_type is {model_type!r}; only {', '.join(others)} and {last} folders are supported"
        )
    return backbone


def backbone_type(values: dict[str, Any]) -> Any:
    """Return the registered type of a folder: a BERT with ``is_decoder`` is a GPT."""
    model_type = values.get("model_type", "bert")
    return "gpt" if model_type == "bert" and values.get("is_decoder") is True else model_type


def read_layout(values: dict[str, Any]) -> Layout:
    """Return the layout of the parameter names in a folder."""
    return layout_of(backbone_type(values))


def read_config(values: dict[str, Any], path: Path) -> BertConfig:
    """Build the configuration from a parsed ``config.json``."""
    backbone = read_backbone(values, path)
    config_type = backbone.config_type
    try:
        values = backbone.read_values(values)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    # Additional fields of an architecture keep their names.
    extra: dict[str, Any] = {
        field.name: values[field.name] for field in _added_fields(config_type) if field.name in values
    }
    if read_layout(values) == "albert":
        values = _ALBERT_DEFAULTS | {key: value for key, value in values.items() if value is not None}
        extra = {"embedding_size": values["embedding_size"], "shared_layers": _read_sharing(values, path)}
    elif read_layout(values) == "electra" and values.get("embedding_size", 128) != values.get("hidden_size"):
        extra = {"embedding_size": values.get("embedding_size", 128)}
    for key, expected in {
        "is_decoder": backbone_type(values) == "gpt",
        "add_cross_attention": False,
    }.items():
        if values.get(key, expected) != expected:
            raise CheckpointError(f"{path}: {key} is {values[key]!r}; cloze supports encoders with {key} {expected!r}")
    missing = [_NAMES[name] for name in _NEEDED if _NAMES[name] not in values]
    if missing:
        raise CheckpointError(f"{path}: lacks {', '.join(missing)}; is this a BERT folder?")
    try:
        # As in transformers, null means the default value.
        known: dict[str, Any] = {
            ours: values[theirs] for ours, theirs in _NAMES.items() if values.get(theirs) is not None
        }
        extra["position_kind"] = _read_positions(values)
        return config_type(**known, **extra, head_pooling=read_head_pooling(values, path))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_positions(values: dict[str, Any]) -> Any:
    """Return the kind of positions; a table of absolute positions is learned or sinusoidal."""
    kind = values.get("position_embedding_type") or "absolute"
    return values.get(_POSITIONS_KEY, "learned") if kind == "absolute" else kind


def _added_fields(config_type: type[BertConfig]) -> list[Field[Any]]:
    common = {field.name for field in fields(BertConfig)}
    return [field for field in fields(config_type) if field.name not in common]


def _read_sharing(values: dict[str, Any], path: Path) -> bool:
    """Return whether all layers of an ALBERT share their weights.

    Models with layer groups, which were never published, are rejected.
    """
    groups, inner = values["num_hidden_groups"], values["inner_group_num"]
    if inner != 1 or groups not in (1, values.get("num_hidden_layers")):
        raise CheckpointError(
            f"{path}: num_hidden_groups is {groups!r} and inner_group_num {inner!r}; cloze supports ALBERT with one "
            "shared layer (1 and 1), or without sharing"
        )
    return bool(groups == 1)


def read_sentence_task(values: dict[str, Any], path: Path) -> HeadName:
    """Return the sentence head (NSP or SOP) that the tensors belong to, if there are any."""
    task = values.get(_SENTENCE_TASK, _USUAL_TASK.get(read_layout(values), "nsp"))
    if task == "nsp":
        return "nsp"
    if task == "sop":
        return "sop"
    raise CheckpointError(f"{path}: {_SENTENCE_TASK} is {str(task)[:50]!r}; expected 'nsp' or 'sop'")


def read_task_head(values: dict[str, Any]) -> HeadName:
    """Return the head that the tensors named ``classifier`` belong to."""
    names = values.get("architectures")
    for name in names if isinstance(names, list) else ():
        for kind, head in HEAD_CLASSES.items():
            if isinstance(name, str) and kind in name:
                return head
    return "sequence"


def read_task_labels(values: dict[str, Any], head: HeadName, count: int, path: Path) -> TaskLabels:
    """Return the meaning of a task head's outputs; ``count`` is the number of outputs of a labelling head."""
    own = values.get(_TASK_KEY, {})
    if not isinstance(own, dict):
        raise CheckpointError(f"{path}: {_TASK_KEY} is {str(own)[:50]!r}; expected an object")
    kind = _read_kind(own, values, head, count, path)
    return TaskLabels(
        kind.name,
        _read_names(values, count, path) if kind.named_outputs else (),
        long_texts=_one_of(own.get("long_texts", "cut"), get_args(LongTexts), f"{_TASK_KEY}.long_texts", path),
        context=_flag(own, "context", path),
        characters=_flag(own, "characters", path),
        temperature=_number(own.get("temperature", 1.0), f"{_TASK_KEY}.temperature", path) or 1.0,
        threshold=_number(own.get("threshold"), f"{_TASK_KEY}.threshold", path),
        longest_answer=_count(own.get("longest_answer", LONGEST_ANSWER), f"{_TASK_KEY}.longest_answer", path),
        abstain_below=_number(own.get("abstain_below"), f"{_TASK_KEY}.abstain_below", path),
        abstain_rate=_number(own.get("abstain_rate"), f"{_TASK_KEY}.abstain_rate", path),
        text_column=_column(own, "text_column", path) or TaskLabels.text_column,
        pair_column=_column(own, "pair_column", path),
    )


def record_abstention(values: dict[str, Any], task: TaskLabels) -> None:
    """Set the abstention threshold in the parsed values of a ``config.json``, or remove it."""
    own = values.get(_TASK_KEY)
    own = dict(own) if isinstance(own, dict) else {}
    for name in ("abstain_below", "abstain_rate"):
        own.pop(name, None)
        if getattr(task, name) is not None:
            own[name] = getattr(task, name)
    values.pop(_TASK_KEY, None)
    values |= {_TASK_KEY: own} if own else {}


def read_correcting(values: dict[str, Any], path: Path) -> float | None:
    """Return the confidence threshold of a model fine-tuned for correction; None for other models."""
    return _number(values.get(_CORRECTING_KEY), _CORRECTING_KEY, path)


def _read_kind(own: dict[str, Any], values: dict[str, Any], head: HeadName, count: int, path: Path) -> TaskKind:
    """Return the task kind recorded in a folder, or else the kind that follows from head and problem type."""
    name = own.get("kind")
    if name is None:
        return derived_kind(head, count, values.get("problem_type"))
    if name not in KINDS or KINDS[name].head != head:
        known = [kind.name for kind in labelled_kinds() if kind.head == head]
        raise CheckpointError(
            f"{path}: {_TASK_KEY}.kind is {str(name)[:50]!r}, which is not a kind of task with a {head!r} head"
            f"{did_you_mean(str(name)[:50], known)}"
        )
    return KINDS[name]


def derived_kind(head: HeadName, count: int, problem_type: object) -> TaskKind:
    """Return the task kind of a head, as far as the configuration of ``transformers`` determines it.

    Args:
        head: The task head.
        count: Number of outputs; as in ``transformers``, a sequence head with one output is a regression.
        problem_type: ``problem_type`` in ``config.json``.
    """
    kinds = [kind for kind in labelled_kinds() if kind.head == head]
    numbers = [kind for kind in kinds if kind.targets == "number"]
    if count == 1 and numbers:
        return numbers[0]
    return next((kind for kind in kinds if problem_type is not None and kind.problem_type == problem_type), kinds[0])


def _read_names(values: dict[str, Any], count: int, path: Path) -> tuple[str, ...]:
    table = values.get("id2label") or {index: f"LABEL_{index}" for index in range(count)}
    try:
        by_index = {int(index): str(name) for index, name in table.items()}
        return tuple(by_index[index] for index in range(count))
    except (AttributeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: id2label does not name the {count} labels of the head") from error


def _one_of(value: Any, known: tuple[str, ...], name: str, path: Path) -> Any:
    if value not in known:
        raise CheckpointError(f"{path}: {name} is {str(value)[:50]!r}; expected one of {', '.join(known)}")
    return value


def _flag(own: dict[str, Any], name: str, path: Path) -> bool:
    return _switch(own.get(name, False), f"{_TASK_KEY}.{name}", path)


def _switch(value: Any, name: str, path: Path) -> bool:
    return bool(_one_of(str(value).lower(), ("false", "true"), name, path) == "true")


def _number(value: Any, name: str, path: Path) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise CheckpointError(f"{path}: {name} is {str(value)[:50]!r}; expected a positive number")
    return float(value)


def _count(value: Any, name: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{path}: {name} is {str(value)[:50]!r}; expected a whole number of at least 1")
    return value


def _column(own: dict[str, Any], name: str, path: Path) -> str | None:
    value = own.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise CheckpointError(f"{path}: {_TASK_KEY}.{name} is {str(value)[:50]!r}; expected the name of a column")
    return value


def write_config(
    model: Backbone,
    heads: tuple[HeadName, ...],
    task: TaskLabels | None,
    correcting: float | None = None,
    *,
    normalized: bool = False,
) -> dict[str, Any]:
    """Return a ``config.json`` with which ``transformers`` loads a BERT or ALBERT folder without changes.

    ``normalized`` records whether vectors are normalized, for a head that mean-pools the token states; other
    folders record this in ``modules.json``.
    """
    config, layout = model.config, layout_of(model.model_type)
    mean_head = stored_mean_head(model)
    class_heads = tuple(head for head in heads if head != mean_head)
    # The type to compute in: float32 even for half-precision files, because CPUs are slow or inaccurate in float16.
    values: dict[str, Any] = {
        "architectures": [class_name(class_heads, layout)] if layout != "native" else [type(model).__name__],
        "model_type": "bert" if layout == "gpt" else model.model_type,
        "dtype": "float32",
    }
    values |= {"is_decoder": True} if layout == "gpt" else {}
    if config.position_kind != "learned":
        values["position_embedding_type" if config.has_distances else _POSITIONS_KEY] = config.position_kind
    values |= {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    values |= {field.name: getattr(config, field.name) for field in _added_fields(type(config))}
    if "rtd" in heads:
        values["embedding_size"] = config.table_width  # for ELECTRA's classes; their default is 128
    if layout == "albert":
        values |= {
            "embedding_size": config.embedding_size,
            "num_hidden_groups": config.distinct_layers,
            "inner_group_num": 1,
            "classifier_dropout_prob": config.dropout,
            "bos_token_id": None,  # the defaults are ids of ALBERT's original vocabulary
            "eos_token_id": None,
        }
    if mean_head is not None:
        values |= {_POOLING_KEY: model.pooling, _HEAD_KEY: mean_head} | ({_NORMALIZE_KEY: True} if normalized else {})
    for sentence_task in ("nsp", "sop"):
        if sentence_task in heads and sentence_task != _USUAL_TASK.get(layout, "nsp"):
            values[_SENTENCE_TASK] = sentence_task
    if correcting is not None:
        values[_CORRECTING_KEY] = correcting
    values = model.write_values(values)
    return values if task is None else values | _task_values(task)


def stored_mean_head(model: Backbone) -> HeadName | None:
    """Return the model's head if it mean-pools the token states of one or two texts, otherwise None."""
    heads = [name for name in model.head_names if name in POOLED_HEADS]
    return heads[0] if heads and model.pooling != "cls" else None


def _task_values(task: TaskLabels) -> dict[str, Any]:
    kind, values = find_kind(task.kind), dict[str, Any]()
    if task.names:
        values["id2label"] = {str(index): name for index, name in enumerate(task.names)}
        values["label2id"] = {name: index for index, name in enumerate(task.names)}
        values |= {"problem_type": kind.problem_type} if kind.problem_type else {}
    elif kind.problem_type:
        values |= {"problem_type": kind.problem_type, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    own = {
        name: getattr(task, name)
        for name in (field.name for field in fields(TaskLabels) if field.name not in ("kind", "names"))
        if getattr(task, name) != getattr(TaskLabels, name)
    }
    assert kind.head is not None, "a kind with named outputs has a head"
    if derived_kind(kind.head, max(1, len(task.names)), kind.problem_type) != kind:
        own["kind"] = kind.name
    return values | ({_TASK_KEY: own} if own else {})
