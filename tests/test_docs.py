"""The documents: their commands run, their links resolve, and they cover everything they should.

The numbered guides build on each other and share a folder; the README and all other documents have one each.
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
from cloze.models import PACKAGED_MODELS, SHIPPED_MODELS
from tests.test_architecture import MAY_IMPORT

ROOT = Path(__file__).parent.parent
SOURCES = Path(cloze.__file__).parent
README, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
TUTORIALS = [path for path in DOCUMENTS if path.name[0].isdigit()]
EXPERIMENTS = sorted((ROOT / "docs" / "experiments").glob("*.md"))
# The guides that have a Chinese page, which has the same file name.
TRANSLATED = [path for path in DOCUMENTS if path in TUTORIALS or path.name in ("python.md", "quickstart.md")]
TRANSLATIONS = sorted((ROOT / "docs" / "zh").glob("*.md"))
# All documents for users.
ALL = [README, CHINESE, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCUMENTS, *TRANSLATIONS, *EXPERIMENTS]
# All documents whose commands are run.
RUNNABLE = [README, *DOCUMENTS, *TRANSLATIONS]

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
        # Newlines are prepended, so that line numbers in a traceback match the document.
        exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), namespace)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary cache for the int8 weights of the service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, Callable[[Path], None]], None]:
    """Run a document once; run a guide after the preceding English guides, in the same folder.

    A Chinese guide has the same commands as the English one. It runs in the same folder, where training runs are
    already finished, so that only the remaining commands take time.
    """
    shared = tmp_path_factory.mktemp("tutorials")
    done: set[Path] = set()

    def walked(path: Path, chdir: Callable[[Path], None]) -> None:
        is_guide = path.name[0].isdigit()
        before = [guide for guide in TUTORIALS if is_guide and guide.name <= path.name and guide != path]
        for one in [*before, path]:
            if one not in done:
                folder = shared if is_guide else tmp_path_factory.mktemp("document")
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
    assert len(README.read_text("utf-8").splitlines()) <= 150


def code(path: Path) -> list[str]:
    """Return the blocks that are run, without their comments, which are translated."""
    found = blocks(path.read_text("utf-8"), "sh", "python")
    return [re.sub(r"(?:^| +)# .*", "", block.text, flags=re.MULTILINE) for block in found]


def outline(path: Path) -> list[str]:
    """Return the marks of the headings, such as ``##``, in order."""
    return re.findall(r"^(#+) ", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)


def test_every_guide_has_a_chinese_page() -> None:
    """Each guide has a Chinese page with its file name, and the index lists all of them."""
    assert [path.name for path in TRANSLATIONS if path.name != "README.md"] == [path.name for path in TRANSLATED]
    index = (ROOT / "docs" / "zh" / "README.md").read_text("utf-8")
    assert [path.name for path in TRANSLATED if f"({path.name})" not in index] == []


PAIRS = [(CHINESE, README), *((ROOT / "docs" / "zh" / path.name, path) for path in TRANSLATED)]


@pytest.mark.parametrize(("chinese", "english"), PAIRS, ids=[name_of(chinese) for chinese, _ in PAIRS])
def test_chinese_page_has_the_sections_and_code_of_the_english_one(chinese: Path, english: Path) -> None:
    """A Chinese page has the headings and commands of the English page, and each links to the other at the top."""
    assert outline(chinese) == outline(english)
    assert code(chinese) == code(english)
    for page, other in ((chinese, english), (english, chinese)):
        beginning = "\n".join(page.read_text("utf-8").splitlines()[:5])
        targets = [page.parent / target for target in LINK.findall(beginning)]
        assert other.resolve() in [target.resolve() for target in targets], name_of(page)


@pytest.mark.parametrize("path", [CHINESE, *TRANSLATIONS], ids=name_of)
def test_chinese_page_links_to_chinese_pages(path: Path) -> None:
    """Apart from the link to its own English page, a Chinese page links to the Chinese page where there is one."""
    body = "\n".join(path.read_text("utf-8").splitlines()[5:])
    targets = [(path.parent / target.partition("#")[0]).resolve() for target in LINK.findall(body)]
    assert [target.name for target in targets if target in TRANSLATED] == []


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(path.read_text("utf-8"))]
    relative = [target for target in targets if target and "://" not in target]
    assert [target for target in relative if not (path.parent / target).exists()] == []


def slug(heading: str) -> str:
    """Return the anchor that GitHub and the site give a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return the anchors of a Markdown text."""
    return {slug(match[1]) for match in re.finditer(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)}


def broken_anchors(path: Path, text: str) -> list[str]:
    """Return the links of a document that do not lead to a heading."""
    broken = []
    for target in LINK.findall(FENCE.sub("", text)):
        place, _, anchor = target.partition("#")
        goal = path.parent / place if place else path
        if (
            anchor
            and "://" not in target
            and goal.suffix == ".md"
            and goal.exists()
            and anchor not in anchors(goal.read_text("utf-8"))
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_anchors_of_links_exist(path: Path) -> None:
    """A link with an anchor leads to a heading of its document."""
    assert broken_anchors(path, path.read_text("utf-8")) == []


def test_check_of_anchors_can_fail() -> None:
    """A link to a heading that does not exist is reported."""
    text = "[2](docs/results.md#results) [3](docs/results.md#nowhere)\n\n```text\n[4](docs/results.md#here)\n```\n"
    assert broken_anchors(README, text) == ["docs/results.md#nowhere"]
    assert anchors("# A `b`, [c](d)!\n") == {"a-b-c"}


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_documents_name_no_place_of_one_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(path.read_text("utf-8")) == []


def test_check_of_machine_places_can_fail() -> None:
    assert MACHINE_PATH.search("see /home/someone/x") is not None
    assert MACHINE_PATH.search("runs/work, ./tmp and a/home are fine") is None


def test_every_command_is_told_of() -> None:
    text = "\n".join(path.read_text("utf-8") for path in RUNNABLE)
    assert [name for name in COMMANDS if f"cloze {name}" not in text and f"`{name}`" not in text] == []


@pytest.mark.parametrize("path", [README, ROOT / "docs" / "models.md"], ids=name_of)
def test_every_named_model_is_documented(path: Path) -> None:
    """The shipped and the packaged models are listed, each packaged one with its installation."""
    text = path.read_text("utf-8")
    assert [model.name for model in SHIPPED_MODELS if model.name not in text] == []
    assert [one.name for one in PACKAGED_MODELS if one.name not in text or one.distribution not in text] == []


PAGES = [path for path in EXPERIMENTS if path.name[0].isdigit()]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_an_experiment_has_its_four_sections_and_is_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Question", "Setup", "Result", "Decision"]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])
    for name in ("Command", "Machine", "Commit", "Data"):
        assert f"\n- {name}: " in text, f"Setup lacks {name}"
    assert len(text.splitlines()) < 80


def test_every_experiment_is_in_the_index() -> None:
    index = (ROOT / "docs" / "experiments" / "README.md").read_text("utf-8")
    assert [path.name for path in PAGES if f"({path.name})" not in index] == []


def test_every_result_names_its_command_machine_and_commit() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    tables = [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 5]
    rows = [line.strip("| ").split(" | ") for line in tables if not line.startswith("| figure |")]
    assert len(rows) > 12
    for figure, command, machine, commit, seeds, interval in rows:
        assert command == "the same" or re.fullmatch(r"`[^`]+`", command), figure
        assert machine in ("Zen 5", "Zen 4", "Xeon", "AVX2"), figure
        assert re.fullmatch(r"[0-9a-f]{7}", commit), figure
        assert re.fullmatch(r"\d+|-", seeds), figure
        assert re.search(r"\d", interval), f"{figure}: no interval"


def test_architecture_names_every_package_and_root_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [part.name for part in SOURCES.iterdir() if (part / "__init__.py").exists()]
    modules = [part.stem for part in SOURCES.glob("*.py") if not part.stem.startswith("__")]
    assert [name for name in packages + modules if f"`{name}`" not in text] == []


def test_import_table_is_the_one_that_is_held() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Permitted imports")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", allowed)) for name, allowed in rows if not allowed.startswith("all")}
    assert documented == {name: MAY_IMPORT[name] for name in MAY_IMPORT.keys() - {"demo", "comparison", "cli"}}
    assert {name for name, allowed in rows if allowed.startswith("all")} == {"demo", "comparison", "cli"}


PYTHON_FILE = re.compile(r"(?<![\w/.*-])((?:\w+/)*\w+\.py)\b")
# These documents name files that may no longer exist.
HISTORIES = {"CHANGELOG.md", *(path.name for path in EXPERIMENTS)}


# Scripts of the original BERT code, and a module name that is deliberately not used here.
ELSEWHERE = {"run_classifier.py", "run_squad.py", "utils.py"}


def missing_files(text: str, *folders: Path, below: Path) -> list[str]:
    """Return the Python files that a text names but that are not in the folders or, by base name, below one."""
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
