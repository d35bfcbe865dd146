"""The documents: their commands run, their links resolve, and they cover everything they should.

The numbered tutorials build on each other and share a folder; the README and the others have one each.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cloze
from cloze.cli import COMMANDS
from tests.test_architecture import MAY_IMPORT

ROOT = Path(__file__).parent.parent
SOURCES = Path(cloze.__file__).parent
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
TUTORIALS = [path for path in DOCUMENTS if path.name[0].isdigit()]
EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))
# All documents for users.
ALL = [README, CHINESE, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCUMENTS, *EXPERIMENTS]
# All documents whose commands are run.
RUNNABLE = [README, *DOCUMENTS]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users|tmp)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    tag: str
    text: str
    line: int  # number of its first line


def blocks(text: str, *tags: str) -> list[Block]:
    """Return the blocks with these tags, in order."""
    found = (Block(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in FENCE.finditer(text))
    return [block for block in found if block.tag in tags]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(path: Path, text: str, folder: Path, chdir: Callable[[Path], None]) -> None:
    """Run a document's shell blocks in a folder, then its Python blocks in one namespace."""
    if not (folder / "src").exists():
        (folder / "src").symlink_to(ROOT / "src")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in blocks(text, "sh"):
        done = subprocess.run(
            ["sh", "-eux", "-c", block.text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{name_of(path)}:{block.line}: exit code {done.returncode}\n{done.stderr}"
    chdir(folder)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text, "python"):
        # Preceding newlines, so that line numbers in a traceback are those of the document.
        exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), namespace)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary cache for the int8 weights of the service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Callable[[Path], None]], None]:
    """Return a function that runs a document once; a tutorial runs after its predecessors in the same folder."""
    shared = tmp_path_factory.mktemp("tutorials")
    done: set[Path] = set()

    def walked(path: Path, chdir: Callable[[Path], None]) -> None:
        before = TUTORIALS[: TUTORIALS.index(path)] if path in TUTORIALS else []
        for one in [*before, path]:
            if one not in done:
                folder = shared if one in TUTORIALS else tmp_path_factory.mktemp("document")
                run(one, one.read_text("utf-8"), folder, chdir)
                done.add(one)

    return walked


@pytest.mark.parametrize("path", RUNNABLE, ids=name_of)
def test_what_a_document_tells_to_run_runs(
    path: Path, walk: Callable[[Path, Callable[[Path], None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    walk(path, monkeypatch.chdir)


@pytest.mark.parametrize(
    "text",
    [
        "```sh\ncloze --version\ncloze nothing-of-the-kind\ncloze --version\n```",
        "```sh\ntest -e src/cloze/nowhere\n```",
        "```python\nx = 1\n```\nand\n```python\nassert x == 2\n```",
    ],
)
def test_running_a_document_can_fail(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        run(README, text, tmp_path, monkeypatch.chdir)


def test_blocks_that_are_not_run_are_known_by_their_tags() -> None:
    text = "```console\nfalse\n```\n```text\nx\n```\n```py\n1 / 0\n```\n```sh\ntrue\n```\n"
    assert blocks(text, "sh", "python") == [Block("sh", "true\n", 11)]
    tags = {match[1] for path in ALL for match in FENCE.finditer(path.read_text("utf-8"))}
    assert tags <= {"sh", "python", "console", "text", "py"}


def test_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) < 200


def test_chinese_readme_is_the_same_document() -> None:
    def headings(path: Path) -> int:
        return len(re.findall(r"^## ", path.read_text("utf-8"), re.MULTILINE))

    def code(path: Path) -> list[str]:
        """Return the code that is run, without its comments, which are translated."""
        return [re.sub(r" +# .*", "", block.text) for block in blocks(path.read_text("utf-8"), "sh", "python")]

    assert headings(CHINESE) == headings(README)
    assert code(CHINESE) == code(README)


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text("utf-8"))]
    relative = [target for target in targets if target and "://" not in target]
    assert [target for target in relative if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_documents_name_no_place_of_one_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(path.read_text("utf-8")) == []


def test_check_of_machine_places_can_fail() -> None:
    assert MACHINE_PATH.search("see /home/someone/x") is not None
    assert MACHINE_PATH.search("runs/work, ./tmp and a/home are fine") is None


def test_every_command_is_told_of() -> None:
    text = "\n".join(path.read_text("utf-8") for path in RUNNABLE)
    assert [name for name in COMMANDS if f"cloze {name}" not in text and f"`{name}`" not in text] == []


PAGES = [path for path in EXPERIMENTS if path.name[0].isdigit()]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_an_experiment_has_its_four_sections_and_is_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Question", "Setup", "Result", "Decision"]
    assert len(text.splitlines()) < 80


def test_every_experiment_is_in_the_index() -> None:
    index = (ROOT / "docs" / "experiments" / "README.md").read_text("utf-8")
    assert [path.name for path in PAGES if f"({path.name})" not in index] == []


def test_every_result_names_its_command_machine_and_commit() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    tables = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 5]
    rows = [line.strip("| ").split(" | ") for line in tables if not line.startswith("| figure |")]
    assert len(rows) > 20
    for figure, command, machine, commit, seeds, interval in rows:
        assert command == "the same" or re.fullmatch(r"`[^`]+`", command), figure
        assert machine in ("Zen 4", "Xeon", "AVX2", "-"), figure
        assert re.fullmatch(r"[0-9a-f]{7}", commit), figure
        assert re.fullmatch(r"\d+|-", seeds), figure
        assert interval, figure


def test_architecture_names_every_package_and_root_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [part.name for part in SOURCES.iterdir() if (part / "__init__.py").exists()]
    modules = [part.stem for part in SOURCES.glob("*.py") if not part.stem.startswith("__")]
    assert [name for name in packages + modules if f"`{name}`" not in text] == []


def test_import_table_is_the_one_that_is_held() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Who may import whom")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", allowed)) for name, allowed in rows if not allowed.startswith("all")}
    assert documented == {name: MAY_IMPORT[name] for name in MAY_IMPORT.keys() - {"demo", "cli"}}
    assert {name for name, allowed in rows if allowed.startswith("all")} == {"demo", "cli"}


PYTHON_FILE = re.compile(r"(?<![\w/.*-])((?:\w+/)*\w+\.py)\b")
# These documents name files that may no longer exist.
HISTORIES = {"CHANGELOG.md", "findings.md", *(path.name for path in EXPERIMENTS)}


# Scripts of the original BERT code, and a module name that is deliberately not used here.
ELSEWHERE = {"run_classifier.py", "run_squad.py", "utils.py"}


def missing_files(text: str, *folders: Path, below: Path) -> list[str]:
    """Return the Python files that a text names and that are neither in the folders nor, by base name, below one."""
    known = ELSEWHERE | {path.name for path in below.rglob("*.py")}
    names = set(PYTHON_FILE.findall(text)) - known
    return sorted(name for name in names if not any((folder / name).exists() for folder in folders))


@pytest.mark.parametrize("path", [path for path in ALL if path.name not in HISTORIES], ids=name_of)
def test_python_files_that_a_document_names_exist(path: Path) -> None:
    text = re.sub(r"```(?:sh|python|console|py)\n.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    assert missing_files(text, ROOT, SOURCES, SOURCES.parent, below=SOURCES) == []


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_python_files_that_a_module_names_exist(path: Path) -> None:
    parents = [parent for parent in path.parents if SOURCES in (parent, *parent.parents)]
    assert missing_files(path.read_text("utf-8"), ROOT, *parents, below=path.parent) == []
