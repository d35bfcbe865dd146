"""What of a model is trained: all of it, its upper layers, an adapter, or a head on frozen states.

Each is a choice that is made before the one loop: what is to be attached is attached, and what stays as it is asks for
no gradient, so that the optimizer never sees it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cloze.errors import ConfigError
from cloze.model import Backbone
from cloze.model.adapters import Attachment, AttachmentKind, attach
from cloze.model.batch import Batch, run_batched
from cloze.model.bert import require_bert
from cloze.model.frozen_features import key
from cloze.model.heads import POOLED_HEADS
from cloze.progress import Progress
from cloze.tasks.examples import Item
from cloze.train.finetuning.settings import FinetuneSettings

# At most 4 % of the parameters are trained, of MiniLM and of BERT-base alike.
SIZES = {"houlsby": 64, "lora": 8}
# How much frozen states may take: those of more rows are computed anew whenever they are needed.
STATES_BUDGET = 2 * 2**30


def prepare(bert: Backbone, settings: FinetuneSettings) -> Attachment | None:
    """Attach what is to be attached to a model with the head of a task, and freeze what is to stay as it is.

    An adapter brings a copy of the pooler, which it trains with the head that reads it. Houlsby's code leaves it
    frozen, which only works if it has learned something: many models were trained without a task for it, and its small
    random numbers then hide the states from the head (docs/findings.md).
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
        # The paper's LSTM is as wide as its model, 768.
        size=bert.config.hidden_size if kind == "features" else settings.adapter_size or SIZES[kind],
        pooler=head in POOLED_HEADS and kind != "features",
        reads=settings.frozen or "last",
        feature_head=settings.feature_head,
    )
    attach(bert, attachment, settings.seed)
    return attachment


def freeze_lowest(bert: Backbone, layers: int) -> None:
    """Freeze the embeddings and this many layers above them."""
    if layers == 0:
        return
    bert = require_bert(bert, "freezing layers")
    if bert.config.shared_layers:
        raise ConfigError(f"freeze_layers is {layers}, but all layers of this model are one; leave it out")
    if layers > bert.config.layers:
        raise ConfigError(f"freeze_layers is {layers}, but the model has {bert.config.layers} layers")
    bert.encoder.embeddings.requires_grad_(False)
    for layer in list(bert.encoder.layers)[:layers]:
        layer.requires_grad_(False)


def cache_frozen_states(bert: Backbone, items: Sequence[Item], pad_id: int, progress: Progress) -> None:
    """Compute the frozen states of training rows once, if they find room; a model that is trained needs none."""
    reader = bert.reader
    if reader is None:
        return
    encodings = {key(one.ids, one.segments): one for item in items for one in item.encodings}
    tokens = sum(len(encoding.ids) for encoding in encodings.values())
    size = tokens * reader.count * bert.config.hidden_size * 4
    if size > STATES_BUDGET:
        progress.say(f"frozen states would take {size / 2**30:.1f} GiB: they are computed anew in every epoch")
        return

    def step(batch: Batch) -> list[Tensor]:
        states = reader.states(bert.encode, batch.ids, batch.segments, batch.mask)
        lengths = batch.real.sum(1).tolist()
        return [row[:, :length].clone() for row, length in zip(states, lengths, strict=True)]

    bert.eval()
    device = next(bert.parameters()).device
    # In an order that follows from the rows alone: a run that goes on sees the same numbers to the bit.
    found = run_batched(list(encodings.values()), pad_id, torch.device(device), step)
    reader.kept = dict(zip(encodings, found, strict=True))
