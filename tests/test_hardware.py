"""Processors that report features which a virtual machine hides, and available memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cloze.errors import CheckpointError, ConfigError
from cloze.hardware import (
    WITHOUT_TILES,
    AvailableMemory,
    available_memory,
    avoid_hidden_tiles,
    is_out_of_memory,
    require_memory,
)

# Only the first processor is read.
TWO = "processor\t: 0\ncpuid level\t: {level}\nflags\t: fpu {flag}\n\nprocessor\t: 1\ncpuid level\t: 99\nflags\t: fpu\n"


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variable, and restore it afterwards; delenv alone would not restore a missing one."""
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


def test_user_settings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (tmp_path / "cpuinfo").write_text(TWO.format(level="28", flag="amx_tile"), encoding="utf-8")
    avoid_hidden_tiles(tmp_path / "cpuinfo")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX2"


@pytest.mark.usefixtures("unset")
def test_a_system_without_information(tmp_path: Path) -> None:
    avoid_hidden_tiles(tmp_path / "nothing")
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_bfloat16_products_work_on_this_machine() -> None:
    """bfloat16 products work after the import on this machine; without the guard, the subprocess may crash."""
    code = "import cloze, torch; a = torch.ones(64, 64).bfloat16(); print(float((a @ a)[0, 0]))"
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "64.0\n")


def machine(root: Path, files: dict[str, str]) -> Path:
    """Write the files of a simulated system."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


FREE = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n"}
VERSION_2 = {
    "proc/self/cgroup": "0::/slice/job\n",
    "sys/fs/cgroup/slice/job/memory.max": "max\n",
    "sys/fs/cgroup/slice/job/memory.current": "1\n",
    "sys/fs/cgroup/slice/memory.max": "4000000\n",
    "sys/fs/cgroup/slice/memory.current": "1500000\n",
    "sys/fs/cgroup/slice/memory.stat": "anon 1\ninactive_file 500000\n",
}
VERSION_1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1900000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1900000\n",
}


@pytest.mark.parametrize(
    ("files", "size", "limit"),
    [
        (FREE, 5_120_000, "free memory of this machine"),
        (FREE | VERSION_2, 3_000_000, "memory.max of the control group slice"),
        (FREE | VERSION_1, 100_000, "memory.limit_in_bytes of the control group job"),
        (FREE | {"proc/self/cgroup": "0::/gone\n"}, 5_120_000, "free memory of this machine"),
    ],
)
def test_the_narrowest_limit_of_memory_counts(tmp_path: Path, files: dict[str, str], size: int, limit: str) -> None:
    assert available_memory(machine(tmp_path, files)) == AvailableMemory(size, limit)


def test_memory_is_unknown_on_other_systems(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


def test_memory_of_this_machine() -> None:
    """The memory limit of ulimit -v in a subprocess excludes what the process has mapped already."""
    code = "from cloze.hardware import available_memory; found = available_memory(); print(found.size, found.limit)"
    words = ["sh", "-c", f'ulimit -v 2000000; exec "$0" -c "{code}"', sys.executable]
    size, limit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split(maxsplit=1)
    assert limit == "ulimit -v 2000000\n"
    assert 1_500_000 * 1024 < int(size) < 2_000_000 * 1024


def test_work_that_does_not_fit_is_refused_with_figures() -> None:
    there = AvailableMemory(1000 * 2**20, "ulimit -v 9")
    require_memory(900 * 2**20, "a step", "use less", there)
    with pytest.raises(ConfigError) as refused:
        require_memory(950 * 2**20, "a step", "use less", there)  # the limit includes the allocator's overhead
    assert str(refused.value) == (
        "a step needs about 950 MB of memory, but 1000 MB is available (ulimit -v 9); use less"
    )


def test_errors_of_allocators_are_known() -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    wrapped = CheckpointError("cannot be read")
    wrapped.__cause__ = MemoryError()
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(RuntimeError("shapes differ"))
    assert not is_out_of_memory(ConfigError("out of memory"))
