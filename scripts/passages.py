"""Collect the prose of the project: docstrings, comments, help texts, messages and documentation.

``scripts/word_lint.py`` checks it and ``scripts/sample_passages.py`` draws from it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

ROOT = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("src", "benchmarks", "torture", "scripts", "tests")
HELP_FOLDER = Path("src/cloze/cli/help")

Source = Literal["docstring", "comment", "help", "message", "docs"]
SOURCES: tuple[Source, ...] = get_args(Source)

# Methods and functions whose first argument is shown to the user.
SPEAKERS = frozenset({"say", "warn", "warning", "cut", "_print_message", "print"})
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|pragma|lint:|fmt:|!|--)")  # not prose; "--" marks a heading
_TYPES = frozenset({"INT", "FLOAT", "STR", "PATH", "CHOICE"})
_INDENT = 5  # largest indent of the first line of an entry in a help page; continuation lines are indented more


class Passage(NamedTuple):
    """A piece of prose, its location, and the code that a reader needs to judge it."""

    path: str  # relative to the root
    line: int
    source: Source
    text: str
    context: str = ""


def passages(root: Path = ROOT, *, chinese: bool = False) -> list[Passage]:
    """Return all passages under a root; with ``chinese``, only those of the Chinese Markdown files."""
    found: list[Passage] = []
    if not chinese:
        for path in python_files(root):
            found += python_passages(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((root / HELP_FOLDER).rglob("*.txt")):
            found += help_passages(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    for path in markdown_files(root):
        name = path.relative_to(root).as_posix()
        if is_chinese(name) == chinese:
            found += markdown_passages(name, path.read_text(encoding="utf-8"))
    return found


def python_files(root: Path) -> list[Path]:
    """Return the Python files of all code folders."""
    return sorted(path for folder in CODE_FOLDERS for path in (root / folder).rglob("*.py"))


def markdown_files(root: Path) -> list[Path]:
    """Return the Markdown files in the root and in ``docs``."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def is_chinese(path: str) -> bool:
    """Return whether the document with this path is a Chinese page."""
    return ".zh." in path or "/zh/" in path


def python_passages(path: str, source: str) -> list[Passage]:
    """Return the docstrings, comments and messages of a module."""
    lines = source.splitlines()
    tree = ast.parse(source)
    found = [
        Passage(path, node.lineno, "docstring", ast.get_docstring(owner) or "", definition(owner, lines))
        for owner, node in docstrings(tree)
    ]
    found += [Passage(path, line, "comment", text, code) for line, text, code in comments(source)]
    found += [Passage(path, line, "message", text) for line, text in messages(tree)]
    return found


def docstrings(tree: ast.Module) -> Iterator[tuple[Documented, ast.Constant]]:
    """Yield every module, class or function that has a docstring, together with its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield node, first.value


def definition(owner: Documented, lines: list[str]) -> str:
    """Return the lines of a ``def`` or ``class`` statement up to its docstring; for a module, an empty string."""
    if isinstance(owner, ast.Module):
        return ""
    return "\n".join(lines[owner.lineno - 1 : owner.body[0].lineno - 1])


def comments(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the first line, the text and the code of each comment; lines of one block are joined."""
    lines = source.splitlines()
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        alone = not lines[line - 1][:column].strip()
        if block and not (alone and line == block[-1][0] + 1):
            yield _comment(block, lines)
            block = []
        if _DIRECTIVE.match(token.string):
            continue
        text = token.string.lstrip("#").strip()
        if alone:
            block.append((line, text))
        else:
            yield line, text.partition("  # ")[0], lines[line - 1][:column].rstrip()
    if block:
        yield _comment(block, lines)


def _comment(block: list[tuple[int, str]], lines: list[str]) -> tuple[int, str, str]:
    last = block[-1][0]
    following = next((line for line in lines[last:] if line.strip()), "")
    return block[0][0], "\n".join(text for _, text in block), following


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message: raised errors, notes, warnings and printed lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call = node.exc
        elif isinstance(node, ast.Call) and _called(node) in SPEAKERS:
            call = node
        else:
            continue
        for argument in call.args[:1]:
            if text := template(argument):
                yield argument.lineno, text


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def template(node: ast.expr) -> str:
    """Return the text of a string literal, with the expressions of an f-string in braces; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else template(part)
            for part in node.values
        )
    return ""


def help_passages(path: str, page: str) -> list[Passage]:
    """Return the description and the entries of a help page that is stored as text."""
    found: list[Passage] = []
    entry: list[str] = []
    start = 0
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        inside = line.startswith("│")
        content = line.strip("│ \n")
        indent = len(line[1:]) - len(line[1:].lstrip()) if inside else 0
        # A line that starts with a type continues a wrapped list of types, so it begins no entry.
        begins = indent <= _INDENT and content.split(" ")[0] not in _TYPES
        if entry and (not content or line[:1] in "╭╰" or (inside and begins)):
            found.append(Passage(path, start, "help", " ".join(entry)))
            entry = []
        if content and line[:1] not in "╭╰":
            start = start if entry else number
            entry.append(content)
    return [passage for passage in found if not passage.text.startswith("Usage:")]


def markdown_passages(path: str, text: str) -> list[Passage]:
    """Return the paragraphs, list items and table rows of a document; code blocks and headings are left out."""
    found: list[Passage] = []
    paragraph: list[str] = []
    start, fenced = 0, False

    def close() -> None:
        if paragraph:
            found.append(Passage(path, start, "docs", "\n".join(paragraph)))
            paragraph.clear()

    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        if fenced or not bare or bare.startswith(("```", "#", "<!--", "|--", "|:-", "| --", "| :-")):
            close()
            continue
        if re.match(r"(?:[-*+]|\d+\.)\s|\|", bare):
            close()
        if not paragraph:
            start = number
        paragraph.append(bare)
    close()
    return found
