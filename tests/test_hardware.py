"""Processors that claim what a virtual machine hides from them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.hardware import WITHOUT_TILES, avoid_hidden_tiles

# Only the first processor is read.
TWO = "processor\t: 0\ncpuid level\t: {level}\nflags\t: fpu {flag}\n\nprocessor\t: 1\ncpuid level\t: 99\nflags\t: fpu\n"


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, and afterwards as it was: what is deleted only would not be put back."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize(
    ("level", "flag", "expected"),
    [("28", "amx_tile", WITHOUT_TILES), ("29", "amx_tile", None), ("28", "avx512f", None), ("?", "amx_tile", None)],
)
def test_tiles_are_avoided_where_their_page_is_hidden(
    tmp_path: Path, level: str, flag: str, expected: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(TWO.format(level=level, flag=flag), encoding="utf-8")
    avoid_hidden_tiles(tmp_path / "cpuinfo")
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == expected


def test_what_the_user_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (tmp_path / "cpuinfo").write_text(TWO.format(level="28", flag="amx_tile"), encoding="utf-8")
    avoid_hidden_tiles(tmp_path / "cpuinfo")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


@pytest.mark.usefixtures("unset")
def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    avoid_hidden_tiles(tmp_path / "nothing")
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_bfloat16_multiplies_after_import_on_this_very_machine() -> None:
    """In a process of its own: where the guard is missing and needed, it dies of an illegal instruction."""
    code = "import cloze, torch; a = torch.ones(64, 64).bfloat16(); print(float((a @ a)[0, 0]))"
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "64.0\n")
