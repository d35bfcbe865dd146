"""What is added to a base for one task while the base stays as it is: the base's own numbers, and little besides.

Three kinds: two small networks a layer (here, after Houlsby et al., 2019), low-rank changes of two projections
(``lora.py``), or only something that reads frozen states (``features.py``). Whatever a kind brings is a few modules
with a place each in the model. Putting them there, and the base's back, moves pointers and copies nothing, so that one
loaded base serves many tasks.

Dimensions: B sequences, T tokens, H hidden size, S size of the bottleneck.

LoRA (Hu et al., 2021): a change of the weights that has a low rank, and so few numbers.

The change goes to the projections of query and value, as in the paper's experiments, which found nothing better at the
same number of parameters. Once trained it can be added to the weights themselves, and then costs nothing.

Dimensions: B sequences, T tokens, H hidden size, R rank.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.kinds import FeatureHead, Features
from cloze.model.backbone import Backbone
from cloze.model.bert import Bert, require_bert
from cloze.model.config import BertConfig
from cloze.model.encoder import Layer, SelfAttention
from cloze.model.frozen_features import Reader
from cloze.model.heads import POOLED_HEADS, HeadName, Pooler
from cloze.model.layers import initialise


class LowRank(nn.Module):
    """What is added to query, key and value side by side: up(down(x)) times alpha / R; nothing to the key."""

    def __init__(self, config: BertConfig, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        width = config.hidden_size
        self.query_down, self.query_up = _pair(width, rank)
        self.value_down, self.value_up = _pair(width, rank)

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """One of the two at random and the other at zero, so that the start is the base to the bit."""
        for down in (self.query_down, self.value_down):
            nn.init.normal_(down.weight, std=deviation, generator=generator)
        for up in (self.query_up, self.value_up):
            nn.init.zeros_(up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, 3 H)."""
        query = self.query_up(self.query_down(hidden))
        value = self.value_up(self.value_down(hidden))
        return self.scale * torch.cat([query, torch.zeros_like(query), value], -1)

    def weight(self) -> Tensor:
        """The change as one matrix, (3 H, H)."""
        query = self.query_up.weight @ self.query_down.weight
        value = self.value_up.weight @ self.value_down.weight
        return self.scale * torch.cat([query, torch.zeros_like(query), value])


def _pair(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)


@torch.no_grad()
def merge(attention: SelfAttention) -> None:
    """Make the change part of the weights."""
    if isinstance(attention.low_rank, LowRank):
        attention.query_key_value.weight += attention.low_rank.weight()
        attention.low_rank = None


AttachmentKind = Literal["houlsby", "lora", "features"]
# The place of a module in a model, as PyTorch writes it, and what stands there: None is nothing.
Parts = dict[str, nn.Module | None]


@dataclass(frozen=True)
class Attachment:
    """What is added to a base: enough to build it, without its numbers."""

    kind: AttachmentKind
    head: HeadName
    labels: int
    size: int  # of the bottleneck, the rank, or the width of the LSTM
    pooler: bool = False  # whether it brings one of its own
    alpha: float = 16.0  # lora: its change counts alpha / size times
    reads: Features = "last"  # features: which states, and what reads them
    feature_head: FeatureHead = "linear"


class Adapter(nn.Module):
    """A bottleneck with a way around it: x + up(gelu(down(x)))."""

    def __init__(self, config: BertConfig, size: int) -> None:
        super().__init__()
        self.down = nn.Linear(config.hidden_size, size)
        self.activation = nn.GELU()
        self.up = nn.Linear(size, config.hidden_size)

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """At random, but for the way up: the paper starts near the identity, and zero is the identity, to the bit."""
        initialise(self, deviation, generator)
        nn.init.zeros_(self.up.weight)

    def forward(self, states: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        changed: Tensor = self.up(self.activation(self.down(states)))
        return states + changed


def new_parts(bert: Backbone, attachment: Attachment) -> Parts:
    """The modules of an attachment by their places in a model, to be initialised or loaded; the model has none yet."""
    parts: Parts = {}
    if attachment.kind != "features":  # which reads the states of any backbone
        parts = _layer_parts(require_bert(bert, f"an adapter of kind {attachment.kind}"), attachment)
    head = bert.new_head(attachment.head, attachment.labels)
    if attachment.kind == "features":
        pools = attachment.head in POOLED_HEADS
        reader = Reader(bert.config, attachment.reads, attachment.feature_head, attachment.size, pools)
        assert isinstance(head.output, nn.Linear)
        head.output = nn.Linear(reader.width, head.output.out_features)
        parts["reader"] = reader
    if attachment.pooler:
        parts["pooler"] = Pooler(bert.config) if bert.pooler is None else deepcopy(bert.pooler)
    return parts | {"heads": nn.ModuleDict({attachment.head: head})}


def _layer_parts(bert: Bert, attachment: Attachment) -> Parts:
    """What an attachment puts into each layer."""
    parts: Parts = {}
    for number, layer in enumerate(bert.encoder.layers):
        assert isinstance(layer, Layer)
        place = f"encoder.layers.{number}"
        if attachment.kind == "houlsby":
            for name in ("attention", "feedforward"):
                parts[f"{place}.{name}_adapter"] = Adapter(bert.config, attachment.size)
                parts[f"{place}.{name}_norm"] = deepcopy(getattr(layer, f"{name}_norm"))
        else:
            parts[f"{place}.attention.low_rank"] = LowRank(bert.config, attachment.size, attachment.alpha)
    if attachment.kind == "houlsby":
        parts["encoder.embeddings.norm"] = deepcopy(bert.encoder.embeddings.norm)
    return parts


def install(bert: Backbone, parts: Mapping[str, nn.Module | None]) -> Parts:
    """Put modules into their places and return what stood there, which undoes it."""
    before: Parts = {}
    for place, part in parts.items():
        home, _, name = place.rpartition(".")
        parent = bert.get_submodule(home)
        before[place] = getattr(parent, name)
        setattr(parent, name, part)
    return before


def attach(bert: Backbone, attachment: Attachment, seed: int) -> Parts:
    """Give a model a fresh attachment, freeze all that is not part of it, and return its parts."""
    parts = new_parts(bert, attachment)
    generator = torch.Generator().manual_seed(seed)
    for place, part in parts.items():
        copied = place.endswith("norm") or (place == "pooler" and bert.pooler is not None)  # they start as the base's
        if isinstance(part, Adapter | LowRank | Reader):
            part.start(bert.config.initial_deviation, generator)
        elif part is not None and not copied:
            initialise(part, bert.config.initial_deviation, generator)
    install(bert, parts)
    bert.labels = attachment.labels
    bert.requires_grad_(False)
    for part in parts.values():
        if part is not None:
            part.requires_grad_(True)
    return parts


def part_tensors(parts: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """The tensors of parts by the names that they have in the model."""
    return {
        f"{place}.{name}": tensor
        for place, part in parts.items()
        if part is not None
        for name, tensor in part.state_dict().items()
    }


def parts_of(bert: Backbone, attachment: Attachment) -> Parts:
    """The parts of an attachment that a model has."""
    with torch.device("meta"):  # the places alone are wanted
        places = new_parts(bert, attachment)
    return {place: bert.get_submodule(place) for place in places}


def without_attachment(bert: Backbone) -> Backbone:
    """A plain model that says the same: low-rank changes become part of the weights; what cannot is refused."""
    layers = [layer for layer in bert.encoder.layers if isinstance(layer, Layer)] if isinstance(bert, Bert) else []
    if bert.reader is not None or any(layer.attention_adapter is not None for layer in layers):
        kind = "features" if bert.reader is not None else "houlsby"
        raise ConfigError(
            f"a model with a {kind} adapter is no plain BERT and cannot be merged into one, as lora can; "
            "keep the adapter's folder and its base"
        )
    if all(layer.attention.low_rank is None for layer in layers):
        return bert
    plain = deepcopy(bert)
    for layer in plain.encoder.layers:
        assert isinstance(layer, Layer)
        merge(layer.attention)
    return plain
