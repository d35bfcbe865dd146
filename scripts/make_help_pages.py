"""Write the help page of every command, as ``cloze COMMAND --help`` prints it, and the list of each task's flags.

    python scripts/make_help_pages.py

Run it after changing the flags of a command, their help texts, or the settings of a task kind.
"""

import json
from io import StringIO
from typing import Any

from cyclopts.help import DefaultFormatter, InlineText
from rich.console import Console
from rich.text import Text

from cloze.cli import COMMANDS, HELP_PAGES, build
from cloze.cli.task_help import INDEX, describe_tasks

WIDTH = 80


class _JoiningFormatter(DefaultFormatter):
    """Joins the lines of each description, since a docstring may wrap them at another width."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        for entry in panel.entries:
            description = entry.description
            if isinstance(description, InlineText) and isinstance(description.primary_renderable, Text):
                description.primary_renderable.plain = " ".join(description.primary_renderable.plain.split())
        super().__call__(console, options, panel)


def page(command: str) -> str:
    """Render the page of a command."""
    text, app = StringIO(), build(command)
    app.help_formatter = _JoiningFormatter()
    app.help_print([], console=Console(file=text, width=WIDTH, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n")) + "\n"


def index() -> str:
    """Return the flags of all tasks as JSON."""
    return json.dumps(describe_tasks(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all pages and the index."""
    HELP_PAGES.mkdir(exist_ok=True)
    for command in COMMANDS:
        (HELP_PAGES / f"{command}.txt").write_text(page(command), encoding="utf-8")
    INDEX.write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
