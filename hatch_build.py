"""Compiles int8 for processors with AVX-512 VNNI while cloze is installed, where there is a C compiler.

Without one, or for another processor, nothing is compiled and nothing fails: cloze then computes with PyTorch's own
kernels, more slowly. ``cloze doctor`` tells which of the two it is.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/cloze/predict/quantization/native"
SOURCE, TARGET = f"{FOLDER}/int8.c", f"{FOLDER}/libint8.so"
INSTRUCTIONS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "fma")
FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fopenmp", "-fPIC", "-shared", *(f"-m{name}" for name in INSTRUCTIONS))


class Int8BuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs or links the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (the interface)
        """Compile, and have the wheel say for which system it is then."""
        if self.target_name == "wheel" and compiled(Path(self.root)):
            build_data["artifacts"].append(TARGET)
            # Any Python of this system can call it: it knows nothing of Python.
            build_data["pure_python"], build_data["tag"] = False, "py3-none-linux_x86_64"


def compiled(root: Path) -> bool:
    """Whether there is a library now."""
    compiler = next(filter(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")), None)
    if compiler is None or sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    # To the side first: a process that has the old one loaded must not see it change.
    partial = root / f"{TARGET}.tmp"
    done = subprocess.run([compiler, *FLAGS, "-o", str(partial), str(root / SOURCE)], capture_output=True, check=False)
    if done.returncode:
        partial.unlink(missing_ok=True)
        return False
    partial.replace(root / TARGET)
    return True
