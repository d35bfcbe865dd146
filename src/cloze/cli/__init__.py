"""The command line: the only place that reads argv, prints, or sets an exit code.

Exit codes: 0 done; 2 the user's mistake, one line on standard error; 130 and 143 interrupted and saved; 1 a defect of
cloze, whose traceback ``--debug`` shows.
"""

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from cloze import __version__
from cloze.errors import ClozeError

# Where each command lives, and its line in the list of commands. Modules are imported when a command is called, so
# that help stays fast.
COMMANDS = {
    "vocab": ("cloze.cli.words:vocab", "Learn a WordPiece vocabulary from text files."),
    "tokens": ("cloze.cli.words:tokens", "Show the pieces, ids and offsets of texts."),
    "prepare": ("cloze.cli.training:prepare", "Split, tokenize and store text for pre-training."),
    "pretrain": ("cloze.cli.training:pretrain", "Pre-train a model on a prepared corpus, from scratch or further."),
    "finetune": ("cloze.cli.training:finetune", "Fine-tune a model on a task."),
    "evaluate": ("cloze.cli.training:evaluate", "Score a fine-tuned model with the official metrics."),
    "fill": ("cloze.cli.predictions:fill", "Fill the [MASK] blanks of texts."),
    "follows": ("cloze.cli.predictions:follows", "Say how likely one text follows another."),
    "embed": ("cloze.cli.predictions:embed", "Turn texts into vectors."),
    "classify": ("cloze.cli.predictions:classify", "Label texts, or rate them, with a fine-tuned model."),
    "convert": ("cloze.cli.models:convert", "Turn a TensorFlow or HF checkpoint into a model folder."),
    "demo": ("cloze.cli.demo:demo", "The whole way on bundled text, in minutes, ending in a page to look at."),
    "doctor": ("cloze.cli.models:doctor", "Show versions, cores, threads and precision, ready to paste."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take_flag(words, "--debug")
    sys.exit(_run(words, debug))


def _run(words: list[str], debug: bool) -> int:
    from cyclopts import CycloptsError

    try:
        _listen_to_notes()
        _build(_take_value(words, "--config"))(
            words, exit_on_error=False, print_error=False, result_action="return_none"
        )
    except (ClozeError, CycloptsError) as error:
        if debug:
            traceback.print_exc()
        _complain(_one_line(error))
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


def _build(config: Path | None) -> "App":  # type: ignore[name-defined]  # noqa: F821
    from cyclopts import App

    from cloze.cli.run_file import RunFile

    app = App(
        name="cloze",
        version=__version__,
        help="BERT, from raw text to a running service, on the machine you have.",
        help_epilogue="Every command also takes --config RUN.toml (its flags as a file) and --debug (tracebacks).",
        help_format="plaintext",
        default_parameter=_no_negatives(),
        suppress_keyboard_interrupt=False,  # it is for us to say so
    )
    if config is not None:
        app.config = (RunFile(config),)
    for name, (home, summary) in COMMANDS.items():
        app.command(home, name=name, help=summary)
    return app


def _no_negatives() -> "Parameter":  # type: ignore[name-defined]  # noqa: F821
    from cyclopts import Parameter

    return Parameter(negative=())


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
    """Shows the library's notes as the command line shows its own."""

    def emit(self, record: logging.LogRecord) -> None:
        _complain(record.getMessage(), "note")


def _listen_to_notes() -> None:
    logger = logging.getLogger("cloze")
    logger.handlers = [_NoteHandler()]
    logger.propagate = False
