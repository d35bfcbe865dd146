"""``TaskKind``: everything that differs between kinds of tasks, in one descriptor per kind.

Fine-tuning, evaluation, prediction, the service and the command line read the descriptor and never compare names.
A new kind is a folder with its own descriptor and one line in ``cloze.tasks.registry``.

Descriptors import no torch: what needs it (decoding) is imported when it is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from cloze.options import LONGEST_ANSWER, LongTexts
from cloze.tasks.examples import LabelSet, Read, Target
from cloze.tasks.rows import RowSettings, Source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cloze.model import Backbone, HeadName
    from cloze.model.batch import Batch
    from cloze.progress import Progress
    from cloze.tasks.baselines import Baseline
    from cloze.tasks.examples import Item
    from cloze.tasks.reports import Evaluation
    from cloze.text import Encoding, Tokenizer

Result = TypeVar("Result")

# Source, split ("train", "dev", ...), and the labels that the rows must use; None to collect them from the rows.
Reader = Callable[[Source, str, LabelSet | None], Read]
# Where a row stands in its file, and its texts without the label.
PlacedTexts = tuple[str, Sequence[str]]

# What one training target is: the index of a label or option; 0 or 1 for each label; a number; the index of a label for
# each token; the first and last token of an answer. It decides the loss and how targets are batched.
TargetType = Literal["index", "flags", "number", "token_indices", "span"]
# What one input of a prediction is: a text or a pair of texts; a text or a list of words; (question, context);
# (prompt, options). It decides how the service counts tokens.
InputType = Literal["texts", "words", "question", "options"]


@dataclass(frozen=True)
class TaskLabels:
    """What a fine-tuned head's outputs mean, and how texts are read for it; saved in ``config.json``."""

    kind: str  # the name of a TaskKind
    names: tuple[str, ...] = ()  # of the labels, in the order of the outputs
    long_texts: LongTexts = "cut"
    context: bool = False  # tagging: sentences are read together with their neighbours in the document
    characters: bool = False  # tagging: the words of the training rows were single characters
    temperature: float = 1.0  # logits are divided by it before they become probabilities
    # Probability from which the second of two labels, or any of several, is predicted. Answering: odds of "no answer"
    # against the best answer from which no answer is given.
    threshold: float | None = None
    longest_answer: int = LONGEST_ANSWER  # answering: maximum tokens of an answer
    # Texts and pairs of texts: the columns of the training rows, which predictions on data frames read by default.
    # Not in the representation, which is a part of the model's fingerprint: they change no result.
    text_column: str = field(default=RowSettings.text, repr=False)
    pair_column: str | None = field(default=RowSettings.pair, repr=False)


class InputNotes(Protocol):
    """Where decoders report what happened to the inputs of a model."""

    def cut(self, encodings: "Sequence[Encoding]", note: str, /) -> None:
        """Warn how many of the sequences were truncated, if any were; ``note`` says what they are."""


class Predictor(Protocol):
    """What decoders need of a loaded model; ``cloze.Model`` is one."""

    @property
    def bert(self) -> "Backbone":
        """The encoder with its heads."""

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of this model."""

    @property
    def heads(self) -> "tuple[HeadName, ...]":
        """The names of its heads."""

    @property
    def task(self) -> TaskLabels | None:
        """What the fine-tuned head's outputs mean; None if it has none."""

    @property
    def warnings(self) -> InputNotes:
        """The warnings about this model's inputs."""

    def run(self, encodings: "Sequence[Encoding]", step: "Callable[[Batch], Sequence[Result]]", /) -> "list[Result]":
        """Apply ``step`` to batches and return one result per sequence, in order."""

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None, /) -> "NDArray[np.float32]":
        """Return the sequence head's outputs, (texts, outputs)."""

    def logits_encoded(self, windows: "Sequence[Sequence[Encoding]]", /) -> "NDArray[np.float32]":
        """Return the sequence head's outputs for texts that are tokenized already."""


class ReadingOptions(Protocol):
    """How training examples are turned into sequences; ``FinetuneSettings`` is one."""

    @property
    def long_texts(self) -> LongTexts:
        """What to do with texts longer than the model's maximum length."""

    @property
    def context(self) -> bool:
        """Tagging: whether sentences are read together with their neighbours in the document."""

    @property
    def stride(self) -> int:
        """Answering: tokens from one window of a long context to the next."""


class FittedTask(Protocol):
    """A task with values fitted on dev rows, and the figures that describe the fit."""

    @property
    def task(self) -> TaskLabels:
        """The task with the fitted values."""

    def results(self) -> dict[str, float]:
        """Return what ``eval_results.json`` adds."""


@dataclass(frozen=True)
class TaskKind:
    """One kind of task.

    Kinds whose examples bear labels set all of the first group. A kind that is trained without labels (``labelled`` is
    False) has its own training function and sets only what it uses.
    """

    name: str
    summary: str  # one line of help: what such a model does with its input
    operation: str  # the command and service route that predict with it; kinds may share one
    head: "HeadName | None" = None
    inputs: InputType = "texts"
    targets: TargetType = "index"
    metrics: tuple[str, ...] = ()  # the first one selects models
    read: Reader | None = None  # the user's own files
    # Examples -> what the model is trained on.
    items: "Callable[[Any, Tokenizer, ReadingOptions, Progress], list[Item]] | None" = None
    # Model, examples, metrics -> scores and predictions; keyword options as named in ``settings``.
    evaluate: "Callable[..., Evaluation] | None" = None
    # Training rows, rows to score, labels, metrics -> a simple model to compare with; None where it makes no sense. The
    # first learns from the words; the second does not look at the texts, so that it can be computed on the scored rows.
    baseline: "Callable[[Any, Any, LabelSet | None, Sequence[str]], Baseline | None] | None" = None
    floor: "Callable[[Any, Any, LabelSet | None, Sequence[str]], Baseline | None] | None" = None
    # Model, inputs (tokenized where they are texts), options -> one JSON-able result per input.
    respond: "Callable[[Predictor, Sequence[Any], Mapping[str, Any]], list[Any]] | None" = None

    columns: tuple[str, ...] = ("text", "pair", "label")  # that the user's own tables may have
    read_texts: Callable[[Source, Any], list[PlacedTexts]] | None = None  # texts of a file whose labels are not read
    label_metrics: Callable[[LabelSet | None], tuple[str, ...]] | None = None  # where labels decide the metrics
    named_outputs: bool = False  # whether each output has a label's name
    problem_type: str | None = None  # of config.json, as transformers names it
    missing_target: Callable[[int], Target] | None = None  # number of labels -> the target of a row without a label
    # Fine-tuning settings that other kinds do not have.
    settings: frozenset[str] = field(default_factory=frozenset)
    long_inputs: str = "which reads long texts in windows by itself"  # why ``long_texts`` is not among them
    # Whether what is longer than the maximum length is cut, so that the length is chosen from the rows.
    cuts_texts: bool = False
    item_noun: str = "texts"  # what one training item is, in messages
    answers: str = "one of its labels"  # what a model card says of a model without named outputs
    calibrate: "Callable[[Predictor, Any, Sequence[str]], FittedTask] | None" = None  # with --calibrate, on dev rows
    fit_on_dev: Callable[[Predictor, Any], TaskLabels] | None = None  # always, on dev rows
    labelled: bool = True
    unlabelled_note: str = ""  # why a kind without labels is no task with rows to score

    def __str__(self) -> str:
        """Return the name, which is also the verb of messages ("this task is to classify")."""
        return self.name


def column_names(kind: TaskKind, text: str | None, pair: str | None) -> dict[str, Any]:
    """Return the fields of ``TaskLabels`` for the columns of the training rows; none for inputs of another form."""
    return {"text_column": text or RowSettings.text, "pair_column": pair} if kind.inputs == "texts" else {}


def deferred(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports and calls ``module.name`` when it is called; decoding modules import torch."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    call.__name__ = name
    return call
