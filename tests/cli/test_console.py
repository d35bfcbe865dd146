"""Terminal output: control characters in labels and texts are displayed, not executed."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloze.cli.console import Reporter, TerminalStream, escape_controls, guard_outputs, print_json, print_table

EVIL = "a\x1b]0;t\x07\r\x9bm\u202eb"
SHOWN = "a\\x1b]0;t\\x07\\r\\x9bm\\u202eb"


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        return True


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Replace both outputs with those of a terminal without colors."""
    made = Terminal()  # done within the test, because pytest replaces the outputs for each of its phases
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    with guard_outputs():
        yield made


def test_controls_are_escaped_and_nothing_else() -> None:
    assert escape_controls(EVIL) == SHOWN
    kept = "".join(chr(code) for code in [9, 10, *range(32, 127), *range(0xA0, 0x2028), 0x200D, 0x1F600])
    assert escape_controls(kept) == kept


def test_whatever_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_terminal(monkeypatch) as terminal:
        print(EVIL)
        print(EVIL, file=sys.stderr)
        sys.stdout.writelines([EVIL, "\n"])
        print_json({"label": EVIL})
        print_table(("label", EVIL), [(EVIL, 1)])
        Reporter().say(EVIL)
    shown = terminal.getvalue()
    assert shown.count(SHOWN) == 6
    assert not set(shown) & set("\x07\r\x1b\x9b\u202e")


def test_rich_still_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", made)
    with guard_outputs():
        print_table(("label", "value"), [("cat", 1)])
    assert "\x1b[1m" in made.getvalue()  # the header is bold


def test_a_pipe_gets_what_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = io.StringIO()
    monkeypatch.setattr(sys, "stdout", made)
    with guard_outputs():
        assert not isinstance(sys.stdout, TerminalStream)
        print(EVIL)
    assert sys.stdout is made
    assert made.getvalue() == EVIL + "\n"


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["embed", "--help"], ["models"], ["tokens", "a cat", "--json"]])
def test_output_that_cannot_be_written_is_one_line(words: list[str], buffered: str) -> None:
    """A full disk is reported as a user error, whether the write fails immediately or at the last flush."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cloze", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": buffered},
        )
    expected = "cloze: error: standard output cannot be written (No space left on device); "
    assert (done.returncode, done.stderr) == (2, expected + "free some space, or write elsewhere\n")


@pytest.mark.parametrize("shell", ['"$@" 2>/dev/full', '"$@" 2>&-'])
def test_messages_that_cannot_be_written_end_nothing(shell: str) -> None:
    code = "import sys; from cloze.cli.console import Reporter, guard_outputs\n"
    code += "with guard_outputs(): Reporter().say('a'); print('b', file=sys.stderr); print('done')"
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_closed_output_is_no_defect() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "cloze", "models"], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
