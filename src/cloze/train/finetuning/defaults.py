"""Defaults of fine-tuning that depend on the model and the data, and advice after an unsuccessful training.

The paper's values (appendix A.3) suit models of hidden size 768 with thousands of rows. Smaller models need higher
learning rates, and few rows need more epochs, because training would end after too few updates. The measurements behind
the values are in docs/experiments/02-finetuning-defaults.md and 05-finetuning-defaults-by-size.md.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from cloze.checkpoint import ModelFolder
from cloze.errors import ConfigError, format_option
from cloze.files import OUR_JSON_LIMIT, read_json
from cloze.progress import Progress, Silent
from cloze.tasks.examples import Item
from cloze.tasks.registry import TaskData
from cloze.tasks.reports import Evaluation
from cloze.text import Tokenizer
from cloze.train.finetuning.settings import (
    AUGMENTATION_SETTINGS,
    LOOP_SETTINGS,
    TRAINABLE_SETTINGS,
    FinetuneSettings,
    ResolvedSettings,
)
from cloze.train.run import SETTINGS

# Peak learning rate of full fine-tuning: (largest hidden size, learning rate). Measured at 256, 384 and 512: with 400
# rows of pairs, four times this learning rate costs 3 to 19 points at 384 and 512, twice about one. The value for 768
# is the paper's.
_RATES = ((128, 1e-3), (256, 4e-4), (384, 1e-4), (512, 1e-4), (768, 5e-5))
_RATE_OF_LARGE_MODELS = 2e-5
# New layers on a frozen model start at random, so they tolerate and need larger learning rates.
_FROZEN_RATE = 1e-3
_FEW_ROWS = 1000  # with fewer rows, smaller batches give more updates per epoch
_UPDATES = 250  # number of optimizer updates that a training should have
_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 20
_WARMUP = 0.1

# Retrieval and rerank: queries repeat few patterns, and more epochs mostly learn the passages by heart.
_MOST_RANKING_EPOCHS = 5
_LOW_RANK_RATE = 5e-4

# Maximum lengths to choose from, the fraction of the training rows that must fit, and the number of rows to sample.
_LENGTHS = (128, 256, 512)
_HELD = 0.95
_COUNTED = 1000

# Fine-tuning and the few-label method are compared for at least and for less than this many training rows; fewer rows
# give no reliable comparison (docs/experiments/04-few-labels.md).
_FEWEST_COMPARED, _MOST_COMPARED = 30, 500

# The grid of a search: batch sizes, and factors of the default rate and epochs.
BATCH_SIZES = (16, 32)
RATE_FACTORS, EPOCH_FACTORS = (0.5, 1.0, 2.0), (2 / 3, 1.0, 4 / 3)

# Advice: the loss is compared between quarters of the training, each with at least this many logged values.
_LOGGED_PER_QUARTER = 2
_FALLING = 0.05  # still falling: in the last quarter, the loss fell by this fraction of the first quarter's mean
_LEARNED = 0.2  # below this fraction of the first quarter's loss, the rows are learned; more epochs would overfit
_ONE_LABEL = 0.95  # fraction of the dev rows with the same prediction that is suspicious
_FEWEST_ROWS = 8  # with fewer dev rows, equal predictions may be chance
_UNBALANCED = 0.8  # the labels are unbalanced if this fraction of the dev rows has the same one

History = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class TrainingDefaults:
    """Values for the settings that were not given."""

    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float = _WARMUP
    max_length: int = _LENGTHS[0]


@dataclass(frozen=True)
class ChosenLength:
    """A maximum length in tokens, and the fraction of the training rows that fit into it."""

    tokens: int
    held: float

    def __str__(self) -> str:
        return f"maximum length {self.tokens} (holds {math.floor(100 * self.held)} % of the rows)"


# Contrastive training of the few-label method: one epoch, whose length depends on the number of pairs.
_CONTRASTIVE = TrainingDefaults(learning_rate=5e-5, epochs=1, batch_size=16)


def choose_defaults(hidden_size: int, rows: int, settings: FinetuneSettings) -> TrainingDefaults:
    """Choose learning rate, epochs, batch size and warm-up for a model and a number of training rows.

    Args:
        hidden_size: Hidden size of the model.
        rows: Training rows per epoch.
        settings: The settings as given; a given batch size determines the number of updates per epoch.

    Returns:
        The defaults.
        The defaults.
    """
    rate = next((rate for largest, rate in _RATES if hidden_size <= largest), _RATE_OF_LARGE_MODELS)
    batch_size = 16 if rows < _FEW_ROWS else 32
    epochs = -(-_UPDATES // updates_per_epoch(rows, settings.batch_size or batch_size))
    return TrainingDefaults(
        rate if settings.trains_all else _FROZEN_RATE,
        min(max(epochs, _FEWEST_EPOCHS), _MOST_EPOCHS),
        batch_size,
    )


def choose_ranking_defaults(
    hidden_size: int, rows: int, settings: FinetuneSettings, *, pairs: bool = False
) -> TrainingDefaults:
    """Choose learning rate, epochs and batch size of retrieval and, with ``pairs``, of rerank.

    Large batches have more negatives, and one epoch is enough if there are many rows.
    """
    batch_size = 16 if pairs else 64
    epochs = -(-_UPDATES // updates_per_epoch(rows, settings.batch_size or batch_size))
    rate = choose_defaults(hidden_size, rows, settings).learning_rate
    if not pairs and not settings.trains_all:
        rate = _LOW_RANK_RATE
    return TrainingDefaults(rate, min(epochs, _MOST_RANKING_EPOCHS), batch_size)


def updates_per_epoch(rows: int, batch_size: int) -> int:
    """Return the number of batches of an epoch; the last one may be smaller."""
    return max(1, -(-rows // batch_size))


def is_compared(data: TaskData, settings: FinetuneSettings) -> bool:
    """Return whether to compare fine-tuning and the few-label method: rows are few and no setting selects one.

    Args:
        data: The rows.
        settings: The settings as given. A setting about fine-tuning, such as epochs, selects fine-tuning.
    """
    if settings.few is not None or isinstance(settings, ResolvedSettings) or "few" not in data.kind.settings:
        return False
    chosen = settings.chosen((*LOOP_SETTINGS, *TRAINABLE_SETTINGS, *AUGMENTATION_SETTINGS))
    return not chosen and _FEWEST_COMPARED <= len(data.train) < _MOST_COMPARED


def choose_length(
    rows: int, encode: Callable[[Sequence[int], Tokenizer], Sequence[Item]], tokenizer: Tokenizer
) -> ChosenLength:
    """Choose the shortest of the usual lengths that fits nearly all of the training rows.

    Args:
        rows: Number of training rows, of which a fixed random sample is encoded.
        encode: Encodes rows, given by their indices, with a tokenizer.
        tokenizer: The model's tokenizer, whose maximum length is an upper bound.

    Returns:
        The length; the longest one if none fits enough of the rows.
    """
    sample = sorted(Random(0).sample(range(rows), min(rows, _COUNTED)))
    lengths = sorted({min(length, tokenizer.max_length) for length in _LENGTHS})
    for length in lengths:
        items = encode(sample, tokenizer.with_max_length(length))
        cut = sum(any(encoding.dropped for encoding in item.encodings) for item in items)
        chosen = ChosenLength(length, 1 - cut / max(1, len(items)))
        if chosen.held >= _HELD:
            break
    return chosen


def choose_task_length(data: TaskData, tokenizer: Tokenizer, settings: FinetuneSettings) -> ChosenLength | None:
    """Choose the maximum length for the rows of a task; None if it is given or long texts are split into windows."""
    if settings.max_length is not None or not data.kind.cuts_texts or settings.long_texts == "windows":
        return None

    def encode(indices: Sequence[int], shortened: Tokenizer) -> Sequence[Item]:
        assert data.kind.items is not None, "kinds with labels have items"
        return data.kind.items(data.train.select(indices), shortened, settings, Silent())

    return choose_length(len(data.train), encode, tokenizer)


def keep_recorded_length(settings: FinetuneSettings, out: str | Path, *, fresh: bool) -> FinetuneSettings:
    """Return the settings with the maximum length of the run to resume, if none was given.

    Runs of earlier versions used another default and are resumed with it.
    """
    path = Path(out) / SETTINGS
    if settings.max_length is not None or fresh or not path.is_file():
        return settings
    recorded = read_json(path, ConfigError, OUR_JSON_LIMIT).get("max_length")
    return replace(settings, max_length=recorded) if isinstance(recorded, int) else settings


def resolve_settings(
    settings: FinetuneSettings, hidden_size: int, rows: int, progress: Progress, length: ChosenLength | None = None
) -> ResolvedSettings:
    """Set the values that were not given, and report them.

    Args:
        settings: The settings as given; given values are kept.
        hidden_size: Hidden size of the model.
        rows: Number of training rows, without augmented copies.
        progress: Receives the report of the chosen values.
        length: The maximum length chosen by the rows, if it was not given.

    Returns:
        Settings with every value set. They depend only on the arguments, so that the same command resumes a run.
    """
    if settings.few:
        # Learning rate, epochs and batch size are used only by contrastive training, which reports them.
        report_length(length, progress)
        return fill_in(settings, _CONTRASTIVE, length)
    rows *= 1 + (settings.augment_copies if settings.augment != "none" else 0)
    resolved = fill_in(settings, choose_defaults(hidden_size, rows, settings), length)
    if None not in (settings.learning_rate, settings.epochs, settings.batch_size):
        report_length(length, progress)
        return resolved
    updates = resolved.epochs * updates_per_epoch(rows, resolved.batch_size)
    shown = "" if length is None else f", {length}"
    names = ["learning_rate", "epochs", "batch_size", *([] if length is None else ["max_length"])]
    progress.say(
        f"learning rate {resolved.learning_rate:.0e}, {resolved.epochs} epochs (about {updates:,} updates), "
        f"batch size {resolved.batch_size}, warm-up {100 * resolved.warmup:g} %{shown}: for a model of hidden size "
        f"{hidden_size} with {rows:,} rows; {', '.join(map(format_option, names))} override"
    )
    return resolved


def resolve_task_settings(
    settings: FinetuneSettings, data: TaskData, base: ModelFolder, progress: Progress
) -> ResolvedSettings:
    """Set the values that were not given, for the rows of a task and the model to start from."""
    length = choose_task_length(data, base.tokenizer, settings)
    return resolve_settings(settings, base.model.config.hidden_size, len(data.train), progress, length)


def report_length(length: ChosenLength | None, progress: Progress) -> None:
    """Report a maximum length chosen by the rows, if no other default is reported."""
    if length is not None:
        progress.say(f"{length}; {format_option('max_length')} overrides")


def fill_in(
    settings: FinetuneSettings, defaults: TrainingDefaults, length: ChosenLength | None = None
) -> ResolvedSettings:
    """Return the settings with defaults, and with the chosen length, for values that were not given."""
    defaults = defaults if length is None else replace(defaults, max_length=length.tokens)
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    open_values = {name: value for name, value in vars(defaults).items() if values[name] is None}
    return replace(ResolvedSettings(), **(values | open_values))


def grid_settings(settings: ResolvedSettings, hidden_size: int, rows: int) -> Iterator[ResolvedSettings]:
    """Yield the settings of a grid as large as the paper's, around the defaults for the model and the rows."""
    center = choose_defaults(hidden_size, rows, replace(settings, batch_size=BATCH_SIZES[-1]))
    rates = [center.learning_rate * factor for factor in RATE_FACTORS]
    epoch_counts = [max(1, round(center.epochs * factor)) for factor in EPOCH_FACTORS]
    for batch_size, rate, epochs in product(BATCH_SIZES, rates, epoch_counts):
        yield replace(settings, batch_size=batch_size, learning_rate=rate, epochs=epochs)


def advise(
    history: History, evaluation: Evaluation | None, settings: ResolvedSettings, defaults: TrainingDefaults, metric: str
) -> list[str]:
    """Suggest changes after an unsuccessful training.

    Args:
        history: The metrics of the run: rows with ``loss`` and rows with ``dev_`` scores.
        evaluation: The final evaluation on the dev rows, if they have labels.
        settings: The settings that were used.
        defaults: The defaults for this model and these rows.
        metric: The dev score that selects models; higher is better.

    Returns:
        At most one line, about a loss that rose, one label for nearly all rows, or a loss that was still falling.
    """
    quarters = _loss_quarters([row["loss"] for row in history if "loss" in row])
    rose = _advise_on_rise(quarters, settings, defaults)
    one_label = None if rose or evaluation is None else _advise_on_one_label(evaluation, settings, defaults)
    scores = [row[f"dev_{metric}"] for row in history if f"dev_{metric}" in row]
    # If an earlier dev score was better, more training would overfit.
    is_best = not scores or scores[-1] >= max(scores)
    falling = _advise_on_fall(quarters, settings) if is_best and not rose and not one_label else None
    return [line for line in (rose, one_label, falling) if line is not None]


def _loss_quarters(losses: Sequence[float]) -> list[Sequence[float]]:
    """Split the logged losses into four parts of equal length; return no parts if there are too few losses."""
    size = len(losses) // 4
    start = len(losses) - 4 * size
    ends = range(start, len(losses), size) if size >= _LOGGED_PER_QUARTER else ()
    return [losses[place : place + size] for place in ends]


def _advise_on_rise(
    quarters: Sequence[Sequence[float]], settings: ResolvedSettings, defaults: TrainingDefaults
) -> str | None:
    """Return advice if the loss ended above its start or is not finite."""
    if not quarters:
        return None
    first, last = fmean(quarters[0]), fmean(quarters[3])
    if math.isfinite(last) and last - first <= 2 * _standard_error(quarters[0], quarters[3]) + _FALLING * abs(first):
        return None
    return (
        f"the training loss rose from {first:.3g} to {last:.3g}, so the training diverged: "
        f"try {format_option('learning_rate', _lower_rate(settings, defaults))}"
    )


def _advise_on_one_label(evaluation: Evaluation, settings: ResolvedSettings, defaults: TrainingDefaults) -> str | None:
    """Return advice if nearly all dev rows get the same prediction, although their labels differ."""
    rows, targets = len(evaluation.predictions), evaluation.targets
    if targets is None or rows < _FEWEST_ROWS:
        return None
    ((label, predicted),) = Counter(evaluation.predictions).most_common(1)
    ((_, most_frequent),) = Counter(targets).most_common(1)
    # If nearly all rows have one label, predicting it for nearly all rows is correct.
    if most_frequent == rows or predicted < _ONE_LABEL * rows or (predicted < rows and most_frequent >= predicted):
        return None
    if most_frequent >= _UNBALANCED * rows and evaluation.confusion is not None and settings.class_weights == "none":
        remedy = format_option("class_weights", "balanced")
    elif settings.learning_rate > 1.5 * defaults.learning_rate:
        remedy = format_option("learning_rate", _lower_rate(settings, defaults))
    elif settings.learning_rate < defaults.learning_rate / 1.5:
        remedy = format_option("learning_rate", defaults.learning_rate)
    else:
        remedy = _more_epochs_or(settings, settings.learning_rate / 2)
    return f"the model predicts {label!r} for {predicted} of {rows} dev rows: try {remedy}"


def _advise_on_fall(quarters: Sequence[Sequence[float]], settings: ResolvedSettings) -> str | None:
    """Return advice if the loss fell clearly in the last quarter of the training and is not low yet."""
    if not quarters:
        return None
    first, before, last = fmean(quarters[0]), fmean(quarters[2]), fmean(quarters[3])
    clear = max(_FALLING * first, 2 * _standard_error(quarters[2], quarters[3]))
    if before - last <= clear or last < _LEARNED * first:
        return None
    return (
        f"the training loss was still falling at the end (from {before:.3g} to {last:.3g} in the last quarter): "
        f"try {_more_epochs_or(settings, 2 * settings.learning_rate)}"
    )


def _more_epochs_or(settings: ResolvedSettings, rate: float) -> str:
    return f"{format_option('epochs', 2 * settings.epochs)}, or {format_option('learning_rate', rate)}"


def _lower_rate(settings: ResolvedSettings, defaults: TrainingDefaults) -> float:
    """Return the learning rate to suggest: the default if it is less than half the current one, else a third of it."""
    rate = settings.learning_rate
    return defaults.learning_rate if rate > 2 * defaults.learning_rate else rate / 3


def _standard_error(*parts: Sequence[float]) -> float:
    """Return the standard error of the difference between the means of two parts."""
    return math.sqrt(sum(stdev(part) ** 2 / len(part) for part in parts))
