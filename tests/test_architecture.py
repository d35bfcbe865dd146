"""The limits and the import table of the architecture, checked against the sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cloze
from cloze.cli import COMMANDS
from tree_report import read_tree

SOURCES = Path(cloze.__file__).parent
MODULES = sorted(SOURCES.rglob("*.py"))

# Root modules, which every package may import.
ROOT = {path.stem for path in SOURCES.glob("*.py")} - {"__init__", "__main__", "sklearn"} | {"models"}
# What each package may import in addition to the root modules and itself.
MAY_IMPORT: dict[str, set[str]] = {
    "text": set(),
    "model": set(),
    "corpus": {"text"},
    "tasks": {"text", "model"},
    "checkpoint": {"text", "model", "tasks"},
    "predict": {"text", "model", "checkpoint", "tasks"},
    "train": {"text", "corpus", "model", "checkpoint", "tasks", "predict"},
    "inspect": {"text", "model", "predict"},
    "serve": {"predict", "inspect", "tasks"},
    "demo": {"text", "corpus", "model", "checkpoint", "tasks", "predict", "train", "inspect"},
    "comparison": {"text", "corpus", "model", "checkpoint", "tasks", "predict", "train", "inspect", "demo"},
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
# Libraries that only the tests use for comparison, and the tests themselves.
FORBIDDEN = {"transformers", "sentence_transformers", "tensorflow", "tests", "benchmarks"}
# Modules that are too slow to import for --help.
HEAVY = (
    *("torch", "numpy", "pyarrow", "tokenizers", "scipy", "sklearn", "matplotlib", "safetensors", "sentencex"),
    *("fastapi", "uvicorn", "prometheus_client"),
)


def imports(source: str) -> set[str]:
    """Return every module that a source imports, deferred imports included.

    ``from cloze import show`` counts as an import of the module that defines the public name.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide their target"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {cloze._HOMES.get(name.removeprefix("cloze."), name) for name in names}


def package_of(module: str) -> str | None:
    """Return the package or root module of ``cloze`` that contains a dotted name."""
    root, _, rest = module.partition(".")
    return rest.partition(".")[0] if root == "cloze" and rest else None


def violations(package: str, source: str) -> list[str]:
    """Return the imports of a module that the table does not allow for its package."""
    allowed = {*ROOT, package, "__version__", *MAY_IMPORT.get(package, ())}
    forbidden = FORBIDDEN | ({"torch"} if package == "text" else set())
    return [
        name
        for name in sorted(imports(source))
        if name.partition(".")[0] in forbidden or ((target := package_of(name)) is not None and target not in allowed)
    ]


# The public API and the command line's entry point import from everywhere.
CHECKED = [path for path in MODULES if path.parent != SOURCES or path.stem in ROOT]


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: str(path.relative_to(SOURCES)))
def test_module_imports_what_its_package_may(path: Path) -> None:
    package = path.relative_to(SOURCES).parts[0].removesuffix(".py")
    assert violations(package, path.read_text(encoding="utf-8")) == []


def test_every_package_has_a_row() -> None:
    assert set(read_tree(SOURCES).packages) == MAY_IMPORT.keys()


def test_checker_catches_forbidden_imports() -> None:
    source = (
        "import transformers\nimport cloze.errors\nfrom cloze.corpus import shards\n"
        "def late():\n    from cloze import train\n    from cloze.cli import main\n"
    )
    assert violations("serve", source) == [
        "cloze.cli.main",
        "cloze.corpus.shards",
        "cloze.train",
        "transformers",
    ]
    assert violations("cli", "from cloze.train import loop\nimport torch") == []
    assert violations("text", "from torch import nn") == ["torch.nn"]


def test_checker_sees_through_the_public_api() -> None:
    deferred = "def show(self):\n    from cloze import show\n    return show(self)"
    assert violations("predict", deferred) == [cloze._HOMES["show"]]
    assert violations("cli", deferred) == []


def test_tree_is_within_its_limits() -> None:
    assert read_tree(SOURCES).problems() == []


def test_tree_limits_can_fail(tmp_path: Path) -> None:
    block = "".join(f"    total += weights[{number}]\n" for number in range(20))
    for name in ("first", "second"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "same.py").write_text(f"def {name}(total, weights):\n{block}", encoding="utf-8")
    for number in range(21):
        lines = [f"LINE = {line}\n" for line in range(401 if number == 0 else 1)]
        (tmp_path / "first" / f"module_{number}.py").write_text("".join(lines), encoding="utf-8")
    assert read_tree(tmp_path).problems() == [
        "21 files in first; at most 20",
        "401 lines in first/module_0.py; at most 400",
        "2 modules named same.py; at most 1",
        "20 lines at first/inner/same.py:2 and second/inner/same.py:2; at most 12",
    ]


def test_no_module_is_a_bag_of_leftovers() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


def test_no_source_names_a_home() -> None:
    homes = ("/home/", "/root/", "/Users/", "C:\\")
    assert [path.name for path in MODULES if any(home in path.read_text(encoding="utf-8") for home in homes)] == []


def heavy_modules_after(code: str) -> list[str]:
    """Return the slow modules that a fresh interpreter has loaded after running some code."""
    report = f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return list(ast.literal_eval(done.stderr.strip().splitlines()[-1]))


def test_import_of_cloze_is_light() -> None:
    assert heavy_modules_after("import cloze; dir(cloze)") == []


def test_check_of_lightness_can_fail() -> None:
    assert heavy_modules_after("import cloze; cloze.prepare") != []


def test_help_of_every_command_is_light() -> None:
    arguments = [[], *([name] for name in COMMANDS), ["finetune", "classify"], ["evaluate", "mlm"]]
    code = f"""
from cloze.cli import main
for words in {arguments!r}:
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0, words
"""
    assert heavy_modules_after(code) == []
