"""Report the structure of the source tree, and fail if a limit of the architecture is exceeded.

    python scripts/tree_report.py [--no-paths]

Prints packages, modules, files per folder, short and long files, function lengths, repeated base names, duplicated
blocks of code, and the files of each main path (``scripts/trace_paths.py``).
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).resolve().parents[1] / "src" / "cloze"

MOST_PACKAGES = 12
MOST_FILES_PER_FOLDER = 20
MOST_MODULES = 210
SHORT, LONG = 60, 400  # limits for the number of lines of a file
MOST_FUNCTION_LINES = 25  # limit for the 90th percentile
MOST_REPEATED_LINES = 12
# Base names that play the same role in every package.
ROLES = frozenset({"settings.py", "errors.py", "metrics.py"})


class Block(NamedTuple):
    """Duplicated lines: the first line of both occurrences, and the number of lines."""

    first: str
    second: str
    lines: int


class Tree(NamedTuple):
    """Measurements of a source tree."""

    packages: list[str]
    modules: dict[str, int]  # path -> lines
    folders: Counter[str]
    function_lengths: list[int]
    long_functions: list[tuple[int, str]]
    repeated: list[Block]

    @property
    def short_files(self) -> list[str]:
        """Modules with fewer than ``SHORT`` lines."""
        return [path for path, lines in self.modules.items() if lines < SHORT]

    @property
    def long_files(self) -> list[str]:
        """Modules with more than ``LONG`` lines."""
        return [path for path, lines in self.modules.items() if lines > LONG]

    @property
    def p90(self) -> int:
        """The 90th percentile of function lengths."""
        lengths = sorted(self.function_lengths)
        return lengths[int(0.9 * (len(lengths) - 1))] if lengths else 0

    @property
    def shared_names(self) -> dict[str, list[str]]:
        """Base names that several modules share -> their paths."""
        places: dict[str, list[str]] = defaultdict(list)
        for path in self.modules:
            places[Path(path).name].append(path)
        return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}

    @property
    def clashing_names(self) -> dict[str, list[str]]:
        """Base names that several modules share, unless these are in sibling folders or in a folder and its parent."""
        return {name: paths for name, paths in self.shared_names.items() if not _are_siblings(name, paths)}

    def problems(self) -> list[str]:
        """Return a message for each limit that is exceeded."""
        checks = [
            (len(self.packages), MOST_PACKAGES, "top-level packages"),
            (len(self.modules), MOST_MODULES, "modules"),
            *((count, MOST_FILES_PER_FOLDER, f"files in {folder}") for folder, count in self.folders.items()),
            (self.p90, MOST_FUNCTION_LINES, "lines in the 90th percentile of functions"),
            *((lines, LONG, f"lines in {path}") for path, lines in self.modules.items()),
            *((len(paths), 1, f"modules named {name}") for name, paths in self.clashing_names.items()),
            *(
                (block.lines, MOST_REPEATED_LINES, f"lines at {block.first} and {block.second}")
                for block in self.repeated
            ),
        ]
        return [f"{count} {what}; at most {limit}" for count, limit, what in checks if count > limit]


def _are_siblings(name: str, paths: Sequence[str]) -> bool:
    # A command module is named after the package that it calls.
    others = [Path(path) for path in paths if not path.startswith("cli/")]
    parents = [{path.parent, path.parent.parent} for path in others]
    return name in ROLES or bool(set.intersection(*parents))


def read_tree(sources: Path = SOURCES) -> Tree:
    """Measure a source tree; ``__init__.py`` is not counted as a module."""
    paths = sorted(path for path in sources.rglob("*.py") if path.name != "__init__.py")
    texts = {str(path.relative_to(sources)): path.read_text(encoding="utf-8") for path in paths}
    functions = [(length, f"{path}:{name}") for path, text in texts.items() for name, length in function_lengths(text)]
    return Tree(
        # A package without modules holds data, as ``models`` does.
        packages=sorted({path.split("/")[0] for path in texts if "/" in path}),
        modules={path: text.count("\n") for path, text in texts.items()},
        folders=Counter(str(Path(path).parent) for path in texts),
        function_lengths=[length for length, _ in functions],
        long_functions=sorted(((length, name) for length, name in functions if length > 50), reverse=True),
        repeated=repeated_blocks(texts),
    )


def function_lengths(text: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def repeated_blocks(texts: dict[str, str], longest_allowed: int = MOST_REPEATED_LINES) -> list[Block]:
    """Return duplicated blocks with more lines than allowed, ignoring blank lines, comments and imports."""
    window = longest_allowed + 1
    lines = {path: list(code_lines(text)) for path, text in texts.items()}
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    blocks: list[Block] = []
    for path, numbered in lines.items():
        skip_to = 0
        for start in range(len(numbered) - window + 1):
            key = tuple(line for _, line in numbered[start : start + window])
            first = seen.setdefault(key, (path, start))
            if first == (path, start) or start < skip_to:
                continue
            length = _common_length(lines[first[0]][first[1] :], numbered[start:])
            blocks.append(Block(f"{first[0]}:{lines[first[0]][first[1]][0]}", f"{path}:{numbered[start][0]}", length))
            skip_to = start + length
    return blocks


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, tokens joined by spaces) of the lines with code, without imports, comments and docstrings."""
    skipped = {line for node in ast.walk(ast.parse(text)) for line in _not_code(node)}
    by_line: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            by_line[token.start[0]].append(token.string)
    for number, tokens in sorted(by_line.items()):
        if number not in skipped and any(token.strip() for token in tokens):
            yield number, " ".join(tokens)


def _not_code(node: ast.AST) -> Iterable[int]:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.Import | ast.ImportFrom) or (is_text and isinstance(node, ast.Expr)):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return ()


def _common_length(first: Sequence[tuple[int, str]], second: Sequence[tuple[int, str]]) -> int:
    length = 0
    for (_, one), (_, other) in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


def print_tree(tree: Tree) -> None:
    """Print the counts."""
    print(f"packages: {len(tree.packages)} ({', '.join(tree.packages)})")
    print(f"modules: {len(tree.modules)}, {sum(tree.modules.values()):,} lines")
    print("files per folder:")
    for folder, count in sorted(tree.folders.items()):
        print(f"  {count:3} {folder}")
    print(f"under {SHORT} lines: {len(tree.short_files)} ({', '.join(tree.short_files)})")
    print(f"over {LONG} lines: {len(tree.long_files)} ({', '.join(tree.long_files) or 'none'})")
    print(f"functions: {len(tree.function_lengths)}, 90th percentile {tree.p90} lines")
    print(
        f"functions over 50 lines: {', '.join(f'{name} ({length})' for length, name in tree.long_functions) or 'none'}"
    )
    print("base names that several modules share:")
    for name, paths in tree.shared_names.items():
        print(f"  {name}: {', '.join(paths)}")
    print(f"blocks of more than {MOST_REPEATED_LINES} lines that occur twice: {len(tree.repeated)}")
    for block in tree.repeated:
        print(f"  {block.lines} lines: {block.first} and {block.second}")


def main() -> None:
    """Print the report; exit with 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-paths", action="store_true", help="do not run and trace the main paths")
    options = parser.parse_args()
    tree = read_tree()
    print_tree(tree)
    problems = tree.problems()
    if not options.no_paths:
        from trace_paths import LIMIT, MAIN_PATHS, print_paths, trace_all

        traced = trace_all()
        print_paths(traced)
        problems += [
            f"{len(traced[name].files)} files execute on {name}; at most {LIMIT}"
            for name in MAIN_PATHS
            if len(traced[name].files) > LIMIT
        ]
    for problem in problems:
        print(f"limit exceeded: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
