"""Defaults of fine-tuning that depend on the model and the data: learning rate, epochs, batch size and warm-up.

The paper's values (appendix A.3) suit models of hidden size 768 with thousands of rows. Smaller models need higher
rates, and few rows need more epochs, or training ends after too few updates. The measurements behind the values are in
docs/experiments/02-finetuning-defaults.md.
"""

from dataclasses import dataclass, fields, replace

from cloze.progress import Progress
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings

# Peak learning rate of full fine-tuning: (largest hidden size, rate).
_RATES = ((128, 1e-3), (256, 4e-4), (384, 2e-4), (512, 1e-4), (768, 5e-5))
_RATE_OF_LARGE_MODELS = 2e-5
# New layers on a frozen model start at random: they tolerate, and need, larger learning rates.
_FROZEN_RATE = 1e-3
_FEW_ROWS = 1000  # below it, smaller batches: more updates per epoch
_UPDATES = 250  # optimizer updates that a training should have
_FEWEST_EPOCHS, _MOST_EPOCHS = 3, 20
_WARMUP = 0.1


@dataclass(frozen=True)
class TrainingDefaults:
    """The values that are used where the settings leave them open."""

    learning_rate: float
    epochs: int
    batch_size: int
    warmup: float = _WARMUP


def choose_defaults(hidden_size: int, rows: int, settings: FinetuneSettings) -> TrainingDefaults:
    """Choose learning rate, epochs, batch size and warm-up for a model and a number of training rows.

    Args:
        hidden_size: Hidden size of the model.
        rows: Training rows per epoch.
        settings: What is trained; a batch size that is set decides how many updates an epoch has.

    Returns:
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


def updates_per_epoch(rows: int, batch_size: int) -> int:
    """Return the number of batches of an epoch; the last one may be smaller."""
    return max(1, -(-rows // batch_size))


def resolve_settings(settings: FinetuneSettings, hidden_size: int, rows: int, progress: Progress) -> ResolvedSettings:
    """Set the values that the settings leave open, and report them.

    Args:
        settings: The settings as given; what they set is kept.
        hidden_size: Hidden size of the model.
        rows: Training rows, without augmented copies.
        progress: Where the chosen values are reported.

    Returns:
        Settings with every value set. They depend on the arguments only, so that the same command resumes a run.
    """
    rows *= 1 + (settings.augment_copies if settings.augment != "none" else 0)
    resolved = fill_in(settings, choose_defaults(hidden_size, rows, settings))
    if None in (settings.learning_rate, settings.epochs, settings.batch_size):
        updates = resolved.epochs * updates_per_epoch(rows, resolved.batch_size)
        progress.say(
            f"learning rate {resolved.learning_rate:.0e}, {resolved.epochs} epochs (about {updates:,} updates), "
            f"batch size {resolved.batch_size}, warm-up {100 * resolved.warmup:g} %: for a model of hidden size "
            f"{hidden_size} with {rows:,} rows; --learning-rate, --epochs, --batch-size override"
        )
    return resolved


def fill_in(settings: FinetuneSettings, defaults: TrainingDefaults) -> ResolvedSettings:
    """Return the settings with the defaults where they are open."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    open_values = {name: value for name, value in vars(defaults).items() if values[name] is None}
    return replace(ResolvedSettings(), **(values | open_values))
