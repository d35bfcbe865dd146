"""Batch -> hidden states: the shape of an encoder, the encoder, and what stands on it."""

from cloze.model.bert import HEAD_NAMES, Bert, HeadName
from cloze.model.config import PRESETS, BertConfig, preset
from cloze.model.encoder import Encoder, EncoderOutput

__all__ = ["HEAD_NAMES", "PRESETS", "Bert", "BertConfig", "Encoder", "EncoderOutput", "HeadName", "preset"]
