"""The backbone protocol: the interface that every architecture implements, and the registry of architectures.

A backbone maps ``ids, segments, mask, needed`` to an ``EncoderOutput`` and holds the heads on top of it. There is one
class per architecture for all combinations of heads: the heads are data, not part of the type. Each architecture
declares its ``Capabilities``. Code that needs a capability checks this declaration and never infers it from the name
of a head or from the layers.

To add an architecture, subclass ``Backbone`` and decorate the class with ``register_backbone``. Loading, saving,
fine-tuning and prediction find it by the ``model_type`` of its ``config.json``.

Dimensions: B sequences, T tokens, H hidden size, M requested positions.
"""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError, did_you_mean
from cloze.model.batch import mean_state, split_pairs
from cloze.model.building_blocks import EncoderOutput, initialise
from cloze.model.config import BertConfig
from cloze.model.cost import Estimate, count_flops, estimate
from cloze.model.heads import (
    HEAD_NAMES,
    HEADS,
    POOLED_HEADS,
    PRETRAINING_HEADS,
    ComparisonHead,
    HeadName,
    Pooler,
    Reader,
    build_head,
    compare_vectors,
)
from cloze.options import HeadPooling

# Which token states represent the whole sequence: the first token ([CLS]), the last real token, or the mean.
Summary = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of an architecture. Every backbone class declares its own; they are not inherited."""

    bidirectional: bool  # tokens attend to both sides, as masked-LM heads require
    has_positions: bool  # learned absolute positions: inputs have at most config.positions tokens
    summary: Summary  # input of the pooled heads
    fused_kernels: bool = False  # the bf16/int8 products and fused layers implement exactly these layers


class Backbone(nn.Module):
    """Base class of all architectures: the layers below the heads, an optional pooler, and the heads.

    A subclass declares ``model_types`` and ``capabilities`` and implements ``build``, ``encode`` and ``token_table``.
    """

    model_types: ClassVar[tuple[str, ...]]  # values of "model_type" in config.json
    title: ClassVar[str] = "BERT"  # in model cards
    sentence_module: ClassVar[str] = "Transformer"  # the module of sentence-transformers that reads the folder
    default_layers: ClassVar[int | None] = None  # layers of a new model, if not those of the preset
    config_type: ClassVar[type[BertConfig]] = BertConfig  # a subclass of BertConfig may add fields
    capabilities: ClassVar[Capabilities]
    encoder: Any  # by convention, the layers below the heads; their structure depends on the architecture
    reader: Reader | None

    def __init__(
        self,
        config: BertConfig,
        heads: Collection[HeadName] = (),
        *,
        labels: int = 2,
        pooler: bool | None = None,
    ) -> None:
        super().__init__()
        _check_heads(heads, self.capabilities)
        self.config = config
        self.labels = labels
        self.build(config)
        _check_pooling(heads, config)
        needs_pooler = config.head_pooling == "cls" and any(name in POOLED_HEADS for name in heads)
        self.pooler = Pooler(config) if needs_pooler or pooler else None
        self.heads = nn.ModuleDict({name: self.new_head(name, labels) for name in HEAD_NAMES if name in heads})
        self.reader = None  # attached by model/adapters.py

    @abstractmethod
    def build(self, config: BertConfig) -> None:
        """Create the layers below the heads."""
        raise NotImplementedError

    def encode(
        self,
        ids: Tensor,
        segments: Tensor,
        mask: Tensor | None = None,
        *,
        needed: Tensor | None = None,
        keep_states: bool = False,
        keep_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode a batch, by default with ``encoder``.

        Args:
            ids: Token ids, (B, T).
            segments: Segment of each token, (B, T).
            mask: True at real tokens, (B, T); None if nothing is padded.
            needed: Unique flat positions (M,) whose last states are used; None for all. Other states may be 0.
            keep_states: Return the states of every layer, embeddings first.
            keep_attentions: Return the attention weights; an architecture without attention returns none.
        """
        return self.encoder(  # type: ignore[no-any-return]
            ids, segments, mask, needed=needed, keep_states=keep_states, keep_attentions=keep_attentions
        )

    def word_states(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        """Return the states from which the masked-word head predicts: (B, T) -> (B, T, H).

        By default, these are the last states. An architecture that predicts words in another way than it encodes texts
        overrides this. The arguments are those of ``forward``; states that are not needed may be 0.
        """
        return self.encode(ids, segments, mask, needed=needed).last

    @property
    def words_apart(self) -> bool:
        """Whether ``word_states`` differ from the last states, so that other heads need another pass."""
        return False

    @property
    def hides_words(self) -> bool:
        """Whether ``word_states`` predict a word without reading it, so that the model cannot correct words."""
        return False

    @property
    def fused_kernels(self) -> bool:
        """Whether the fused layers and the bf16 and int8 products compute exactly what this model does."""
        return self.capabilities.fused_kernels

    @classmethod
    def read_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Translate a ``config.json`` of ``transformers`` to the keys of BERT.

        Raises:
            ConfigError: If it describes layers that this class does not implement.
        """
        return values

    def write_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Translate a ``config.json`` with the keys of BERT to that of ``transformers``; the inverse of the other."""
        return values

    @property
    @abstractmethod
    def token_table(self) -> nn.Embedding:
        """The token embeddings, also the output matrix of masked-LM heads (tied weights)."""
        raise NotImplementedError

    @property
    def model_type(self) -> str:
        """The ``model_type`` to save in ``config.json``."""
        return self.model_types[0]

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers, which FSDP gathers one at a time."""
        return tuple(self.encoder.layers)

    def use_checkpointing(self, enabled: bool) -> None:
        """Set whether the backward pass recomputes activations; the encoder's attribute ``checkpointing`` does it."""
        if hasattr(self.encoder, "checkpointing"):
            self.encoder.checkpointing = enabled
        elif enabled:
            raise ConfigError(f"checkpointing is not implemented for models of type {self.model_type!r}")

    def training_flops(self, length: int, *, chosen: float, checkpointing: bool = False) -> float:
        """Return the operations per token of a training step; architectures with other layers override it."""
        return count_flops(self.config, self.head_names, length, chosen=chosen, checkpointing=checkpointing)

    @classmethod
    def estimate(
        cls, config: BertConfig, heads: Collection[HeadName], *, batch: int, length: int, chosen: float, **how: bool
    ) -> Estimate:
        """Estimate the cost of a training step before memory is allocated for the model; see ``cost.estimate``."""
        with torch.device("meta"):
            parameters = cls(config, heads).parameter_count()
        return estimate(config, heads, batch=batch, length=length, chosen=chosen, parameters=parameters, **how)

    @classmethod
    def fresh(
        cls,
        config: BertConfig,
        heads: Collection[HeadName] = (),
        *,
        labels: int = 2,
        pooler: bool | None = None,
        seed: int = 0,
    ) -> Self:
        """Return a randomly initialised model; the seed determines all weights."""
        model = cls(config, heads, labels=labels, pooler=pooler)
        initialise(model, config.initial_deviation, torch.Generator().manual_seed(seed))
        return model

    def new_head(self, name: HeadName, labels: int, pooling: HeadPooling | None = None) -> nn.Module:
        """Return a new, unattached head for this backbone; ``pooling`` overrides the pooling of the configuration."""
        return build_head(name, self.config, labels, self.token_table, pooling or self.config.head_pooling)

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None = None, needed: Tensor | None = None
    ) -> EncoderOutput:
        """Encode a batch. The caller then applies a head to the states."""
        if self.reader is not None:
            return EncoderOutput(self.reader(self.encode, ids, segments, mask))
        if self.pooling == "separate":
            return EncoderOutput(self._compare(ids, segments, mask))
        return self.encode(ids, segments, mask, needed=needed)

    def _compare(self, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Encode the texts of each pair separately and compare their mean vectors: (B, T) -> (B, 1, 4 H + 1)."""
        split, real = split_pairs(ids, segments, mask, self.config.pad_id)  # (2 B, T')
        vectors = mean_state(self.encode(split, torch.zeros_like(split), real).last, real)
        count = ids.shape[0]  # not len(), which would fix the number of sequences in an exported graph
        return compare_vectors(vectors[:count], vectors[count:]).unsqueeze(1)

    @property
    def pooling(self) -> HeadPooling:
        """The input of the task head. A head without a pooler or reader mean-pools the token states.

        Derived from the modules, not the configuration, because an adapter may add or remove a pooler.
        """
        if any(isinstance(head, ComparisonHead) for head in self.heads.values()):
            return "separate"
        has_mean = self.pooler is None and self.reader is None and any(name in POOLED_HEADS for name in self.heads)
        return "mean" if has_mean else "cls"

    def summary_positions(self, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the flat positions of the summary tokens, (B, T) -> (B,); None if all tokens are used."""
        if self.capabilities.summary == "mean" or self.pooling != "cls":
            return None
        first = first_positions(ids)
        return first if self.capabilities.summary == "first" else first + _last_indices(ids.shape[1], mask)

    def needed_by(self, head: HeadName, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the flat positions whose last states a head uses; None if it uses all of them."""
        return self.summary_positions(ids, mask) if HEADS[head].reads_summary else None

    def summarise(self, last: Tensor, mask: Tensor | None) -> Tensor:
        """Reduce the last states to one vector per sequence, as ``capabilities`` declare: (B, T, H) -> (B, H)."""
        if self.capabilities.summary == "first":
            return last[:, 0]
        if self.capabilities.summary == "last":
            rows = torch.arange(len(last), device=last.device)
            return last[rows, _last_indices(last.shape[1], mask)]
        return mean_state(last, mask)

    def pooled(self, last: Tensor, mask: Tensor | None) -> Tensor:
        """Return the input of the pooled heads: (B, T, H), (B, T) -> (B, H).

        Args:
            last: Last states, as returned by ``forward``.
            mask: True at real tokens; None if nothing is padded.
        """
        if self.reader is not None or self.pooling == "separate":
            return last[:, 0]  # pooled already
        if self.pooling == "mean":
            return mean_state(last, mask)
        if self.pooler is None:
            raise ConfigError("this model has no pooler; it was saved without one")
        return self.pooler(self.summarise(last, mask))  # type: ignore[no-any-return]

    def head_input(self, head: HeadName, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Encode a batch and return the input of a pooled head: (B, T) -> (B, H)."""
        return self.pooled(self(ids, segments, mask, self.needed_by(head, ids, mask)).last, mask)

    def next_logits(self, ids: Tensor, segments: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Return the logits of the next token, given only the tokens up to each position.

        Args:
            ids: Token ids, (B, T).
            segments: Segment of each token, (B, T).
            mask: True at real tokens, (B, T); None if nothing is padded.
            positions: Flat positions, (M,).

        Returns:
            Logits, (M, V).
        """
        last = self.encode(ids, segments, mask, needed=positions).last
        return self.heads["lm"](last.flatten(0, 1)[positions])  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; the frozen layers below a reader stay in evaluation mode."""
        super().train(mode)
        if self.reader is not None:
            for name, child in self.named_children():
                if name not in ("heads", "pooler", "reader"):
                    child.eval()
        return self

    @property
    def head_names(self) -> tuple[HeadName, ...]:
        """The names of this model's heads, in a fixed order."""
        return tuple(name for name in HEAD_NAMES if name in self.heads)

    def parameter_count(self) -> int:
        """Return the number of parameters; the tied embedding is counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def first_positions(ids: Tensor) -> Tensor:
    """Return the flat positions of the first tokens, ``[CLS]``: (B, T) -> (B,)."""
    return torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)


def _last_indices(length: int, mask: Tensor | None) -> Tensor | int:
    """Return the index of the last real token of each sequence, (B,), or one index if nothing is padded."""
    return length - 1 if mask is None else mask.sum(1) - 1


def _check_heads(heads: Collection[HeadName], capabilities: Capabilities) -> None:
    for name in heads:
        if name not in HEAD_NAMES:
            raise ConfigError(f"unknown head {name!r}{did_you_mean(name, HEAD_NAMES)}")
        if HEADS[name].needs_both_sides and not capabilities.bidirectional:
            raise ConfigError(
                f"head {name}: it predicts masked words from both sides, but this model attends to only one side"
            )
    if len(set(heads) - PRETRAINING_HEADS) > 1:
        # They share one name on disk.
        raise ConfigError(f"heads {', '.join(heads)}: a model has at most one task head")
    if {"nsp", "sop"} <= set(heads):
        raise ConfigError("heads nsp and sop: a model has at most one of them; they also share their names on disk")


def _check_pooling(heads: Collection[HeadName], config: BertConfig) -> None:
    """Reject sentence-pair pre-training heads without the pooler that they were trained with."""
    pooling, sentence = config.head_pooling, [name for name in heads if name in POOLED_HEADS & PRETRAINING_HEADS]
    if pooling != "cls" and sentence:
        raise ConfigError(f"head {sentence[0]}: it uses the pooler, but head_pooling is {pooling!r}; use 'cls'")
    if pooling == "separate" and "choice" in heads:
        raise ConfigError("head choice: it encodes a prompt and an option together, but head_pooling is 'separate'")


_REGISTRY: dict[str, type[Backbone]] = {}
BackboneType = TypeVar("BackboneType", bound=type[Backbone])


def register_backbone(backbone: BackboneType) -> BackboneType:
    """Register an architecture under its model types; use as a class decorator.

    Raises:
        ConfigError: If the class does not declare its own capabilities, or a model type is taken.
    """
    # Not inherited: a subclass with other layers must not use the fused kernels of its parent's layers.
    if "capabilities" not in vars(backbone) or "model_types" not in vars(backbone):
        raise ConfigError(f"{backbone.__name__}: a backbone must declare its own capabilities and model_types")
    for model_type in backbone.model_types:
        if _REGISTRY.setdefault(model_type, backbone) is not backbone:
            raise ConfigError(f"model_type {model_type!r} is already registered as {_REGISTRY[model_type].__name__}")
    return backbone


def unregister_backbone(backbone: type[Backbone]) -> None:
    """Remove an architecture from the registry (used by tests)."""
    for model_type in backbone.model_types:
        _REGISTRY.pop(model_type, None)


def registered_types() -> tuple[str, ...]:
    """Return the model types that can be loaded."""
    return tuple(_REGISTRY)


def find_backbone(model_type: str) -> type[Backbone] | None:
    """Return the architecture registered under this model type, or None."""
    return _REGISTRY.get(model_type)
