"""What cloze raises when the world, not the code, is at fault.

    ClozeError
      ConfigError       a flag, a run file or a setting
      DataError         text, rows or prepared shards
      CheckpointError   model folders, weights, training state
      RequestError      one request to a model: a text, a head that is not there

A message names the place (file, line, key), the value, what was expected and what to do. The command line prints it
as one line and exits with code 2; a traceback appears only with ``--debug``.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class ClozeError(Exception):
    """An error that the user can correct; the message names the place, the value and the remedy.

    Example:
        >>> try:
        ...     cloze.load("runs/missing")
        ... except cloze.ClozeError as error:
        ...     print(error)
    """


class ConfigError(ClozeError):
    """A flag, a run file or a setting is wrong."""


class DataError(ClozeError):
    """Text, rows or prepared data are missing or malformed."""


class CheckpointError(ClozeError):
    """A model folder, a weights file or a training state cannot be used."""


class RequestError(ClozeError):
    """One request cannot be answered by this model."""


def format_option(name: str, value: object = None) -> str:
    """Return a setting as Python and the command line name it, for messages that both show.

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
    """Return ``; did you mean 'x'?`` for the nearest known name, or the list of all of them."""
    choices = list(known)
    nearest = get_close_matches(name, choices, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; choose one of: {', '.join(choices)}"
