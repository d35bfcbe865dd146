"""What is compiled while cloze is installed, and what happens where nothing can be."""

import ctypes
import shutil
from pathlib import Path

import pytest
from hatch_build import SOURCE, TARGET, compiled

import cloze

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with nothing but the source."""
    folder = (tmp_path / SOURCE).parent
    folder.mkdir(parents=True)
    for path in (Path(cloze.__file__).parents[2] / SOURCE).parent.glob("*.[ch]"):
        shutil.copy(path, folder)
    return tmp_path


def made(root: Path) -> list[str]:
    """What is there beside the sources."""
    return [path.name for path in (root / SOURCE).parent.iterdir() if path.suffix not in (".c", ".h")]


def test_compiled(root: Path) -> None:
    assert compiled(root)
    assert ctypes.CDLL(str(root / TARGET)).cloze_version() == 1
    assert made(root) == ["libint8.so"]


def test_what_cannot_be_compiled_leaves_nothing_behind(root: Path) -> None:
    (root / SOURCE).write_text("no C at all", encoding="utf-8")
    assert not compiled(root)
    assert made(root) == []


@pytest.mark.parametrize("lacking", ["a compiler", "the system", "the processor"])
def test_elsewhere_nothing_is_tried(root: Path, lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking == "a compiler":
        monkeypatch.setattr("shutil.which", lambda _: None)
    elif lacking == "the system":
        monkeypatch.setattr("sys.platform", "darwin")
    else:
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert not compiled(root)
    assert made(root) == []
