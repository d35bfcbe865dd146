"""What fine-tuning may be told where rows are few. Light to import: settings are checked here."""

from typing import TYPE_CHECKING, Literal

from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.train.settings import FinetuneSettings

Augment = Literal["none", "contextual", "edits"]


def check_small_data(settings: "FinetuneSettings") -> None:
    """Refuse what cannot be, or would be silently left undone."""
    if not 0 <= settings.self_teaching < float("inf"):
        raise ConfigError(f"self_teaching is {settings.self_teaching}; a weight from 0 up was expected")
    if not 0 <= settings.teacher_decay < 1:
        raise ConfigError(f"teacher_decay is {settings.teacher_decay}; a share from 0 up to 1 was expected")
    if settings.self_teaching and settings.frozen is not None:
        raise ConfigError("self_teaching and frozen exclude each other; a frozen model has nothing to average")
    if settings.teacher_decay != type(settings).teacher_decay and not settings.self_teaching:
        raise ConfigError(f"teacher_decay is {settings.teacher_decay}, but nothing is averaged; give self_teaching too")
    if settings.augment_copies < 1:
        raise ConfigError(f"augment_copies is {settings.augment_copies}; at least 1 was expected")
    if settings.augment_copies > 1 and settings.augment == "none":
        raise ConfigError(
            f"augment_copies is {settings.augment_copies}, but no rows are made; choose contextual or edits as augment"
        )
    if settings.synonyms is not None and settings.augment != "edits":
        raise ConfigError(f"synonyms are for edits; augment is {settings.augment}")
