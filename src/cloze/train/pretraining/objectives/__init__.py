"""The objectives of pre-training, one per backbone: what a model predicts, and the loss.

To add a backbone, add its name to ``BackboneName`` and ``PREDICTS`` (options.py) and its objective to ``OBJECTIVES``.
"""

import torch

from cloze.model import Backbone, HeadName
from cloze.model.backbone import find_backbone
from cloze.options import BackboneName
from cloze.train.pretraining.objectives.masked import BaseObjective, PretrainingObjective
from cloze.train.pretraining.objectives.relatives import (
    BothDirectionsObjective,
    NextTokenObjective,
    PermutationObjective,
    ReplacedTokenObjective,
)
from cloze.train.settings import PretrainSettings

OBJECTIVES: dict[BackboneName, type[BaseObjective]] = {
    "bert": PretrainingObjective,
    "gpt": NextTokenObjective,
    "deberta": PretrainingObjective,
    "xlnet": PermutationObjective,
    "electra": ReplacedTokenObjective,
    "elmo": BothDirectionsObjective,
}


def pretraining_heads(settings: PretrainSettings) -> tuple[HeadName, ...]:
    """Return the heads that these settings train."""
    return OBJECTIVES[settings.backbone].heads(settings)


def new_objective(model: Backbone, settings: PretrainSettings, device: torch.device) -> BaseObjective:
    """Return the objective of the backbone, with the model to train."""
    return OBJECTIVES[settings.backbone].create(model, settings, device)


def backbone_class(name: BackboneName) -> type[Backbone]:
    """Return the architecture of this name."""
    backbone = find_backbone(name)
    assert backbone is not None, "every backbone of pre-training is registered under its name"
    return backbone
