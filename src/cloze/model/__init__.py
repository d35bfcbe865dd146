"""Models: the backbone protocol, BERT and ALBERT as its implementation, and the heads on top.

A model maps a batch of token ids to hidden states, and a head maps the states to the output of a task.
"""

from cloze.model.backbone import Backbone, Capabilities, first_positions, register_backbone
from cloze.model.bert import Bert, Gpt
from cloze.model.building_blocks import EncoderOutput
from cloze.model.config import PRESETS, BertConfig, preset
from cloze.model.deberta import Deberta, DebertaV2
from cloze.model.elmo import Elmo
from cloze.model.encoder import Encoder
from cloze.model.heads import HEAD_NAMES, HeadName
from cloze.model.static import StaticVectors
from cloze.model.xlnet import XLNet

__all__ = [
    "HEAD_NAMES",
    "PRESETS",
    "Backbone",
    "Bert",
    "BertConfig",
    "Capabilities",
    "Deberta",
    "DebertaV2",
    "Elmo",
    "Encoder",
    "EncoderOutput",
    "Gpt",
    "HeadName",
    "StaticVectors",
    "XLNet",
    "first_positions",
    "preset",
    "register_backbone",
]
