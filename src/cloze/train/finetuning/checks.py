"""Check that a task, a model and settings fit together, before a run's folder is created.

A run records its settings and is only resumed with the same ones, so settings that can never work must be rejected
before anything is recorded.
"""

from dataclasses import fields
from pathlib import Path

from cloze.checkpoint import ModelFolder, find_source, load_folder
from cloze.errors import ConfigError
from cloze.model.heads import POOLED_HEADS
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import TaskData
from cloze.train.finetuning.augmentation import check_augment
from cloze.train.finetuning.settings import FinetuneSettings

# The settings that training without labels (similarity, correction) supports.
_LABEL_FREE_SETTINGS = {
    *("epochs", "batch_size", "max_length", "learning_rate", "warmup", "weight_decay", "dropout"),
    *("patience", "freeze_layers", "layer_decay", "precision", "save_every", "seed"),
}


def load_checked_base(data: TaskData, model: str | Path, settings: FinetuneSettings) -> ModelFolder:
    """Load the model to fine-tune and check that it and the settings fit the rows."""
    check_kind(data.kind, settings)
    base = load_folder(find_source(model))
    check_length(settings.max_length, base)
    check_augment(data, base, str(model), settings)
    return base


def check_length(length: int, base: ModelFolder) -> None:
    """Reject a length beyond the model's positions."""
    positions = base.model.config.positions
    if base.model.capabilities.has_positions and length > positions:
        raise ConfigError(
            f"max_length is {length}, but the model reads at most {positions} tokens; "
            "use that, or give it more with cloze extend --positions"
        )


def check_label_free_settings(settings: FinetuneSettings, task: str) -> None:
    """Reject settings that training without labels would silently ignore."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name not in _LABEL_FREE_SETTINGS and value != field.default:
            raise ConfigError(f"{field.name} is {value!r}, which training for {task} does not support; leave it out")


def check_kind(kind: TaskKind, settings: FinetuneSettings) -> None:
    """Reject settings that this kind of task would silently ignore."""
    if settings.context and "context" not in kind.settings:
        raise ConfigError(f"context is for tagging, whose rows are sentences of documents; this task is to {kind}")
    if settings.calibrate and kind.calibrate is None:
        raise ConfigError(f"calibrate is for labels of texts; this task is to {kind}")
    if settings.pooling is not None and kind.head not in POOLED_HEADS:
        raise ConfigError(f"pooling is for labels, numbers and choices of texts; this task is to {kind}")
    if settings.class_weights != "none" and "class_weights" not in kind.settings:
        raise ConfigError(f"class_weights are for labels of texts; this task is to {kind}")
    if settings.augment != "none" and "augment" not in kind.settings:
        raise ConfigError(
            f"augment is for labels and numbers of texts; this task is to {kind}, whose targets are places in them"
        )
    if settings.long_texts != "cut" and "long_texts" not in kind.settings:
        raise ConfigError(f"long_texts is for labels and numbers of texts; this task is to {kind}, {kind.long_inputs}")
    if settings.stride != FinetuneSettings.stride and "stride" not in kind.settings:
        raise ConfigError(f"stride is for answers in long contexts; this task is to {kind}")
    if settings.longest_answer != FinetuneSettings.longest_answer and "longest_answer" not in kind.settings:
        raise ConfigError(f"longest_answer is for answers in texts; this task is to {kind}")
