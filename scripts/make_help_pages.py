"""Write the help page of every command, as ``cloze COMMAND --help`` prints it.

    python scripts/make_help_pages.py

Run it after changing a command's flags, or what is said of them.
"""

from io import StringIO

from rich.console import Console

from cloze.cli import COMMANDS, HELP_PAGES, build

WIDTH = 80


def page(command: str) -> str:
    """Render the page of a command."""
    text = StringIO()
    build(command).help_print([], console=Console(file=text, width=WIDTH, color_system=None))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().split("\n")) + "\n"


def main() -> None:
    """Write them all."""
    HELP_PAGES.mkdir(exist_ok=True)
    for command in COMMANDS:
        (HELP_PAGES / f"{command}.txt").write_text(page(command), encoding="utf-8")


if __name__ == "__main__":
    main()
