"""ELMo (Peters et al., 2018): two LSTM language models, one per direction, that share embeddings and output layer.

The forward model predicts the next token from those before it, the backward model the previous token from those after
it. They are independent: neither sees the states of the other, which is the difference to BERT, whose layers combine
both sides. A token's state is the concatenation of its two states. ELMo's vectors are a mixture of all layers, with
learned softmax weights and a scale, over frozen states (``--frozen mix``; ``Reader`` in ``model/heads.py``).

    ids (B, T) -> embeddings x (B, T, D)
      forward:   f1 = LSTM(x),  f2 = LSTM(f1) + f1     (B, T, D) each, left to right
      backward:  b1 = LSTM(x),  b2 = LSTM(b1) + b1     (B, T, D) each, right to left
      states:    [x; x], [f1; b1], [f2; b2]            (B, T, H), H = 2 D

As in ELMo, an LSTM has C = 8 D cells whose output is projected to D, and the second layer has a residual connection.

Deviations: word pieces instead of a character CNN, so that all backbones share a vocabulary; the output matrix is the
table of token embeddings (tied weights), as in BERT; the full softmax instead of a sampled one; cells are not clipped;
every sequence starts from zero states instead of those of the previous batch.

Dimensions: B sequences, T tokens, H hidden size, D width of one direction, C cells, L layers, V vocabulary, M
positions.
"""

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.building_blocks import Dropout, EncoderOutput, table
from cloze.model.config import BertConfig
from cloze.model.cost import Estimate
from cloze.model.heads import Head, HeadName
from cloze.options import HeadPooling

_FLOAT = 4  # bytes


@dataclass(frozen=True)
class ElmoConfig(BertConfig):
    """Sizes of an ELMo: ``feedforward_size`` is the number of cells; there are no attention heads or positions."""

    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % 2:
            raise ConfigError(f"hidden_size is {self.hidden_size}; expected an even number, half for each direction")
        if self.feedforward_size <= self.hidden_size // 2:
            raise ConfigError(
                f"feedforward_size is {self.feedforward_size}; expected more cells than their projection has outputs "
                f"({self.hidden_size // 2})"
            )

    @property
    def table_width(self) -> int:
        """Width of the token embeddings: that of one direction."""
        return self.hidden_size // 2


class Direction(nn.Module):
    """The LSTM language model of one direction, without embeddings and output layer."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        width, cells = config.table_width, config.feedforward_size
        self.layers = nn.ModuleList(
            nn.LSTM(width, cells, proj_size=width, batch_first=True) for _ in range(config.layers)
        )
        self.dropout = Dropout(config.dropout)

    def forward(self, embedded: Tensor) -> list[Tensor]:
        """Return the states of every layer, left to right: (B, T, D) -> L of (B, T, D)."""
        states = [embedded]
        for number, layer in enumerate(self.layers):
            with warnings.catch_warnings():
                # PyTorch uses its own implementation, as oneDNN has none with projections.
                warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
                output, _ = layer(self.dropout(states[-1]))
            states.append(output if number == 0 else output + states[-1])
        return states[1:]

    def start(self, generator: torch.Generator) -> None:
        """Initialise as PyTorch does, from a generator; forget gates start open, as in ELMo's code."""
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM)
            for name, parameter in layer.named_parameters():
                nn.init.uniform_(parameter, -(layer.hidden_size**-0.5), layer.hidden_size**-0.5, generator)
                if name == "bias_hh_l0":
                    with torch.no_grad():
                        parameter[layer.hidden_size : 2 * layer.hidden_size] += 1.0


class NextPieceHead(Head):
    """The output layer that both directions share: the token embeddings (tied weights) and a bias."""

    is_pretraining = True

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._tied = (embedding,)  # a tuple, so that the parameter is not registered a second time

    def forward(self, states: Tensor) -> Tensor:
        """Return logits: states of one direction (..., D) -> (..., V)."""
        (embedding,) = self._tied
        return functional.linear(states, embedding.weight, self.bias)


@register_backbone
class Elmo(Backbone):
    """Two independent LSTM language models. The pre-training head is ``lm``."""

    model_types: ClassVar[tuple[str, ...]] = ("elmo",)
    title = "ELMo"
    config_type = ElmoConfig
    default_layers = 2
    capabilities = Capabilities(bidirectional=True, has_positions=False, summary="mean")
    config: ElmoConfig

    def build(self, config: BertConfig) -> None:
        """Create the embeddings and the two directions."""
        assert isinstance(config, ElmoConfig)
        self.embedding = table(config.vocab_size, config.table_width, padding_id=config.pad_id)
        self.forwards, self.backwards = Direction(config), Direction(config)
        self.dropout = Dropout(config.dropout)

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
        model = super().fresh(config, heads, labels=labels, pooler=pooler, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        for direction in (model.forwards, model.backwards):
            direction.start(generator)
        return model

    def encode(
        self,
        ids: Tensor,
        segments: Tensor,  # noqa: ARG002 (there are no segment embeddings)
        mask: Tensor | None = None,
        *,
        needed: Tensor | None = None,  # noqa: ARG002 (a recurrence computes all states)
        keep_states: bool = False,
        keep_attentions: bool = False,  # noqa: ARG002 (there is no attention)
    ) -> EncoderOutput:
        """Run both directions; padding must follow the tokens."""
        embedded = self.embedding(ids)  # (B, T, D)
        forwards = self.forwards(embedded)
        lengths = None if mask is None else mask.sum(1)
        backwards = [reverse(state, lengths) for state in self.backwards(reverse(embedded, lengths))]
        states = [torch.cat(pair, -1) for pair in zip(forwards, backwards, strict=True)]  # L of (B, T, H)
        if not keep_states:
            return EncoderOutput(states[-1])
        return EncoderOutput(states[-1], (torch.cat([embedded, embedded], -1), *states))

    def next_logits(self, ids: Tensor, segments: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:  # noqa: ARG002
        """Return the logits of the next token from the forward model: flat positions (M,) -> (M, V)."""
        states = self.forwards(self.embedding(ids))[-1]  # right padding does not change the states before it
        return self.heads["lm"](states.flatten(0, 1)[positions])  # type: ignore[no-any-return]

    @property
    def token_table(self) -> nn.Embedding:
        """The token embeddings."""
        return self.embedding

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The LSTMs."""
        return (*self.forwards.layers, *self.backwards.layers)

    def use_checkpointing(self, enabled: bool) -> None:
        """Refuse to recompute activations, which would run the recurrence twice."""
        if enabled:
            raise ConfigError("checkpointing is not implemented for models of type 'elmo'; leave it out")

    def new_head(self, name: HeadName, labels: int, pooling: HeadPooling | None = None) -> nn.Module:
        """Return a new, unattached head; ``lm`` is the output layer of both directions."""
        if name == "lm":
            return NextPieceHead(self.config, self.token_table)
        return super().new_head(name, labels, pooling)

    def training_flops(self, length: int, *, chosen: float, checkpointing: bool = False) -> float:  # noqa: ARG002
        """Return the operations per token of a training step: both directions, and a prediction of each."""
        width, cells = self.config.table_width, self.config.feedforward_size
        layers = self.config.layers * 2 * (4 * cells * 2 * width + cells * width)
        predicted = chosen * 2 * width * self.config.vocab_size if "lm" in self.heads else 0.0
        return 3 * 2 * (layers + predicted)

    @classmethod
    def estimate(
        cls,
        config: BertConfig,
        heads: Collection[HeadName],
        *,
        batch: int,
        length: int,
        chosen: float,
        **how: bool,  # noqa: ARG003 (about attention)
    ) -> Estimate:
        """Estimate the cost of a training step before the model is built."""
        with torch.device("meta"):
            model = cls(config, heads)
        parameters, tokens, width, cells = (
            model.parameter_count(),
            batch * length,
            config.table_width,
            config.feedforward_size,
        )
        # Per direction and layer: the gates before and after their activations, cells, and outputs.
        recurrent = 2 * config.layers * tokens * (10 * cells + 4 * width)
        logits = round(2 * chosen * tokens) * 3 * config.vocab_size if "lm" in heads else 0
        return Estimate(
            parameters=parameters,
            flops_per_token=model.training_flops(length, chosen=chosen),
            weight_bytes=_FLOAT * parameters,
            gradient_bytes=_FLOAT * parameters,
            optimizer_bytes=2 * _FLOAT * parameters,
            activation_bytes=_FLOAT * (recurrent + logits),
        )


def reverse(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse the tokens of each sequence and leave its padding in place: (B, T, D), (B,) -> (B, T, D)."""
    if lengths is None:
        return states.flip(1)
    places = torch.arange(states.shape[1], device=states.device)  # (T,)
    reversed_places = lengths[:, None] - 1 - places  # (B, T), negative at padding
    indices = torch.where(reversed_places < 0, places, reversed_places)
    return states.gather(1, indices[:, :, None].expand_as(states))
