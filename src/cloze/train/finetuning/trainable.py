"""Load the model to fine-tune, check it against task and settings, and select the trainable parameters.

These are the whole model, its upper layers, an adapter, or a head on frozen states.

The selection happens before the training loop: adapters are attached, and frozen parameters get
``requires_grad=False``, so that the optimizer never receives them. A run is resumed only with the settings it recorded,
so settings that cannot work are rejected before anything is recorded.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint import AdapterInfo, ModelFolder, TaskLabels, find_source, load_folder, weights_fingerprint
from cloze.checkpoint.folder import usual_pooling
from cloze.errors import ConfigError, format_option
from cloze.model import Backbone
from cloze.model.adapters import Attachment, AttachmentKind, attach
from cloze.model.batch import Batch, run_batched
from cloze.model.bert import require_bert
from cloze.model.heads import POOLED_HEADS, key
from cloze.model.surgery import with_heads
from cloze.options import HeadPooling
from cloze.progress import Progress
from cloze.tasks.examples import Item
from cloze.tasks.kind import TaskKind, column_names
from cloze.tasks.registry import TaskData
from cloze.train.finetuning.augmentation import check_augment
from cloze.train.finetuning.settings import (
    AUGMENTATION_SETTINGS,
    LOOP_SETTINGS,
    TRAINABLE_SETTINGS,
    FinetuneSettings,
    ResolvedSettings,
)

# Default bottleneck size or rank: at most 4 % of the parameters are trained, both for MiniLM and for BERT-base.
SIZES = {"houlsby": 64, "lora": 8}
# Number of layers that ``last4`` uses.
_LAST_LAYERS = 4
# Memory for cached frozen states in bytes; if they need more, they are recomputed in every epoch.
STATES_BUDGET = 2 * 2**30
# With up to this many pairs, a model made for vectors of single texts encodes the two texts separately. Measured with
# 3,000 pairs (docs/experiments/10-pairs-of-texts.md); with very many pairs, a joint encoding is learned.
_FEW_PAIRS = 10_000


def choose_pooling(base: ModelFolder, data: TaskData, settings: FinetuneSettings, progress: Progress) -> HeadPooling:
    """Return the pooling of the new head: the given one, else one that suits the model; report unusual choices."""
    head = data.kind.head
    assert head is not None, "a kind with labels has a head"
    if head not in POOLED_HEADS or settings.frozen is not None:
        return "cls"  # frozen states are pooled by their own module
    if settings.pooling == "separate" and not has_pairs(data):
        raise ConfigError(
            "pooling is 'separate', which compares the two texts of a pair; these rows have single texts: leave it out"
        )
    pooling = settings.pooling or usual_pooling(base)
    if settings.pooling is None and pooling == "mean":
        reason = "the model has no pooler" if base.model.pooler is None else "as this folder pools"
        if has_pairs(data) and len(data.train) <= _FEW_PAIRS:
            progress.say(
                f"the two texts of a pair are encoded separately, and the head compares their vectors ({reason}); "
                f"{format_option('pooling', 'mean')} encodes them as one sequence"
            )
            return "separate"
        remedy = f"{format_option('pooling', 'cls')} for [CLS] with a pooler"
        progress.say(f"the head uses the mean of the token states ({reason}); {remedy}")
    if pooling == "cls" and base.model.pooler is None:
        progress.say("the model has no pooler; a new one starts at random")
    return pooling


def has_pairs(data: TaskData) -> bool:
    """Return whether the rows are pairs of texts with a label or a number."""
    return data.kind.head == "sequence" and getattr(data.train, "pairs", None) is not None


def add_head(
    base: ModelFolder,
    name: str,
    data: TaskData,
    settings: ResolvedSettings,
    source: Mapping[str, Any],
    progress: Progress,
) -> ModelFolder:
    """Return the base model with a new head for the task, and with the adapter or frozen-feature head attached.

    Args:
        base: The model to start from.
        name: Its name, which an adapter records.
        data: The rows.
        settings: The training settings.
        source: The origin of the rows, as returned by ``Source.recorded``.
        progress: Receives reports of unusual choices.
    """
    head = data.kind.head
    assert head is not None, "a kind with labels has a head"
    pooling = choose_pooling(base, data, settings, progress)
    outputs = 1 if data.labels is None else len(data.labels)
    bert = with_heads(
        base.model,
        (head,),
        labels=outputs,
        keep=False,
        seed=settings.seed,
        dropout=settings.dropout,
        pooling=pooling,
    )
    length = min(settings.max_length, base.tokenizer.max_length)
    if length < settings.max_length:
        progress.say(f"the model accepts at most {length} tokens")
    # The limit is saved with the model: prediction uses the length of training and evaluation.
    tokenizer = base.tokenizer.with_max_length(length)
    attachment = make_trainable(bert, settings)
    adapter = None
    if attachment is not None:
        assert base.place is not None, "a loaded model has a folder"
        adapter = AdapterInfo(attachment, name, base.place, weights_fingerprint(base.place), asdict(settings))
    return ModelFolder(bert, tokenizer, _task_labels(data, settings, source), base.embedding, adapter=adapter)


def _task_labels(data: TaskData, settings: ResolvedSettings, source: Mapping[str, Any]) -> TaskLabels:
    return TaskLabels(
        data.kind.name,
        () if data.labels is None else data.labels.names,
        settings.long_texts,
        settings.context,
        characters=getattr(data.train, "by_characters", False),
        longest_answer=settings.longest_answer,
        **column_names(data.kind, source.get("text"), source.get("pair")),
    )


def make_trainable(bert: Backbone, settings: FinetuneSettings) -> Attachment | None:
    """Attach the adapter or frozen-feature head that the settings choose, or freeze the lowest layers.

    If the head of an adapter uses [CLS], the adapter has its own copy of the pooler, which is trained with the head.
    Houlsby's code leaves the pooler frozen, which works only if it was trained: many models are pre-trained without a
    sentence objective, and a pooler with small random weights then hides the hidden states from the head.

    Args:
        bert: A model with the head of the task.
        settings: The training settings.

    Returns:
        What was attached; None if the model itself is trained.
    """
    (head,) = bert.head_names
    kind: AttachmentKind | None = "features" if settings.frozen else settings.adapter
    if kind is None:
        freeze_lowest(bert, settings.freeze_layers)
        return None
    attachment = Attachment(
        kind,
        head,
        bert.labels,
        # The paper's LSTM has the hidden size of its model, 768.
        size=bert.config.hidden_size if kind == "features" else settings.adapter_size or SIZES[kind],
        pooler=head in POOLED_HEADS and kind != "features" and bert.pooler is not None,
        reads=settings.frozen or "last",
        feature_head=settings.feature_head,
        pooling=bert.pooling if kind != "features" else "cls",
    )
    attach(bert, attachment, settings.seed)
    return attachment


def freeze_lowest(bert: Backbone, layers: int) -> None:
    """Freeze the embeddings and this many of the lowest layers."""
    if layers == 0:
        return
    bert = require_bert(bert, "freezing layers")
    if bert.config.shared_layers:
        raise ConfigError(f"freeze_layers is {layers}, but all layers of this model share their weights; leave it out")
    if layers > bert.config.layers:
        raise ConfigError(f"freeze_layers is {layers}, but the model has {bert.config.layers} layers")
    bert.encoder.embeddings.requires_grad_(False)
    for layer in list(bert.encoder.layers)[:layers]:
        layer.requires_grad_(False)


def cache_frozen_states(bert: Backbone, items: Sequence[Item], pad_id: int, progress: Progress) -> None:
    """Compute the frozen states of the training rows once if they fit into memory; do nothing for other models."""
    reader = bert.reader
    if reader is None:
        return
    encodings = {key(encoding.ids, encoding.segments): encoding for item in items for encoding in item.encodings}
    tokens = sum(len(encoding.ids) for encoding in encodings.values())
    size = tokens * reader.count * bert.config.hidden_size * 4
    if size > STATES_BUDGET:
        progress.say(f"frozen states would take {size / 2**30:.1f} GiB: they are recomputed in every epoch")
        return

    def step(batch: Batch) -> list[Tensor]:
        padded = reader.states(bert.encode, batch.ids, batch.segments, batch.mask)
        lengths = batch.real.sum(1).tolist()
        return [row[:, :length].clone() for row, length in zip(padded, lengths, strict=True)]

    bert.eval()
    device = next(bert.parameters()).device
    # The batches depend only on the rows, so a resumed run computes bit-identical states.
    states = run_batched(list(encodings.values()), pad_id, torch.device(device), step)
    reader.cache = dict(zip(encodings, states, strict=True))


# -- checks of the settings against the task and the model -------------------------------------------------------------


# The settings that training without labels (similarity, correction) supports.
LABEL_FREE_SETTINGS = {
    *("epochs", "batch_size", "max_length", "learning_rate", "warmup", "weight_decay", "dropout"),
    *(
        "baseline",
        "patience",
        "freeze_layers",
        "layer_decay",
        "precision",
        "accumulate",
        "checkpointing",
        "save_every",
        "seed",
    ),
}


def load_checked_base(data: TaskData, model: str | Path, settings: FinetuneSettings) -> ModelFolder:
    """Load the model to fine-tune; check that the model and the settings fit the rows."""
    check_kind(data.kind, settings)
    check_few(data.kind, settings)
    base = load_folder(find_source(model))
    check_length(settings.max_length, base)
    if settings.frozen == "last4" and base.model.config.layers < _LAST_LAYERS:
        raise ConfigError(
            f"frozen is 'last4', but {model} has {base.model.config.layers} layers, so that the embeddings would be "
            "among the last four states; use last or mix"
        )
    check_augment(data, base, str(model), settings)
    return base


def check_length(length: int | None, base: ModelFolder) -> None:
    """Reject a length beyond the model's positions; a length that is not set yet is accepted."""
    positions = base.model.config.positions
    if length is not None and base.model.capabilities.has_positions and length > positions:
        raise ConfigError(
            f"max_length is {length}, but the model accepts at most {positions} tokens; "
            "use at most that, or add positions with cloze extend --positions"
        )


def check_label_free_settings(settings: FinetuneSettings, task: str, more: Collection[str] = ()) -> None:
    """Reject settings that training without labels would silently ignore; ``more`` names further supported ones."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name not in {*LABEL_FREE_SETTINGS, *more} and value != field.default:
            raise ConfigError(f"{field.name} is {value!r}, which training for {task} does not support; leave it out")


def check_kind(kind: TaskKind, settings: FinetuneSettings) -> None:
    """Reject settings that this kind of task would silently ignore."""
    if settings.context and "context" not in kind.settings:
        raise ConfigError(
            f"context applies only to tagging, whose rows are sentences of documents; the task here is {kind}"
        )
    if settings.calibrate and kind.calibrate is None:
        raise ConfigError(f"calibrate applies only to classification; the task here is {kind}")
    if settings.pooling is not None and kind.head not in POOLED_HEADS:
        raise ConfigError(
            f"pooling applies only to classification, regression and multiple choice; the task here is {kind}"
        )
    if settings.linear_start and "few" not in kind.settings:
        raise ConfigError(f"linear_start applies only to classification and regression; the task here is {kind}")
    if settings.class_weights != "none" and "class_weights" not in kind.settings:
        raise ConfigError(f"class_weights apply only to classification; the task here is {kind}")
    if settings.augment != "none" and "augment" not in kind.settings:
        raise ConfigError(
            f"augment applies only to classification and regression; the task here is {kind}, whose targets are "
            f"positions in the texts"
        )
    if settings.long_texts != "cut" and "long_texts" not in kind.settings:
        raise ConfigError(
            f"long_texts applies only to classification and regression; the task here is {kind}, {kind.long_inputs}"
        )
    if settings.stride != FinetuneSettings.stride and "stride" not in kind.settings:
        raise ConfigError(f"stride applies only to question answering over long contexts; the task here is {kind}")
    if settings.longest_answer != FinetuneSettings.longest_answer and "longest_answer" not in kind.settings:
        raise ConfigError(f"longest_answer applies only to question answering; the task here is {kind}")


def check_few(kind: TaskKind, settings: FinetuneSettings) -> None:
    """Reject settings that the few-label method would ignore."""
    if not settings.few:
        return
    if "few" not in kind.settings:
        raise ConfigError(f"few applies only to classification and regression; the task here is {kind}; leave it out")
    if settings.contrastive and kind.targets != "index":
        raise ConfigError(
            f"contrastive applies only to rows with one label each; the task here is {kind}; leave it out"
        )
    if isinstance(settings, ResolvedSettings):
        return  # every value is set here; the given ones were checked before
    ignored = settings.chosen((*TRAINABLE_SETTINGS, *AUGMENTATION_SETTINGS))
    if ignored:
        raise ConfigError(
            f"{ignored[0]} is {getattr(settings, ignored[0])!r}, but few fits a linear head on the rows as they are; "
            "leave out one of them"
        )
    ignored = [] if settings.contrastive else settings.chosen(LOOP_SETTINGS)
    if ignored:
        raise ConfigError(
            f"{ignored[0]} is {getattr(settings, ignored[0])!r}, but the head of few is fitted without training steps; "
            "leave it out, or add contrastive"
        )


def with_trained_pooling(tuned: ModelFolder) -> ModelFolder:
    """Return a fine-tuned model whose vectors are pooled as its head does."""
    return replace(tuned, embedding=tuned.embedding.after_training(reads_mean=tuned.model.pooling != "cls"))
