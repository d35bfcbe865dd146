"""The command line: the only place that reads argv, prints, or sets an exit code.

Exit codes: 0 done; 2 the user's mistake, one line on standard error; 130 and 143 interrupted and saved; 1 a defect of
cloze, whose traceback ``--debug`` shows.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cloze import __version__
from cloze.errors import ClozeError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from cyclopts import App

# Where each command lives, and its line in the list, along the flow from text to prediction. A module is imported when
# its command is called, so that help stays fast.
COMMANDS = {
    "demo": ("cloze.cli.demo", "The whole way on bundled text, in minutes, ending in a page to look at."),
    "vocab": ("cloze.cli.vocabulary", "Learn a WordPiece vocabulary from text files."),
    "tokens": ("cloze.cli.vocabulary", "Show the pieces, ids and offsets of texts, and how each word was read."),
    "coverage": ("cloze.cli.vocabulary", "Show how a vocabulary fares on a text, and the words worth adding."),
    "extend": (
        "cloze.cli.models",
        "Add words, names, positions or segments to a model; turn on rungs for unknown words.",
    ),
    "prepare": ("cloze.cli.corpus", "Split, tokenize and store text for pre-training."),
    "audit": ("cloze.cli.corpus", "Check the examples that a pre-training would see: masks, words, pairs."),
    "plan": ("cloze.cli.pretraining", "Say what a pre-training will take: memory, time, the loss to expect."),
    "pretrain": ("cloze.cli.pretraining", "Pre-train a model on a prepared corpus, from scratch or further."),
    "finetune": ("cloze.cli.finetuning", "Fine-tune a model on a task: one run, or a search over several."),
    "distill": ("cloze.cli.distillation", "Teach a smaller model what a fine-tuned one does."),
    "adapt": (
        "cloze.cli.distillation",
        "Let a model read a field's text and a task's own, then fine-tune and compare.",
    ),
    "evaluate": (
        "cloze.cli.finetuning",
        "Score a model: the official metrics of tasks, or its masked-word loss on a text.",
    ),
    "fill": ("cloze.cli.pretrained", "Fill the [MASK] blanks of texts."),
    "score": ("cloze.cli.pretrained", "Say how likely texts are."),
    "correct": ("cloze.cli.correction", "Find and correct mistakes in texts."),
    "follows": ("cloze.cli.pretrained", "Say how likely one text follows another."),
    "embed": ("cloze.cli.embedding", "Turn texts into vectors."),
    "classify": ("cloze.cli.finetuned", "Label texts, or rate them, with a fine-tuned model."),
    "tag": ("cloze.cli.tagging", "Tag the words of texts, and find the names in them."),
    "answer": ("cloze.cli.finetuned", "Find the answers to questions in texts."),
    "choose": ("cloze.cli.finetuned", "Choose which of several options fits a text."),
    "serve": ("cloze.cli.serving", "Answer over HTTP, with pages to try it in a browser."),
    "inspect": ("cloze.cli.inspection", "Show what attention does with a text, as a page in one file."),
    "heads": ("cloze.cli.inspection", "Say what each attention head does: six patterns, scored over a text."),
    "quantize": ("cloze.cli.models", "Write int8 weights beside a model; size, speed and score of both."),
    "export": ("cloze.cli.models", "Write a model as an ONNX graph."),
    "convert": ("cloze.cli.models", "Turn a TensorFlow or HF checkpoint into a model folder."),
    "doctor": ("cloze.cli.models", "Show versions, cores, threads and precision, ready to paste."),
}
HELP = ("--help", "-h")
HELP_PAGES = Path(__file__).parent / "help"
EVERYWHERE = "Every command also takes --config RUN.toml (its flags as a file) and --debug (tracebacks)."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take_flag(words, "--debug")
    if not words or words[0] in HELP:
        print(overview())
    elif words[0] == "--version":
        print(__version__)
    elif words[0] in COMMANDS and words[-1] in HELP:
        # Kept as text, since importing what renders it takes longer than anybody wants to wait for a page of help;
        # scripts/make_help_pages.py writes them, and a test compares.
        print(HELP_PAGES.joinpath(f"{words[0]}.txt").read_text(encoding="utf-8"), end="")
    else:
        sys.exit(_run(words[0], words[1:], debug))
    sys.exit(0)


def overview() -> str:
    """What ``cloze --help`` says."""
    lines = [f"  {name:<10} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: cloze COMMAND ...",
            "\nBERT, from raw text to a running service, on the machine you have.\n",
            *lines,
            "\ncloze COMMAND --help tells of its flags; cloze --version the version.",
            EVERYWHERE,
        ]
    )


def _run(command: str, words: list[str], debug: bool) -> int:
    from cyclopts import CycloptsError

    try:
        _listen_to_notes()
        build(command, _take_value(words, "--config"))(
            words, exit_on_error=False, print_error=False, result_action="return_none"
        )
    except (ClozeError, CycloptsError) as error:
        if debug:
            traceback.print_exc()
        _complain(_told(error, command))
        return 2
    except BrokenPipeError:  # the reader of our output has seen enough, as in "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except Exception as error:
        code = getattr(error, "exit_code", None)  # Interrupted, without importing what defines it
        if code is not None:
            _complain(str(error), "note")
            return int(code)
        if debug:
            traceback.print_exc()
        _complain(f"{type(error).__name__}: {_one_line(error)} (a defect of cloze; --debug shows where)")
        return 1
    return 0


def build(command: str, config: Path | None = None) -> "App":
    """The parser of one command."""
    from cyclopts import App, Parameter

    from cloze.cli.run_file import RunFile, use_recipe

    if command not in COMMANDS:
        raise ConfigError(f"unknown command {command!r}{did_you_mean(command, COMMANDS)}")
    app = App(
        name=f"cloze {command}",
        version_flags=[],
        help_epilogue=EVERYWHERE,
        help_format="plaintext",
        default_parameter=Parameter(negative=()),  # no --no-json beside every --json
        suppress_keyboard_interrupt=False,  # it is for us to say so
    )
    app.config = (*([RunFile(config)] if config is not None else []), use_recipe)
    app["--help"].show = False  # whoever reads it has found it
    app.default(getattr(import_module(COMMANDS[command][0]), command))
    return app


def _told(error: Exception, command: str) -> str:
    """The error in one line; the parser's word for a flag that is not there reads as if it were."""
    from cyclopts import MissingArgumentError

    if not isinstance(error, MissingArgumentError) or error.argument is None or error.argument.tokens:
        return _one_line(error)
    name, given = error.argument.name, list(error.tokens_so_far)
    if given:
        expected, _ = error.argument.token_count()
        return f"{name} is {' '.join(given)}; {expected} values were expected"
    return f"{name} is missing; 'cloze {command} --help' tells what it is"


def _take_flag(words: list[str], flag: str) -> bool:
    found = flag in words
    words[:] = [word for word in words if word != flag]
    return found


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


def _complain(message: str, kind: str = "error") -> None:
    print(f"cloze: {kind}: {message}", file=sys.stderr)


class _NoteHandler(logging.Handler):
    """Shows the library's notes as the command line shows its own, each of them once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._said:
            self._said.add(message)
            _complain(message, "note")


def _listen_to_notes() -> None:
    logger = logging.getLogger("cloze")
    logger.handlers = [_NoteHandler()]
    logger.propagate = False
