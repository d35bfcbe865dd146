"""Prediction: load a model folder, apply its heads to texts, and evaluate it."""

from cloze.hardware import choose_device
from cloze.model.batch import batch_limits
from cloze.predict.evaluation import evaluate, evaluate_examples
from cloze.predict.loading import load
from cloze.predict.model import Model
from cloze.predict.results import Attention, Corrected, Correction, Filled, FilledTogether, Generated, Score
from cloze.tasks.answering.decoding import Answer
from cloze.tasks.choice.decoding import Option
from cloze.tasks.classification.decoding import Label, Labels
from cloze.tasks.intervals import Difference
from cloze.tasks.reports import Evaluation, write_report
from cloze.tasks.tagging.decoding import Entity, Tagged, TaggedWord

__all__ = [
    "Answer",
    "Attention",
    "Corrected",
    "Correction",
    "Difference",
    "Entity",
    "Evaluation",
    "Filled",
    "FilledTogether",
    "Generated",
    "Label",
    "Labels",
    "Model",
    "Option",
    "Score",
    "Tagged",
    "TaggedWord",
    "batch_limits",
    "choose_device",
    "evaluate",
    "evaluate_examples",
    "load",
    "write_report",
]
