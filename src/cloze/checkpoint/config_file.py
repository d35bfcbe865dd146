"""``config.json`` <-> ``BertConfig``: the HF file, which Google's ``bert_config.json`` shares its names with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloze.errors import CheckpointError, ConfigError
from cloze.model import BertConfig, HeadName

TaskKind = Literal["classify", "regress"]

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

# Which task head a folder's "classifier" is cannot be told from its tensors, only from the class that saved it.
_HEAD_CLASSES: dict[str, HeadName] = {
    "BertForSequenceClassification": "sequence",
    "BertForTokenClassification": "token",
    "BertForMultipleChoice": "choice",
    "BertForQuestionAnswering": "span",
}


@dataclass(frozen=True)
class TaskLabels:
    """What a fine-tuned head's outputs mean."""

    kind: TaskKind = "classify"
    names: tuple[str, ...] = ()


def read_config(values: dict[str, Any], path: Path) -> BertConfig:
    """Build the configuration from a parsed ``config.json``."""
    if values.get("model_type", "bert") != "bert":
        raise CheckpointError(f"{path}: model_type is {values['model_type']!r}; only 'bert' folders can be read")
    for key, expected in {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }.items():
        if values.get(key, expected) != expected:
            raise CheckpointError(f"{path}: {key} is {values[key]!r}; cloze reads encoders with {key} {expected!r}")
    missing = [_NAMES[name] for name in _NEEDED if _NAMES[name] not in values]
    if missing:
        raise CheckpointError(f"{path}: lacks {', '.join(missing)}; is this a BERT folder?")
    try:
        # A key with null means "the default", as HF has it.
        return BertConfig(**{ours: values[theirs] for ours, theirs in _NAMES.items() if values.get(theirs) is not None})
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def read_task_head(values: dict[str, Any]) -> HeadName:
    """Which head the tensors named ``classifier`` are."""
    names = values.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name in _HEAD_CLASSES:
            return _HEAD_CLASSES[name]
    return "sequence"


def read_labels(values: dict[str, Any], count: int, path: Path) -> TaskLabels:
    """What ``count`` outputs of a task head are called."""
    if values.get("problem_type") == "regression" or count == 1:
        return TaskLabels("regress")
    table = values.get("id2label") or {index: f"LABEL_{index}" for index in range(count)}
    try:
        by_index = {int(index): str(name) for index, name in table.items()}
        return TaskLabels("classify", tuple(by_index[index] for index in range(count)))
    except (AttributeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: id2label does not name the {count} labels that the head has") from error


def write_config(config: BertConfig, heads: tuple[HeadName, ...], task: TaskLabels | None) -> dict[str, Any]:
    """The ``config.json`` that lets ``transformers`` load the folder as it is."""
    values: dict[str, Any] = {"architectures": [_class_name(heads)], "model_type": "bert", "dtype": "float32"}
    values |= {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    if task is not None and task.kind == "regress":
        values |= {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    elif task is not None:
        values["id2label"] = {str(index): name for index, name in enumerate(task.names)}
        values["label2id"] = {name: index for index, name in enumerate(task.names)}
        if "sequence" in heads:
            values["problem_type"] = "single_label_classification"
    return values


def _class_name(heads: tuple[HeadName, ...]) -> str:
    for class_name, head in _HEAD_CLASSES.items():
        if head in heads:
            return class_name
    if "mlm" in heads:
        return "BertForPreTraining" if "nsp" in heads else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if "nsp" in heads else "BertModel"
