"""BERT (Devlin et al., 2019) and ALBERT (Lan et al., 2020): the Transformer encoder as a backbone.

A pre-trained model has the head ``mlm``, and optionally ``sbo`` and one of ``nsp`` and ``sop``. A fine-tuned model has
one of ``sequence``, ``token``, ``span`` and ``choice``.

GPT (Radford et al., 2018): BERT's layers with a causal mask, trained to predict the next token at every position.

A token attends only to itself and to the tokens before it, so one pass over a sequence yields a prediction for each of
its positions: every token is a training target, against 15 % in BERT. In return, a state does not depend on what
follows, during fine-tuning as well. The summary of a sequence is therefore its last token, which depends on all others.

Like BERT and GPT, and unlike GPT-2, LayerNorm comes after the residual sum. Deviations from GPT, which keep the layers
of BERT: LayerNorm after the embeddings, segment embeddings, the transform of the masked-LM head before the tied output
matrix, and sequences of the form ``[CLS] text [SEP]``. Folders are those of ``BertLMHeadModel`` in ``transformers``
(``is_decoder``).
"""

from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.building_blocks import central, distances, relative_shift, table
from cloze.model.config import BertConfig
from cloze.model.encoder import DistanceTerms, Encoder, SelfAttention, masked_softmax


class DistanceAttention(SelfAttention):
    """BERT's self-attention with a learned vector for each distance, (2 P - 1, D) for P positions, in every layer.

    An ablation: the attention of ``position_kind`` ``relative_key`` and ``relative_key_query``, as in ``transformers``
    up to version 4, shows what relative positions alone contribute, so that DeBERTa and XLNet do not get the credit
    for it (Shaw et al., 2018; Huang et al., 2020). Unlike there, the model has no unused table of absolute positions.

    With ``relative_key`` the score of query i and key j is (q_i k_j + q_i d_ij) / sqrt(D), and ``relative_key_query``
    adds k_j d_ij, where d_ij is the vector for the distance i - j.
    """

    def __init__(self, config: BertConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.reach = config.positions - 1  # the largest distance
        self.distance = table(2 * config.positions - 1, config.head_size)
        self.reads_keys = config.position_kind == "relative_key_query"

    def distance_terms(self, length: int) -> DistanceTerms:
        """Return the vectors of the distances T, ..., -T: (2 T + 1, D)."""
        rows = (distances(length, self.distance.weight.device) + self.reach).clamp(0, 2 * self.reach)
        return (functional.embedding(rows, self.distance.weight),)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, terms: DistanceTerms) -> Tensor:
        """Return the attention weights: queries and keys (B, A, T, D) -> (B, A, T, T)."""
        assert terms is not None
        length = query.shape[-2]
        vectors = central(terms[0], length)  # (2 T + 1, D), for a group shorter than the longest
        query = query * self.head_size**-0.5
        scores = query @ key.transpose(-2, -1)
        scores += relative_shift(query @ vectors[:-1].T)
        if self.reads_keys:
            # Row j, then column i: the distance i - j is the negative of the one that the shift produces.
            by_key = key * self.head_size**-0.5 @ vectors[1:].flip(0).T  # (B, A, T, 2 T)
            scores += relative_shift(by_key).transpose(-2, -1)
        return masked_softmax(scores, mask)


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


# -- GPT ---------------------------------------------------------------------------------------------------------------


@register_backbone
class Gpt(Bert):
    """BERT's encoder with causal attention. Its pre-training head is ``lm``."""

    model_types: ClassVar[tuple[str, ...]] = ("gpt",)
    title = "GPT"
    # No fused kernels: they attend in both directions.
    capabilities = Capabilities(bidirectional=False, has_positions=True, summary="last")

    def build(self, config: BertConfig) -> None:
        """Create the encoder with causal attention."""
        attention = DistanceAttention if config.has_distances else SelfAttention
        self.encoder = Encoder(config, attention=partial(attention, causal=True))

    @property
    def model_type(self) -> str:
        """The registered name; ``config.json`` has ``bert`` with ``is_decoder``."""
        return "gpt"
