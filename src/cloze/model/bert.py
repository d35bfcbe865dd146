"""BERT (Devlin et al., 2019) and ALBERT (Lan et al., 2020): the Transformer encoder as a backbone.

A pre-trained model has the head ``mlm``, and optionally ``sbo`` and one of ``nsp`` and ``sop``. A fine-tuned model has
one of ``sequence``, ``token``, ``span`` and ``choice``.
"""

from typing import ClassVar

from torch import nn

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.config import BertConfig
from cloze.model.encoder import Encoder, SelfAttention
from cloze.model.relative import DistanceAttention


@register_backbone
class Bert(Backbone):
    """BERT, or ALBERT if the embeddings are factorized (``BertConfig.embedding_size`` is set)."""

    model_types: ClassVar[tuple[str, ...]] = ("bert", "albert", "electra")
    capabilities = Capabilities(bidirectional=True, has_positions=True, summary="first", fused_kernels=True)
    encoder: Encoder

    def build(self, config: BertConfig) -> None:
        """Create the Transformer encoder."""
        self.encoder = Encoder(config, attention=DistanceAttention if config.has_distances else SelfAttention)

    @property
    def fused_kernels(self) -> bool:
        """Whether the fused layers implement this model: they do unless attention depends on distances."""
        return self.capabilities.fused_kernels and not self.config.has_distances

    @property
    def token_table(self) -> nn.Embedding:
        """The token embeddings."""
        return self.encoder.embeddings.token

    @property
    def model_type(self) -> str:
        """The ``model_type`` to save as: ``bert``; with factorized embeddings ``albert``, or ``electra`` (head rtd)."""
        if self.config.embedding_size is None:
            return "bert"
        return "electra" if "rtd" in self.heads else "albert"


def require_bert(model: Backbone, feature: str) -> Bert:
    """Return the model as a ``Bert``, for features that modify the layers of BERT.

    Raises:
        ConfigError: If the model has another architecture.
    """
    if not isinstance(model, Bert):
        raise ConfigError(f"{feature} requires BERT's layers, but this model is of type {model.model_type!r}")
    return model
