"""``--config run.toml`` and ``--recipe NAME``: a command's flags as a file. A flag on the command line wins over it."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection


class RunFile:
    """What Cyclopts asks for values that the command line left out.

    Its own reader would pass over a key that is also the name of a command (``vocab``), and offers no nearest name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--config {path}: cannot be read ({error.strerror})") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise ConfigError(f"--config {path}: not a TOML file ({error})") from error

    def __call__(self, app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:  # noqa: ARG002
        """Give the values of the file to the arguments that have none yet."""
        flags = _flags(arguments)
        for key, value in self._values.items():
            argument = flags.get(key.replace("_", "-"))
            if argument is None:
                raise ConfigError(f"{self._path}: unknown key {key!r}{did_you_mean(key, flags)}")
            _fill(argument, key, value, str(self._path))


def use_recipe(app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:  # noqa: ARG001
    """Give the values of the recipe, if one is named, to the arguments that have none yet."""
    flags = _flags(arguments)
    named = flags.get("recipe")
    if named is None or not named.tokens:
        return
    from cloze.train.pretraining.recipes import read_recipe

    name = named.tokens[-1].value
    for key, value in read_recipe(name).items():
        argument = flags.get(key.replace("_", "-"))
        if argument is not None:  # an audit has no use for the model's shape
            _fill(argument, key, value, f"recipe {name}")


def _flags(arguments: "ArgumentCollection") -> "dict[str, Argument]":
    return {name.removeprefix("--"): argument for argument in arguments for name in argument.names}


def _fill(argument: "Argument", key: str, value: Any, source: str) -> None:
    from cyclopts import Token

    if argument.tokens:
        return
    words = value if isinstance(value, list) else [value]
    wanted, any_number = argument.token_count()
    if isinstance(value, list) and not any_number and len(words) != wanted:
        raise ConfigError(
            f"{source}: {key} has {len(words)} values; {wanted} {'was' if wanted == 1 else 'were'} expected"
        )
    for index, word in enumerate(words):
        argument.append(Token(keyword=key, value=str(word), source=source, index=index))
