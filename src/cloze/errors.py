"""Exceptions for errors that the user can fix.

    ClozeError
      ConfigError       a flag, a run file or a setting
      DataError         text, rows or prepared shards
      CheckpointError   model folders, weights, training state
      RequestError      a single request to a model, such as an invalid text or a missing head

A message names the place (file, line, key), the value, what was expected and a remedy. The command line prints it on
one line and exits with code 2; a traceback is shown only with ``--debug``.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class ClozeError(Exception):
    """Base class of all errors that the user can fix; the message explains how.

    Example:
        >>> import cloze
        >>> try:
        ...     cloze.load("no/such/folder/here")
        ... except cloze.ClozeError as error:
        ...     print(type(error).__name__)
        CheckpointError
    """


class ConfigError(ClozeError):
    """A flag, a run file or a setting is invalid."""


class DataError(ClozeError):
    """Text, rows or prepared data are missing or malformed."""


class CheckpointError(ClozeError):
    """A model folder, a weights file or a training state cannot be used."""


class RequestError(ClozeError):
    """A request cannot be processed by this model."""


def format_option(name: str, value: object = None) -> str:
    """Return a setting with its Python and command-line names, for messages shown in both.

    Example:
        >>> format_option("max_length"), format_option("learning_rate", 2e-5), format_option("few", False)
        ('max_length (--max-length)', 'learning_rate=2e-05 (--learning-rate 2e-05)', 'few=False (--no-few)')
    """
    flag = name.replace("_", "-")
    if value is None:
        return f"{name} (--{flag})"
    if isinstance(value, bool):
        return f"{name}={value} (--{flag if value else f'no-{flag}'})"
    shown = f"{value:.2g}" if isinstance(value, float) else str(value)
    return f"{name}={repr(value) if isinstance(value, str) else shown} (--{flag} {shown})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the most similar known name, or a list of all known names."""
    choices = list(known)
    nearest = get_close_matches(name, choices, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; choose one of: {', '.join(choices)}"
