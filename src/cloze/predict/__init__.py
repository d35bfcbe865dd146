"""Folder + text -> results."""

from cloze.predict.evaluation import evaluate, evaluate_examples
from cloze.predict.model import Model, choose_device, load
from cloze.predict.reports import Evaluation, write_report
from cloze.predict.results import Attention, Filled, Label, Labels

__all__ = [
    "Attention",
    "Evaluation",
    "Filled",
    "Label",
    "Labels",
    "Model",
    "choose_device",
    "evaluate",
    "evaluate_examples",
    "load",
    "write_report",
]
