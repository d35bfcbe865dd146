"""``TaskKind``: everything that differs between kinds of tasks, in one descriptor per kind.

Fine-tuning, evaluation, prediction, the service and the command line read the descriptor and never compare names.
A new kind is a folder with its own descriptor and one line in ``cloze.tasks.registry``.

Descriptors import no torch: the decoding modules, which need it, are imported when they are called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from cloze.models import SENTENCE_MODEL
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
# The location of a row in its file, and its texts without the label.
PlacedTexts = tuple[str, Sequence[str]]

# The form of a training target: the index of a label or option; 0 or 1 for each label; a number; the index of a label
# for each token; the first and last token of an answer. It determines the loss and how targets are batched.
TargetType = Literal["index", "flags", "number", "token_indices", "span"]
# The form of an input for prediction; it determines how the service counts tokens. "texts": a text or a pair of texts;
# "words": a text or a list of words; "question": (question, context); "options": (prompt, options).
InputType = Literal["texts", "words", "question", "options"]


@dataclass(frozen=True)
class TaskLabels:
    """The meaning of a fine-tuned head's outputs, and how texts are encoded for it; saved in ``config.json``."""

    kind: str  # the name of a TaskKind
    names: tuple[str, ...] = ()  # names of the labels, in the order of the outputs
    long_texts: LongTexts = "cut"
    context: bool = False  # tagging: sentences are encoded together with their neighbours in the document
    characters: bool = False  # tagging: the words of the training rows were single characters
    temperature: float = 1.0  # divisor of the logits before the softmax
    # Minimum probability for predicting the second of two labels, or any label of a multi-label task. Answering:
    # minimum odds of "no answer" against the best answer for predicting no answer.
    threshold: float | None = None
    longest_answer: int = LONGEST_ANSWER  # answering: maximum answer length in tokens
    # Classification: minimum probability of a label, below which the model abstains; and the error rate among answers
    # that this threshold was chosen for.
    abstain_below: float | None = None
    abstain_rate: float | None = None
    # Texts and pairs of texts: the columns of the training rows, which are the default for predictions on data frames.
    # Not in the representation, which enters the model's fingerprint, because they do not change any result.
    text_column: str = field(default=RowSettings.text, repr=False)
    pair_column: str | None = field(default=RowSettings.pair, repr=False)


class InputNotes(Protocol):
    """Collects reports of decoders about the inputs of a model."""

    def cut(self, encodings: "Sequence[Encoding]", note: str, /) -> None:
        """Warn if sequences were truncated, and how many; ``note`` describes the sequences."""


class Predictor(Protocol):
    """The parts of a loaded model that decoders need; ``cloze.Model`` is one."""

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
        """The meaning of the fine-tuned head's outputs; None without such a head."""

    @property
    def warnings(self) -> InputNotes:
        """The warnings about this model's inputs."""

    def run(self, encodings: "Sequence[Encoding]", step: "Callable[[Batch], Sequence[Result]]", /) -> "list[Result]":
        """Apply ``step`` to batches and return one result per sequence, in the order of the input."""

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None, /) -> "NDArray[np.float32]":
        """Return the sequence head's outputs, (texts, outputs)."""

    def logits_encoded(self, windows: "Sequence[Sequence[Encoding]]", /) -> "NDArray[np.float32]":
        """Return the sequence head's outputs for encoded texts, each of which may have several windows."""


class ReadingOptions(Protocol):
    """The settings that determine how examples become sequences; ``FinetuneSettings`` is one."""

    @property
    def long_texts(self) -> LongTexts:
        """Return how texts beyond the model's maximum length are encoded."""

    @property
    def context(self) -> bool:
        """Tagging: whether sentences are encoded together with their neighbours in the document."""

    @property
    def stride(self) -> int:
        """Answering: tokens from one window of a long context to the next."""


class FittedTask(Protocol):
    """A task with values fitted on dev rows, and figures about the fit."""

    @property
    def task(self) -> TaskLabels:
        """The task with the fitted values."""

    def results(self) -> dict[str, float]:
        """Return the figures to add to ``eval_results.json``."""


@dataclass(frozen=True)
class TaskKind:
    """One kind of task.

    Kinds with labelled examples set every field of the first group. Kinds that are trained without labels (``labelled``
    is False) have their own training function and set only the fields they use.
    """

    name: str
    summary: str  # one line of help that describes the predictions of this kind
    operation: str  # command and service route for predictions; several kinds may share one
    head: "HeadName | None" = None
    inputs: InputType = "texts"
    targets: TargetType = "index"
    metrics: tuple[str, ...] = ()  # the first one selects models
    read: Reader | None = None  # reads the user's own files
    # Examples -> training items.
    items: "Callable[[Any, Tokenizer, ReadingOptions, Progress], list[Item]] | None" = None
    # Model, examples, metrics -> scores and predictions; keyword options as named in ``settings``.
    evaluate: "Callable[..., Evaluation] | None" = None
    # Training rows, rows to evaluate, labels, metrics -> a simple model to compare with, or None if there is none. The
    # first kind of baseline learns from the words. The second ignores the texts, so it can be computed on the evaluated
    # rows themselves.
    baseline: "Callable[[Any, Any, LabelSet | None, Sequence[str]], Baseline | None] | None" = None
    floor: "Callable[[Any, Any, LabelSet | None, Sequence[str]], Baseline | None] | None" = None
    # Model, inputs (encoded if they are texts), options -> one result per input, as JSON values.
    respond: "Callable[[Predictor, Sequence[Any], Mapping[str, Any]], list[Any]] | None" = None

    start: str = SENTENCE_MODEL  # the model that fine-tuning starts from by default
    columns: tuple[str, ...] = ("text", "pair", "label")  # columns that the user's own tables may have
    read_texts: Callable[[Source, Any], list[PlacedTexts]] | None = None  # reads the texts of a file without its labels
    label_metrics: Callable[[LabelSet | None], tuple[str, ...]] | None = None  # set if the metrics depend on the labels
    named_outputs: bool = False  # whether each output has the name of a label
    problem_type: str | None = None  # as in transformers' config.json
    missing_target: Callable[[int], Target] | None = None  # number of labels -> the target of a row without a label
    # Names of the fine-tuning settings that only some kinds support.
    settings: frozenset[str] = field(default_factory=frozenset)
    long_inputs: str = "which processes long texts in windows by itself"  # message if ``long_texts`` is not supported
    # Whether inputs beyond the maximum length are truncated, so that the length is chosen by the rows.
    cuts_texts: bool = False
    item_noun: str = "texts"  # plural name of training items, for messages
    answers: str = "one of its labels"  # description of the output in model cards, if outputs have no names
    calibrate: "Callable[[Predictor, Any, Sequence[str]], FittedTask] | None" = None  # for --calibrate, on dev rows
    fit_on_dev: Callable[[Predictor, Any], TaskLabels] | None = None  # always called, on dev rows
    labelled: bool = True
    unlabelled_note: str = ""  # error message where a kind without labels cannot be used

    def __str__(self) -> str:
        """Return the name, as messages show it."""
        return self.name


def column_names(kind: TaskKind, text: str | None, pair: str | None) -> dict[str, Any]:
    """Return the fields of ``TaskLabels`` that record the training columns; empty for inputs other than texts."""
    return {"text_column": text or RowSettings.text, "pair_column": pair} if kind.inputs == "texts" else {}


def deferred(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports ``module`` when it is called, because decoding modules import torch."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    call.__name__ = name
    return call
