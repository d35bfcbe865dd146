"""Folder + text -> results."""

from cloze.predict.evaluation import evaluate, evaluate_examples
from cloze.predict.model import Model, choose_device, load
from cloze.predict.reports import Evaluation, write_report
from cloze.predict.results import Answer, Attention, Entity, Filled, Label, Labels, Option, Tagged, TaggedWord

__all__ = [
    "Answer",
    "Attention",
    "Entity",
    "Evaluation",
    "Filled",
    "Label",
    "Labels",
    "Model",
    "Option",
    "Tagged",
    "TaggedWord",
    "choose_device",
    "evaluate",
    "evaluate_examples",
    "load",
    "write_report",
]
