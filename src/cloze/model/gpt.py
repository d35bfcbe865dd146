"""GPT (Radford et al., 2018): BERT's layers with a causal mask, trained to predict the next token at every position.

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

from cloze.model.backbone import Capabilities, register_backbone
from cloze.model.bert import Bert, DistanceAttention
from cloze.model.config import BertConfig
from cloze.model.encoder import Encoder, SelfAttention


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
