"""``--help``: the list of commands in pipeline order, and the page of each command."""

import pytest

from cloze import __version__
from cloze.cli import COMMANDS
from make_help_pages import page
from tests.cli.conftest import Cloze


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_list_goes_along_the_flow(words: list[str], run: Cloze) -> None:
    result = run(*words)
    assert (result.code, result.err) == (0, "")
    listed = [line.split()[0] for line in result.out.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)


def test_version(run: Cloze) -> None:
    assert run("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_its_flags(command: str, run: Cloze) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: cloze {command}")
    assert "--json" in result.out
    # These flags are on by default or have a third value.
    assert "--no-" not in result.out.replace("--no-baseline", "").replace("--no-few", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_are_those_of_the_flags(command: str, run: Cloze) -> None:
    # If this fails, a flag has changed: run python scripts/make_help_pages.py
    assert run(command, "--help").out == page(command)


def test_page_holds_the_whole_description(run: Cloze) -> None:
    words = " ".join(run("pretrain", "--help").out.split())  # independent of line breaks
    assert "Re-running the same command resumes it." in words
