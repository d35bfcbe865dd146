"""Folder + text -> results."""

from cloze.predict.batching import choose_device
from cloze.predict.evaluation import evaluate, evaluate_examples
from cloze.predict.model import Model, load
from cloze.predict.reports import Evaluation, write_report
from cloze.predict.results import (
    Answer,
    Attention,
    Corrected,
    Correction,
    Entity,
    Filled,
    FilledTogether,
    Label,
    Labels,
    Option,
    Score,
    Tagged,
    TaggedWord,
)

__all__ = [
    "Answer",
    "Attention",
    "Corrected",
    "Correction",
    "Entity",
    "Evaluation",
    "Filled",
    "FilledTogether",
    "Label",
    "Labels",
    "Model",
    "Option",
    "Score",
    "Tagged",
    "TaggedWord",
    "choose_device",
    "evaluate",
    "evaluate_examples",
    "load",
    "write_report",
]
