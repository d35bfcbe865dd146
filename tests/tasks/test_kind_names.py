"""Task kind names are never literals outside their own folder: other code reads the descriptor."""

import ast
from collections.abc import Iterator
from pathlib import Path

import cloze
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import KINDS

SOURCES = Path(cloze.__file__).parent

# Literals that do not mean a task kind, with the reason.
ALLOWED = {
    ("cli/__init__.py", "classify"): "names of commands",
    ("cli/__init__.py", "tag"): "names of commands",
    ("cli/__init__.py", "answer"): "names of commands",
    ("cli/__init__.py", "choose"): "names of commands",
    ("cli/__init__.py", "rerank"): "names of commands",
    ("predict/retrieval.py", "rerank"): "a stage of progress",
    ("serve/operations.py", "rerank"): "an operation of the service",
    ("serve/routes.py", "rerank"): "an operation of the service",
    ("serve/tokenization.py", "rerank"): "an operation of the service",
    ("train/finetuning/settings.py", "similarity"): "its settings; its descriptor imports NumPy",
    ("cli/prediction.py", "answer"): "a column of the output",
    ("cli/word_prediction.py", "tag"): "a column of the output",
    ("comparison/settings.py", "classify"): "the kind of the tasks of a comparison",
    ("tasks/choice/kind.py", "answer"): "a column of ARC",
    ("tasks/clue.py", "answer"): "a key of C3",
    ("tasks/retrieval/examples.py", "answer"): "a usual name of the column with passages",
    **{
        (f"{module}.py", "correction"): "a way to mask"
        for module in (
            *("corpus/settings", "corpus/masking", "corpus/audit", "corpus/word_tables"),
            *("train/settings", "train/distillation/settings"),
        )
    },
}


def literals(source: str) -> Iterator[str]:
    """Yield the kind names among the string constants of a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in KINDS:
            yield node.value


def folder_of(kind: TaskKind) -> Path:
    """Return the folder whose ``kind.py`` defines a kind; other modules only import the constant."""
    for path in sorted((SOURCES / "tasks").glob("*/kind.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in _names(node.targets)}
        if kind.name.upper() in assigned:
            return path.parent
    raise AssertionError(f"no kind.py defines {kind}")


def _names(targets: list[ast.expr]) -> list[ast.Name]:
    return [target for target in targets if isinstance(target, ast.Name)]


def found() -> set[tuple[str, str]]:
    """Return the modules and names of all such literals outside the kinds' own folders."""
    homes = {kind.name: folder_of(kind) for kind in KINDS.values()}
    return {
        (path.relative_to(SOURCES).as_posix(), name)
        for path in sorted(SOURCES.rglob("*.py"))
        for name in literals(path.read_text(encoding="utf-8"))
        if path.parent != homes[name]
    }


def test_kind_names_are_literals_only_in_their_own_folder() -> None:
    assert found() - ALLOWED.keys() == set()


def test_every_exception_is_needed() -> None:
    assert ALLOWED.keys() - found() == set()


def test_scan_finds_literals() -> None:
    assert list(literals('if task.kind == "classify":\n    pass')) == ["classify"]
