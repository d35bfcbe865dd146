"""Static vectors (word2vec, GloVe): one vector per word piece, the same in every context.

The "states" of a text are the vectors of its pieces. They contain neither order nor context. The vector of a text is
the mean over its pieces. A folder holds the table under the name ``embedding.weight``, which ``StaticEmbedding`` of
``sentence-transformers`` reads.

Training: ``train/pretraining/static_vectors.py``.

Dimensions: B sequences, T tokens, H vector size, V vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.building_blocks import EncoderOutput, table
from cloze.model.config import BertConfig


@dataclass(frozen=True)
class StaticConfig(BertConfig):
    """Sizes of a table of vectors; only ``vocab_size``, ``hidden_size`` and the dropout of heads apply."""

    layers: int = 1
    heads: int = 1
    feedforward_size: int = 1
    positions: int = 1


@register_backbone
class StaticVectors(Backbone):
    """A table of vectors without layers; layers 0 and 1 are the same states."""

    model_types: ClassVar[tuple[str, ...]] = ("static",)
    title = "Static vectors"
    config_type = StaticConfig
    sentence_module = "StaticEmbedding"
    capabilities = Capabilities(bidirectional=False, has_positions=False, summary="mean")

    def build(self, config: BertConfig) -> None:
        """Create the table."""
        self.embedding = table(config.vocab_size, config.hidden_size, padding_id=config.pad_id)

    def encode(
        self,
        ids: Tensor,
        segments: Tensor,  # noqa: ARG002 (the signature of all backbones)
        mask: Tensor | None = None,  # noqa: ARG002
        *,
        needed: Tensor | None = None,  # noqa: ARG002
        keep_states: bool = False,
        keep_attentions: bool = False,  # noqa: ARG002
    ) -> EncoderOutput:
        """Look up the vectors: (B, T) -> (B, T, H)."""
        vectors = self.embedding(ids)
        return EncoderOutput(vectors, (vectors, vectors) if keep_states else ())

    @property
    def token_table(self) -> nn.Embedding:
        """The vectors."""
        return self.embedding

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """There are none."""
        return ()

    def use_checkpointing(self, enabled: bool) -> None:
        """Refuse to recompute activations: there are no layers."""
        if enabled:
            raise ConfigError("checkpointing does not apply to static vectors, which have no layers; leave it out")
