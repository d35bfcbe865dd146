"""Batch -> hidden states: the shape of an encoder, the encoder, and what stands on it."""

from cloze.model.bert import HEAD_NAMES, Bert, HeadName, read_by
from cloze.model.config import PRESETS, BertConfig, preset
from cloze.model.encoder import Encoder, EncoderOutput, first_places

__all__ = [
    "HEAD_NAMES",
    "PRESETS",
    "Bert",
    "BertConfig",
    "Encoder",
    "EncoderOutput",
    "HeadName",
    "first_places",
    "preset",
    "read_by",
]
