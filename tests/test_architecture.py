"""The import table of the architecture, held against the sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cloze
from cloze.cli import COMMANDS

SOURCES = Path(cloze.__file__).parent
MODULES = sorted(SOURCES.rglob("*.py"))

EVERYBODY = {"errors", "files", "hardware", "interrupts", "kinds", "lines", "models", "progress", "workers"}
PACKAGES = {"text", "corpus", "model", "checkpoint", "tasks", "predict", "train", "inspect", "serve", "baselines"}
# Beside EVERYBODY and itself.
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set[str]() for name in EVERYBODY},
    "text": set(),
    "corpus": {"text"},
    "model": set(),
    "checkpoint": {"text", "model", "tasks"},
    "tasks": {"text", "model"},
    "predict": {"text", "model", "checkpoint", "tasks"},
    "train": {"text", "corpus", "model", "checkpoint", "tasks", "predict"},
    "inspect": {"predict", "model", "text"},
    "serve": {"predict", "inspect", "tasks"},
    "baselines": {"text", "corpus", "train", "tasks"},
    "demo": PACKAGES,
    "cli": PACKAGES | {"demo"},
    "__init__": PACKAGES,
    "__main__": {"cli"},
}
# Oracles of the tests; and the tests themselves.
FORBIDDEN = {"transformers", "sentence_transformers", "tensorflow", "tests", "benchmarks"}
# Whatever costs more to import than help should take.
HEAVY = (
    *("torch", "numpy", "pyarrow", "tokenizers", "scipy", "sklearn", "matplotlib", "safetensors", "sentencex"),
    *("fastapi", "uvicorn", "prometheus_client"),
)


def imports(source: str) -> set[str]:
    """Every module that a source names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            # `from cloze import corpus` means cloze.corpus; names that are no modules do no harm here.
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def violations(package: str, source: str) -> list[str]:
    """What a module of a package imports and should not."""
    ours = MAY_IMPORT.keys() - {"__init__", "__main__"} - MAY_IMPORT[package] - EVERYBODY - {package}
    wrong = FORBIDDEN | {f"cloze.{name}" for name in ours} | ({"torch"} if package == "text" else set())
    return [name for name in sorted(imports(source)) if any(f"{name}.".startswith(f"{one}.") for one in wrong)]


def package_of(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_module_imports_what_its_package_may(path: Path) -> None:
    assert violations(package_of(path), path.read_text(encoding="utf-8")) == []


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


def test_no_module_is_a_bag_of_leftovers() -> None:
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


def test_no_source_names_a_home() -> None:
    homes = ("/home/", "/root/", "/Users/", "C:\\")
    assert [path.name for path in MODULES if any(home in path.read_text(encoding="utf-8") for home in homes)] == []


def heavy_modules_after(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has loaded after running some code."""
    report = f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return list(ast.literal_eval(done.stderr.strip().splitlines()[-1]))


def test_import_of_cloze_is_light() -> None:
    assert heavy_modules_after("import cloze; dir(cloze)") == []


def test_check_of_lightness_can_fail() -> None:
    assert heavy_modules_after("import cloze; cloze.prepare") != []


def test_help_of_every_command_is_light() -> None:
    asked = [[], *([name] for name in COMMANDS)]
    code = f"""
from cloze.cli import main
for words in {asked!r}:
    try:
        main([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0, words
"""
    assert heavy_modules_after(code) == []
