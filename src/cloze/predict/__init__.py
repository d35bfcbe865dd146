"""Folder + text -> results."""

from cloze.predict.evaluation import Evaluation, evaluate, evaluate_examples
from cloze.predict.model import Model, choose_device, load
from cloze.predict.results import Attention, Filled, Label

__all__ = [
    "Attention",
    "Evaluation",
    "Filled",
    "Label",
    "Model",
    "choose_device",
    "evaluate",
    "evaluate_examples",
    "load",
]
