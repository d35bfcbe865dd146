"""Terminal output: control characters in labels and texts are displayed, not executed."""

import io
import sys

import pytest

from cloze.cli.console import Reporter, TerminalStream, escape_controls, print_json, print_table, protect_terminal

EVIL = "a\x1b]0;t\x07\r\x9bm\u202eb"
SHOWN = "a\\x1b]0;t\\x07\\r\\x9bm\\u202eb"


class Terminal(io.StringIO):
    """A terminal that records its output."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both outputs as a command sees them on a terminal without colors."""
    made = Terminal()  # inside the test, because pytest resets the outputs in each of its phases
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    protect_terminal()
    return made


def test_controls_are_escaped_and_nothing_else() -> None:
    assert escape_controls(EVIL) == SHOWN
    kept = "".join(chr(code) for code in [9, 10, *range(32, 127), *range(0xA0, 0x2028), 0x200D, 0x1F600])
    assert escape_controls(kept) == kept


def test_whatever_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
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
    protect_terminal()
    print_table(("label", "value"), [("cat", 1)])
    assert "\x1b[1m" in made.getvalue()  # a bold header


def test_a_pipe_gets_what_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = io.StringIO()
    monkeypatch.setattr(sys, "stdout", made)
    protect_terminal()
    assert not isinstance(sys.stdout, TerminalStream)
    print(EVIL)
    assert made.getvalue() == EVIL + "\n"
