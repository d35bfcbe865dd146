"""Adapters: small modules that are trained for one task while the base model stays frozen.

There are three kinds: bottleneck networks in every layer (``houlsby``; Houlsby et al., 2019), low-rank updates of the
query and value projections (``lora``; Hu et al., 2021), and a reader of frozen states (``features``; model/heads.py).
An adapter is a set of modules with paths in the model. Installing it, and restoring the base, only swaps references and
copies no weights, so one loaded base can serve many tasks.

LoRA changes the query and value projections, the best choice for a given number of parameters in the paper. After
training, the update can be added to the weights, which removes its cost.

Dimensions: B sequences, T tokens, H hidden size, S bottleneck size, R rank.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone
from cloze.model.bert import Bert, require_bert
from cloze.model.building_blocks import initialise
from cloze.model.config import BertConfig
from cloze.model.encoder import Layer, SelfAttention
from cloze.model.heads import POOLED_HEADS, HeadName, Pooler, Reader
from cloze.options import FeatureHead, Features, HeadPooling

AttachmentKind = Literal["houlsby", "lora", "features"]
# Modules by their dotted path in a model, as in ``get_submodule``; None removes the module at that path.
Parts = dict[str, nn.Module | None]


@dataclass(frozen=True)
class Attachment:
    """The configuration of an adapter: enough to build it, without its weights."""

    kind: AttachmentKind
    head: HeadName
    labels: int
    size: int  # bottleneck size, rank, or LSTM width
    pooler: bool = False  # whether the adapter has its own pooler
    alpha: float = 16.0  # lora: the update is scaled by alpha / size
    reads: Features = "last"  # features: which states the reader takes
    feature_head: FeatureHead = "linear"  # features: the module that the reader applies to them
    pooling: HeadPooling = "cls"  # input of a pooled head; only "cls" uses the pooler


class Adapter(nn.Module):
    """A bottleneck with a residual connection: x + up(gelu(down(x)))."""

    def __init__(self, config: BertConfig, size: int) -> None:
        super().__init__()
        self.down = nn.Linear(config.hidden_size, size)
        self.activation = nn.GELU()
        self.up = nn.Linear(size, config.hidden_size)

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise ``down`` randomly and ``up`` with zero: exactly the identity (the paper starts close to it)."""
        initialise(self, deviation, generator)
        nn.init.zeros_(self.up.weight)

    def forward(self, states: Tensor) -> Tensor:
        """Apply the bottleneck and the residual connection: (B, T, H) -> (B, T, H)."""
        change: Tensor = self.up(self.activation(self.down(states)))
        return states + change


class LowRank(nn.Module):
    """A low-rank update of the query and value projections: up(down(x)) * alpha / R."""

    def __init__(self, config: BertConfig, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        width = config.hidden_size
        self.query_down, self.query_up = _pair(width, rank)
        self.value_down, self.value_up = _pair(width, rank)

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise ``down`` randomly and ``up`` with zero, so that an untrained adapter does not change the model."""
        for down in (self.query_down, self.value_down):
            nn.init.normal_(down.weight, std=deviation, generator=generator)
        for up in (self.query_up, self.value_up):
            nn.init.zeros_(up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the update of query, key (zero) and value: (B, T, H) -> (B, T, 3 H)."""
        query = self.query_up(self.query_down(hidden))
        value = self.value_up(self.value_down(hidden))
        return self.scale * torch.cat([query, torch.zeros_like(query), value], -1)

    def weight(self) -> Tensor:
        """Return the weight update as one matrix, (3 H, H)."""
        query = self.query_up.weight @ self.query_down.weight
        value = self.value_up.weight @ self.value_down.weight
        return self.scale * torch.cat([query, torch.zeros_like(query), value])


def _pair(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)


@torch.no_grad()
def merge(attention: SelfAttention) -> None:
    """Add the low-rank update to the attention weights and remove the adapter."""
    if isinstance(attention.low_rank, LowRank):
        attention.query_key_value.weight += attention.low_rank.weight()
        attention.low_rank = None


def new_parts(bert: Backbone, attachment: Attachment) -> Parts:
    """Return the new modules of an adapter by their paths. The caller initialises or loads them and installs them."""
    parts: Parts = {}
    if attachment.kind != "features":  # a feature reader works with any backbone
        parts = _layer_parts(require_bert(bert, f"an adapter of kind {attachment.kind}"), attachment)
    head = bert.new_head(attachment.head, attachment.labels, attachment.pooling)
    if attachment.kind == "features":
        pools = attachment.head in POOLED_HEADS
        reader = Reader(bert.config, attachment.reads, attachment.feature_head, attachment.size, pools)
        assert isinstance(head.output, nn.Linear)
        head.output = nn.Linear(reader.width, head.output.out_features)
        parts["reader"] = reader
    if attachment.pooler:
        parts["pooler"] = Pooler(bert.config) if bert.pooler is None else deepcopy(bert.pooler)
    elif attachment.pooling != "cls":
        parts["pooler"] = None  # removes the pooler of the base
    return parts | {"heads": nn.ModuleDict({attachment.head: head})}


def _layer_parts(bert: Bert, attachment: Attachment) -> Parts:
    """Return the modules that an adapter adds to each layer."""
    parts: Parts = {}
    for number, layer in enumerate(bert.encoder.layers):
        assert isinstance(layer, Layer)
        prefix = f"encoder.layers.{number}"
        if attachment.kind == "houlsby":
            for name in ("attention", "feedforward"):
                parts[f"{prefix}.{name}_adapter"] = Adapter(bert.config, attachment.size)
                parts[f"{prefix}.{name}_norm"] = deepcopy(getattr(layer, f"{name}_norm"))
        else:
            parts[f"{prefix}.attention.low_rank"] = LowRank(bert.config, attachment.size, attachment.alpha)
    if attachment.kind == "houlsby":
        parts["encoder.embeddings.norm"] = deepcopy(bert.encoder.embeddings.norm)
    return parts


def install(bert: Backbone, parts: Mapping[str, nn.Module | None]) -> Parts:
    """Install modules at their paths and return the modules they replace; installing these restores the model."""
    replaced: Parts = {}
    for path, part in parts.items():
        parent_path, _, name = path.rpartition(".")
        parent = bert.get_submodule(parent_path)
        replaced[path] = getattr(parent, name)
        setattr(parent, name, part)
    return replaced


def attach(bert: Backbone, attachment: Attachment, seed: int) -> Parts:
    """Attach a freshly initialised adapter, freeze everything else, and return the adapter's modules."""
    parts = new_parts(bert, attachment)
    generator = torch.Generator().manual_seed(seed)
    for path, part in parts.items():
        copied = path.endswith("norm") or (path == "pooler" and bert.pooler is not None)  # copies of base modules
        if isinstance(part, Adapter | LowRank | Reader):
            part.start(bert.config.initial_deviation, generator)
        elif part is not None and not copied:
            initialise(part, bert.config.initial_deviation, generator)
    _train_only(bert, parts)
    bert.labels = attachment.labels
    return parts


def attach_low_rank(bert: Backbone, rank: int, seed: int) -> None:
    """Attach a fresh LoRA adapter to a model without a head, and freeze everything else.

    Saving the model merges the adapter (``without_attachment``).
    """
    parts = _layer_parts(require_bert(bert, "an adapter of kind lora"), Attachment("lora", "sequence", 1, rank))
    generator = torch.Generator().manual_seed(seed)
    for part in parts.values():
        assert isinstance(part, LowRank)
        part.start(bert.config.initial_deviation, generator)
    _train_only(bert, parts)


def _train_only(bert: Backbone, parts: Parts) -> None:
    install(bert, parts)
    bert.requires_grad_(False)
    for part in parts.values():
        if part is not None:
            part.requires_grad_(True)


def part_tensors(parts: Mapping[str, nn.Module | None]) -> dict[str, Tensor]:
    """Return the tensors of an adapter by their full parameter names in the model."""
    return {
        f"{path}.{name}": tensor
        for path, part in parts.items()
        if part is not None
        for name, tensor in part.state_dict().items()
    }


def parts_of(bert: Backbone, attachment: Attachment) -> Parts:
    """Return the modules of the adapter that is attached to a model."""
    with torch.device("meta"):  # only the paths are needed
        paths = new_parts(bert, attachment)
    return {path: None if part is None else bert.get_submodule(path) for path, part in paths.items()}


def without_attachment(bert: Backbone) -> Backbone:
    """Return an equivalent model without an adapter: LoRA is merged into the weights.

    Raises:
        ConfigError: If this kind of adapter cannot be merged.
    """
    layers = [layer for layer in bert.encoder.layers if isinstance(layer, Layer)] if isinstance(bert, Bert) else []
    if bert.reader is not None or any(layer.attention_adapter is not None for layer in layers):
        kind = "features" if bert.reader is not None else "houlsby"
        raise ConfigError(
            f"a {kind} adapter, unlike lora, cannot be merged into its base; keep the adapter's folder and the base"
        )
    if all(layer.attention.low_rank is None for layer in layers):
        return bert
    plain = deepcopy(bert)
    for layer in plain.encoder.layers:
        assert isinstance(layer, Layer)
        merge(layer.attention)
    return plain
