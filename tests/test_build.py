"""The distribution: its name and metadata, the content of the wheel, and the kernels compiled during installation."""

import ctypes
import re
import shutil
import tomllib
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatch_build import SOURCE, TARGET, compile_kernels
from hatchling.builders.wheel import WheelBuilder

import cloze

ROOT = Path(__file__).parents[1]
DISTRIBUTION = "cloze-bert"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
# `pip install cloze` would install another project: on the package index, ours is cloze-bert.
WRONG_HINT = re.compile(r"""pip\s+install\s[^\n`]*?(?<![\w./-])cloze(?![\w./-])|(?<![\w./-])cloze\[[a-z]""")
TEXTS = (".py", ".md", ".txt", ".toml", ".html", ".service", ".conf", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout that contains only the sources."""
    folder = (tmp_path / SOURCE).parent
    folder.mkdir(parents=True)
    for path in (Path(cloze.__file__).parents[2] / SOURCE).parent.glob("*.[ch]"):
        shutil.copy(path, folder)
    return tmp_path


def built_files(root: Path) -> list[str]:
    """Return the files in the source tree that are not sources."""
    return [path.name for path in (root / SOURCE).parent.iterdir() if path.suffix not in (".c", ".h")]


@needs_compiler
def test_compiled(root: Path) -> None:
    assert compile_kernels(root)
    assert ctypes.CDLL(str(root / TARGET)).cloze_version() == 1
    assert built_files(root) == ["libint8.so"]


@needs_compiler
def test_failed_compilation_leaves_no_files(root: Path) -> None:
    (root / SOURCE).write_text("no C at all", encoding="utf-8")
    assert not compile_kernels(root)
    assert built_files(root) == []


@pytest.mark.parametrize("lacking", ["a compiler", "the system", "the processor"])
def test_elsewhere_nothing_is_tried(root: Path, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "a compiler":
        monkeypatch.setattr("shutil.which", lambda _: None)
    elif lacking == "the system":
        monkeypatch.setattr("sys.platform", "darwin")
    else:
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not compile_kernels(root)
    assert built_files(root) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """A wheel of this checkout, built without a compiler, so that nothing is written into the sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.which", lambda _: None)
        [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"cloze_bert-{cloze.__version__}.dist-info/METADATA"))


def test_a_wheel_without_kernels_installs_anywhere(wheel: ZipFile) -> None:
    assert Path(str(wheel.filename)).name == f"cloze_bert-{cloze.__version__}-py3-none-any.whl"


def test_the_wheel_holds_every_file_of_the_package(wheel: ZipFile) -> None:
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files if "libint8.so" not in path.name}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected
    assert "cloze/py.typed" in expected


def test_metadata(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, cloze.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert list(urls) == ["Homepage", "Documentation", "Issues", "Changelog"]
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    classifiers = metadata.get_all("Classifier", [])
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers


def test_the_command_keeps_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"cloze": "cloze.cli:main"}


def wrong_hints(text: str) -> list[str]:
    """Return every installation hint that would install the other project."""
    return [match[0] for match in WRONG_HINT.finditer(text)]


def test_no_hint_installs_another_project() -> None:
    folders = ("src", "docs", "deploy", "tests", "benchmarks", "scripts", "torture")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [path for path in ROOT.iterdir() if path.is_file()]
    hints = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if path.suffix in TEXTS and path != Path(__file__) and (found := wrong_hints(path.read_text("utf-8")))
    }
    assert hints == {}


@pytest.mark.parametrize(
    "text",
    ["pip install cloze", "pip install -U 'cloze[onnx]'", 'pip install "cloze>=0.2"', "with the extra cloze[cluster]"],
)
def test_a_wrong_hint_is_recognized(text: str) -> None:
    assert wrong_hints(text)


@pytest.mark.parametrize(
    "text",
    ["pip install cloze-bert", "pip install 'cloze-bert[onnx]'", "/opt/cloze/bin/pip install .", "cloze fill"],
)
def test_a_right_hint_passes(text: str) -> None:
    assert wrong_hints(text) == []
