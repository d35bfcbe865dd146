"""The command line: the only package that reads argv, prints, or sets an exit code.

Flags may also come from a file (``--config RUN.toml``) or a recipe (``--recipe NAME``); the command line takes
precedence. Exit codes: 0 success; 2 an error of the user, reported in one line on standard error; 130 and 143
interrupted, with the work saved; 141 the output pipe was closed; 1 a bug in cloze, whose traceback ``--debug`` shows.
"""

import logging
import select
import sys
import traceback
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze import __version__
from cloze.errors import ClozeError, ConfigError, did_you_mean
from cloze.hardware import (
    LIBRARIES,
    TRAINING_LIBRARIES,
    available_memory,
    format_bytes,
    is_out_of_memory,
    require_address_space,
)
from cloze.options import NAMES_ELSEWHERE, suggest_name

if TYPE_CHECKING:
    from cyclopts import App
    from cyclopts.argument import Argument, ArgumentCollection

# The module and summary of each command, from text to prediction. Modules are imported when their command runs.
COMMANDS = {
    "demo": ("cloze.cli.experiments", "Run all steps on bundled text in minutes, and write a report page."),
    "compare": ("cloze.cli.experiments", "Compare BERT with its relatives, or variants of it, at equal budget."),
    "vocab": ("cloze.cli.vocabulary", "Learn a WordPiece vocabulary from text files."),
    "tokens": ("cloze.cli.vocabulary", "Show the pieces, ids and offsets of texts, and how each word was tokenized."),
    "coverage": ("cloze.cli.vocabulary", "Measure how well a vocabulary covers a text, and list words worth adding."),
    "extend": (
        "cloze.cli.models",
        "Add words, entities, positions or segments to a model; enable handling of unknown words.",
    ),
    "prepare": ("cloze.cli.pretraining", "Split, tokenize and store text for pre-training."),
    "audit": ("cloze.cli.pretraining", "Check the examples that pre-training would use: masks, words, pairs."),
    "plan": ("cloze.cli.pretraining", "Estimate memory, time and loss of a pre-training run."),
    "pretrain": ("cloze.cli.pretraining", "Pre-train a model on a prepared corpus, from scratch or from a checkpoint."),
    "finetune": ("cloze.cli.finetuning", "Fine-tune a model on a task: one run, or a search over several."),
    "distill": ("cloze.cli.distillation", "Distill a fine-tuned model into a smaller one."),
    "adapt": (
        "cloze.cli.distillation",
        "Continue pre-training on a domain and a task, then fine-tune and compare.",
    ),
    "evaluate": ("cloze.cli.finetuning", "Evaluate a model: the metrics of tasks, or its masked-LM loss on a text."),
    "suggest": ("cloze.cli.experiments", "Suggest which unlabelled texts to label next."),
    "fill": ("cloze.cli.language_model", "Predict the [MASK] blanks of texts."),
    "score": ("cloze.cli.language_model", "Score how likely texts are."),
    "generate": ("cloze.cli.language_model", "Continue texts with a left-to-right model."),
    "correct": ("cloze.cli.word_prediction", "Find and correct mistakes in texts."),
    "follows": ("cloze.cli.language_model", "Predict how likely one text follows another."),
    "embed": ("cloze.cli.embedding", "Embed texts as vectors."),
    "rerank": ("cloze.cli.embedding", "Sort documents by their relevance to a query."),
    "mine": ("cloze.cli.retrieval", "Find hard negatives for training search models."),
    "classify": ("cloze.cli.prediction", "Classify texts, or predict a number, with a fine-tuned model."),
    "tag": ("cloze.cli.word_prediction", "Tag the words of texts, and find entities."),
    "answer": ("cloze.cli.prediction", "Find the answers to questions in texts."),
    "choose": ("cloze.cli.prediction", "Choose which of several options fits a text."),
    "index": ("cloze.cli.serving", "Build an index of documents for semantic search; add and delete documents."),
    "search": ("cloze.cli.serving", "Search an index: by meaning, by words, or both."),
    "serve": ("cloze.cli.serving", "Serve models over HTTP, with pages to try them in a browser."),
    "inspect": ("cloze.cli.experiments", "Write a page that shows the attention over a text."),
    "explain": ("cloze.cli.experiments", "Show why a fine-tuned model gives a text its label, word by word."),
    "heads": ("cloze.cli.experiments", "Score every attention head for six patterns over a corpus."),
    "quantize": ("cloze.cli.models", "Write int8 weights for a model; compare size, speed and score."),
    "export": ("cloze.cli.models", "Write a model as an ONNX graph."),
    "convert": ("cloze.cli.models", "Convert a TensorFlow or Hugging Face checkpoint to a model folder."),
    "models": ("cloze.cli.models", "List the available models, with what each is and is not suited for."),
    "doctor": ("cloze.cli.models", "Show versions, cores, threads and precision, for bug reports."),
}
HELP = ("--help", "-h")
# The exit code of a process that was ended by SIGPIPE.
CLOSED_PIPE = 141
HELP_PAGES = Path(__file__).parent / "help"
EVERYWHERE = "Every command also takes --config RUN.toml (its flags as a file) and --debug (tracebacks)."
# Short names of flags, for commands that have no other flag of that name.
ALIASES = {
    "rate": "learning-rate",
    "batch": "batch-size",
    "length": "max-length",
    "adapt-rate": "adapt-learning-rate",
    "adapt-batch": "adapt-batch-size",
    "adapt-length": "adapt-max-length",
}

# Commands that train or evaluate, which load more libraries than others.
_TRAINING = frozenset({"demo", "compare", "plan", "pretrain", "finetune", "distill", "adapt", "evaluate"})
# Flags that reduce the memory a command needs.
_SAVING_FLAGS = ("batch-size", "accumulate", "checkpointing", "max-length", "preset")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    from cloze.cli.console import OutputError, guard_outputs

    words = list(sys.argv[1:] if arguments is None else arguments)
    with guard_outputs():
        try:
            code = _dispatch(words)
            sys.stdout.flush()  # now, because at exit the interpreter would report a closed pipe as an error
        except OutputError as error:
            _print_message(str(error))
            code = 2
        except BrokenPipeError:
            if not _reader_is_gone():
                raise
            code = CLOSED_PIPE
    sys.exit(code)


def _dispatch(words: list[str]) -> int:
    debug = _take_flag(words, "--debug")
    if not words or words[0] in HELP:
        print(overview())
    elif words[0] == "--version":
        print(__version__)
    elif words[0] in COMMANDS and words[-1] in HELP:
        return _print_help(words[0], words[1:-1])
    else:
        return _run(words[0], words[1:], debug)
    return 0


def _print_help(command: str, words: Sequence[str]) -> int:
    """Print the help page of a command; if a task is named, list only the flags of that task.

    Help pages are stored as text, since the imports needed to render them are slow. ``scripts/make_help_pages.py``
    writes them, and a test checks that they are up to date.
    """
    from cloze.cli import task_help

    if command not in task_help.COMMANDS or not words or words[0].startswith("-"):
        print(HELP_PAGES.joinpath(f"{command}.txt").read_text(encoding="utf-8"), end="")
        return 0
    try:
        print(task_help.page(command, words[0]), end="")
    except ConfigError as error:
        _print_message(str(error))
        return 2
    return 0


def _reader_is_gone() -> bool:
    """Return whether standard output is a pipe that was closed by its reader, as by "| head"."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # no file, as in a notebook
        return False


def overview() -> str:
    """Return the text of ``cloze --help``."""
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: cloze COMMAND ...",
            "\nBERT, from raw text to a running service, on the machine you have.\n",
            *lines,
            "\ncloze COMMAND --help lists the flags of a command; cloze --version prints the version.",
            EVERYWHERE,
        ]
    )


def _run(command: str, words: list[str], debug: bool) -> int:
    from cloze.cli.console import OutputError
    from cloze.locks import command_locks
    from cloze.threads import shorten_spinning

    shorten_spinning()
    flags: Collection[str] = ()
    try:
        require_address_space(TRAINING_LIBRARIES if command in _TRAINING else LIBRARIES)
        _show_notes()
        app = build(command, _take_value(words, "--config"))
        flags = _flags(app.assemble_argument_collection())
        words = _expand_aliases(words, flags)
        with command_locks():
            app(words, exit_on_error=False, print_error=False, result_action="return_none")
    except KeyboardInterrupt:
        _print_message("interrupted")
        return 130
    except Exception as error:
        if isinstance(error, OutputError) or (isinstance(error, BrokenPipeError) and _reader_is_gone()):
            raise
        return _report(error, command, words, flags, debug)
    return 0


def _report(error: Exception, command: str, words: Sequence[str], flags: Collection[str], debug: bool) -> int:
    """Print one line about an error and return the exit code."""
    from cyclopts import CycloptsError

    code = getattr(error, "exit_code", None)  # an attribute of Interrupted, whose module is not imported here
    if code is not None:
        _print_message(str(error), "note")
        return int(code)
    if debug:
        traceback.print_exc()
    if is_out_of_memory(error):
        _print_message(_describe_no_memory(error, flags))
        return 2
    if isinstance(error, ClozeError | CycloptsError):
        _print_message(_format_error(error, command, words, flags))
        return 2
    _print_message(f"{type(error).__name__}: {_one_line(error)} (a bug in cloze; --debug shows where)")
    return 1


def build(command: str, config: Path | None = None) -> "App":
    """Return the parser of one command."""
    from cyclopts import App, Parameter

    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}{did_you_mean(command, COMMANDS)}")
    app = App(
        name=f"cloze {command}",
        version_flags=[],
        help_epilogue=EVERYWHERE,
        help_format="plaintext",
        default_parameter=Parameter(negative=()),  # no --no-json in addition to --json
        suppress_keyboard_interrupt=False,  # main reports it
    )
    app.config = (*([RunFile(config)] if config is not None else []), use_recipe)
    app["--help"].show = False  # no need to list it in the help
    app.default(getattr(import_module(COMMANDS[command][0]), command))
    return app


class RunFile:
    """``--config RUN.toml``: values for flags that are not given on the command line.

    The reader of cyclopts skips keys that are also names of commands (``vocab``) and does not suggest similar names.
    """

    def __init__(self, path: Path) -> None:
        import tomllib

        self._path = path
        try:
            self._values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--config {path}: cannot be read ({error.strerror})") from error
        except ValueError as error:  # not UTF-8, or not TOML
            raise ConfigError(f"--config {path}: not a TOML file ({error})") from error

    def __call__(self, app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:  # noqa: ARG002
        """Set the arguments that have no value yet from the file."""
        flags = _flags(arguments)
        for key, value in self._values.items():
            argument = flags.get(_full_name(key.replace("_", "-"), flags))
            if argument is None:
                raise ConfigError(f"{self._path}: unknown key {key!r}{did_you_mean(key, flags)}")
            _fill(argument, key, value, str(self._path))


def use_recipe(app: "App", commands: tuple[str, ...], arguments: "ArgumentCollection") -> None:  # noqa: ARG001
    """Set the arguments that have no value yet from the recipe, if ``--recipe`` names one."""
    flags = _flags(arguments)
    recipe = flags.get("recipe")
    if recipe is None or not recipe.tokens:
        return
    from cloze.train.settings import read_recipe

    name = recipe.tokens[-1].value
    masking = flags.get("masking")
    other_masking = masking is not None and bool(masking.tokens)
    for key, value in read_recipe(name).items():
        argument = flags.get(key.replace("_", "-"))
        if key == "ngrams" and other_masking:
            continue  # the n-gram lengths belong to the masking of the recipe, which is not used
        if argument is not None:  # audit has no flags for the architecture
            _fill(argument, key, value, f"recipe {name}")


def _flags(arguments: "ArgumentCollection") -> "dict[str, Argument]":
    return {name.removeprefix("--"): argument for argument in arguments if argument.parse for name in argument.names}


def _full_name(name: str, flags: Collection[str]) -> str:
    return name if name in flags else ALIASES.get(name, name)


def _expand_aliases(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Replace short flag names (``--rate``) with their full names (``--learning-rate``)."""
    expanded = []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        expanded.append(f"--{_full_name(name, flags)}{equals}{value}" if word.startswith("--") else word)
    return expanded


def _fill(argument: "Argument", key: str, value: Any, source: str) -> None:
    from cyclopts import Token

    if argument.tokens:
        return
    words = value if isinstance(value, list | tuple) else [value]
    expected, any_number = argument.token_count()
    if isinstance(value, list | tuple) and not any_number and len(words) != expected:
        raise ConfigError(f"{source}: {key}: expected {expected} value{'' if expected == 1 else 's'}, got {len(words)}")
    for index, word in enumerate(words):
        argument.append(Token(keyword=key, value=str(word), source=source, index=index))


def _format_error(error: Exception, command: str, words: Sequence[str], flags: Collection[str]) -> str:
    """Return the error in one line, with a better message than the parser's for missing arguments."""
    from cyclopts import MissingArgumentError, UnknownOptionError

    if isinstance(error, UnknownOptionError):
        return _suggest_flag(error.token.keyword or "", flags) or _one_line(error)
    if isinstance(error, MissingArgumentError):
        # The missing argument may have been given under a wrong name.
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        suggested = [_suggest_flag(flag, flags) for flag in given if flag.removeprefix("--") not in flags]
        if first := next(filter(None, suggested), None):
            return first
    if not isinstance(error, MissingArgumentError) or error.argument is None or error.argument.tokens:
        return _one_line(error)
    name, values = error.argument.name, list(error.tokens_so_far)
    if values:
        expected, _ = error.argument.token_count()
        return f"{name} is {' '.join(values)}; expected {expected} values"
    return f"{name} is missing; 'cloze {command} --help' explains it"


def _describe_no_memory(error: Exception, flags: Collection[str]) -> str:
    """Describe an out-of-memory error in one line: the failed allocation, the free memory, and flags that need less."""
    reason = _one_line(error).partition(" Exception raised from")[0][:200]
    available = available_memory()
    left = "" if available is None else f"; {format_bytes(available.size)} are left ({available.limit})"
    saving = [f"--{flag}" for flag in _SAVING_FLAGS if flag in flags]
    remedy = f"try {', '.join(saving)}, or a smaller model" if saving else "use a smaller model or shorter texts"
    return f"not enough memory{f' ({reason})' if reason else ''}{left}; {remedy}"


def _suggest_flag(flag: str, flags: Collection[str]) -> str | None:
    """Return the error for a flag of another library, with its name here; None for any other flag."""
    name = flag.removeprefix("--")
    if NAMES_ELSEWHERE.get(name.replace("-", "_")) == ("train",):
        return f"unknown option {flag}; the training file is the argument after the task: cloze finetune TASK FILE"
    known = [one.replace("-", "_") for one in flags]
    remedy = suggest_name(name, known, lambda one: "--" + one.replace("_", "-"))
    return None if remedy is None else f"unknown option {flag}{remedy}"


def _take_flag(words: list[str], flag: str) -> bool:
    present = flag in words
    words[:] = [word for word in words if word != flag]
    return present


def _take_value(words: list[str], flag: str) -> Path | None:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != flag:
            continue
        if not equals and index + 1 == len(words):
            raise ClozeError(f"{flag} needs a file")
        taken = [word] if equals else words[index : index + 2]
        del words[index : index + len(taken)]
        return Path(value if equals else taken[1])
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _print_message(message: str, kind: str = "error") -> None:
    print(f"cloze: {kind}: {message}", file=sys.stderr)


class _NoteHandler(logging.Handler):
    """Prints the library's warnings as notes, each only once."""

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._printed:
            self._printed.add(message)
            _print_message(message, "note")


def _show_notes() -> None:
    logger = logging.getLogger("cloze")
    logger.handlers = [_NoteHandler()]
    logger.propagate = False
