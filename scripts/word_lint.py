"""Report phrases that read like a translation, each with a suggested replacement.

    python scripts/word_lint.py [PATH ...]

Checks comments, docstrings and other texts of the Python files under src, benchmarks, torture, scripts and tests, the
texts of the pages, and the Markdown files in the root and in docs; or only the given files and folders. Exits with 1 if
a phrase is found.

A line, or a statement that begins in a line, with ``lint: allow`` in a comment is not checked. Nor are code blocks and
`quoted code` in Markdown, and strings of fewer than three words, which are names. A Python file with the line
``# lint: allow file`` is not checked at all.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from passages import ROOT, comments, docstrings, is_chinese, markdown_files, markdown_passages, python_files

ALLOW = "lint: allow"
ALLOW_FILE = "# lint: allow file"
FEWEST_WORDS = 3
PAGE_SUFFIXES = frozenset({".html", ".js"})
_COUNTED = "tokens|steps|sequences|texts|requests|words|pairs|lines|rows|sentences|bytes|vectors|examples|batches"
_UNITS = "second|minute|hour|update|step|epoch|process|day|layer|token|core"
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
# Comments and strings of JavaScript; strings that span several lines are rare in the pages.
_SCRIPT_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"|'[^'\n]*'|`[^`]*`", re.DOTALL)

# Regular expression (case-insensitive; a space matches any whitespace) -> suggested wording.
PHRASES = {  # lint: allow
    r"\btold\b": "'reported', 'warned', 'specified', 'given', or name the thing",
    r"\btells? (?:how|what|which|whether|why)\b": "'reports', 'describes', 'determines'",
    r"\b(?:go|goes|going|gone|went) on (?:with|where|from)\b": "'resume', 'continue', 'use'",
    r"\bto be had\b": "'available'",
    r"\bwhom\b": "'who', 'which', or name the thing",
    r"\bwhoever\b": "'anyone who', 'users who', 'callers that'",
    r"\bso many\b": "'that many', 'the number of'",
    r"\bever after\b": "'from then on'",
    r"\bas if left\b": "'by default'",
    r"\bin which numbers\b": "'precision'",
    r"\bwork(?:s|ed|ing)? off\b": "'process', 'compute'",
    r"\b(?:is|are|was|were) to (?:find|be)\b": "'must', 'should', or the verb itself",
    r"\bown way\b": "'separately', 'differently'",
    r"\bpart(?:s|ed|ing)? in peace\b": "'destroy the process group', 'close the connection'",
    r"\bnothing but\b": "'only'",
    r"\bwhat (?:is|was|were|are) (?:kept|told|said|asked|made|left|wanted|given|done|there|to)\b": "name the thing",
    r"\bwhat can be said\b": "'settings', 'description'",
    r"\bto the bit\b": "'bit-identical'",
    r"\bto the (?:last )?digit\b": "'exactly'",
    r"\bwhich is what\b": "a new sentence",
    r"\bthat is what\b": "name the thing",
    r"\bhowever unsure\b": "'regardless of the score'",
    r"\b(?:has|have|had) read (?:too |so )?(?:much|more|little|less|nothing)\b": "'trained on much/little text'",
    r"\bchange their places\b": "'are swapped'",
    r"\b(?:is|are|was|were) said\b": "'is stated', 'is reported', 'is documented'",
    r"\bsay(?:s)? nothing\b": "'is silent about', 'does not specify', 'predicts no label'",
    r"\bbear(?:s|ing)? (?:a |an |the |its |their |any |no )?(?:label|name|number|mark|tag)s?\b": "'have', 'carry'",
    r"\blest\b": "'so that ... not'",
    r"\bin vain\b": "'without success'",
    r"\bmend(?:s|ed|ing)?\b": "'fix', 'repair', 'correct'",
    r"\ball the same\b": "'anyway', 'nevertheless'",
    r"\bsomebody(?: else)?'s\b": "'another user's', 'the user's'",
    r"\bleave[s]? the choice\b": "'with auto', 'by default'",
    r"\bstarted otherwise\b": "'settings differ from those of the run'",
    r"\b(?:as|so) much as is there\b": "'all of it'",
    r"\bwhat (?:a|the) kill leaves\b": "'what remains after being killed'",
    rf"\b(?:{_COUNTED}) an? (?:{_UNITS})\b": "'per', as in 'per second'",
    r"\bby an? (?:update|step) of (?:its|their) own\b": "'separately'",
    r"[;:,] left out, ": "'by default, '",
    r"\bif left out\b": "'by default'",
    r"\bwith (?:the )?program itself\b": "'includes the interpreter and libraries'",
    r"\bworks? its way\b": "'proceeds'",
    r"\b(?:there|here)(?:upon|of|in|from)\b": "plain words",
    r"\b(?:hitherto|henceforth|whereupon|thereafter)\b": "'so far', 'from now on', 'then', 'later'",
    r"\bfor want of\b": "'without', 'for lack of'",
    r"\bas (?:it|they) (?:is|are|was|were) (?:told|said|asked)\b": "name the thing",
    r"\bgoes unheard\b": "'is ignored'",
    r"\bto (?:one|us|them|him|her)self what\b": "name the thing",
    r"\bthe likelier\b": "'the more likely'",
    r"\bmade up for\b": "'compensated'",
    r"\bcome(?:s)? to grief\b": "'fails'",
    r"\bhow (?:sure|likely) somebody\b": "'the probability that'",
}
_PATTERNS = [(re.compile(phrase.replace(" ", r"\s+"), re.IGNORECASE), hint) for phrase, hint in PHRASES.items()]


class Finding(NamedTuple):
    """A phrase to reword, with its location and a suggestion."""

    path: str
    line: int
    phrase: str
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.hint}"


def lint(path: str, content: str) -> list[Finding]:
    """Return the findings in a file, in the order of its lines."""
    if path.endswith(".py"):
        texts = [*python_texts(content)]
        allowed = allowed_lines(content)
    else:
        texts = [*markdown_texts(path, content)] if path.endswith(".md") else [*page_texts(path, content)]
        lines = content.splitlines()
        allowed = {number + add for number, line in enumerate(lines, 1) if ALLOW in line for add in (0, 1)}
    found = {
        Finding(path, line + text.count("\n", 0, match.start()), " ".join(match[0].split()).strip(";:, "), hint)
        for line, text in texts
        for pattern, hint in _PATTERNS
        for match in pattern.finditer(text)
    }
    return sorted(finding for finding in found if finding.line not in allowed)


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every comment, docstring and string of several words."""
    yield from ((line, text) for line, text, _ in comments(source))
    tree = ast.parse(source)
    documentation = {id(node) for _, node in docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in documentation:
                yield node.lineno, _without_code(node.value)
            elif len(node.value.split()) >= FEWEST_WORDS:
                yield node.lineno, node.value


def allowed_lines(source: str) -> set[int]:
    """Return the lines that are not checked: comments with ``lint: allow`` and statements with it in the first line."""
    if ALLOW_FILE in source.splitlines():
        return set(range(1, source.count("\n") + 2))
    allowed = {number for number, line in enumerate(source.splitlines(), 1) if ALLOW in line}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno in allowed:
            allowed |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return allowed


def markdown_texts(path: str, content: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of an English document without their inline code, and its headings."""
    if is_chinese(path):
        return
    for passage in markdown_passages(path, content):
        yield passage.line, _without_code(passage.text)
    for number, line in enumerate(content.splitlines(), 1):
        if re.match(r"#+ ", line):
            yield number, _without_code(line)


def page_texts(path: str, content: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and strings of a script, or all of a page."""
    if path.endswith(".html"):
        yield 1, content
        return
    for match in _SCRIPT_TEXT.finditer(content):
        if len(match[0].split()) >= FEWEST_WORDS:
            yield content.count("\n", 0, match.start()) + 1, match[0]


def _without_code(text: str) -> str:
    """Replace quoted code by a placeholder; line breaks are kept, so that lines can be counted."""
    return _CODE.sub(lambda match: "x" + "\n" * match[0].count("\n"), text)


def files(chosen: Sequence[Path] = (), root: Path = ROOT) -> list[Path]:
    """Return the files to check: all, or only the chosen files and those in chosen folders."""
    pages = [path for path in sorted((root / "src").rglob("*")) if path.suffix in PAGE_SUFFIXES]
    every = [*python_files(root), *pages, *markdown_files(root)]
    folders = [path.resolve() for path in chosen]
    return [path for path in every if not folders or any(path.resolve().is_relative_to(one) for one in folders)]


def check(paths: Iterable[Path], root: Path = ROOT) -> list[Finding]:
    """Return the findings in the given files under a root."""
    return [
        finding
        for path in paths
        for finding in lint(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings, or with ``--summary`` their number per folder, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", help="files and folders to check; default: the whole project")
    parser.add_argument("--summary", action="store_true", help="print only the number of findings per folder")
    chosen = parser.parse_args(arguments)
    findings = check(files([path.resolve() for path in chosen.paths]))
    if chosen.summary:
        counts = Counter(str(Path(finding.path).parent) for finding in findings)
        print("\n".join(f"{count:5} {folder}" for folder, count in counts.most_common()))
    else:
        print("\n".join(map(str, findings)), end="\n" if findings else "")
    if findings:
        print(f"{len(findings)} phrases to reword", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
