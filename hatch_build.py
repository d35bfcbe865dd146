"""Build hook: compile the int8 kernels for AVX-512 VNNI while cloze is installed, if a C compiler is available.

Without a compiler, or on another processor architecture, the build succeeds without the kernels. cloze then uses
PyTorch's int8 kernels, which are slower. ``cloze doctor`` prints which of the two are in use.
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
    """Compile the kernels before hatchling packs the wheel or links the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 (the interface)
        """Add the compiled library to the wheel and set the wheel's platform tag."""
        if self.target_name == "wheel" and compile_kernels(Path(self.root)):
            build_data["artifacts"].append(TARGET)
            # Any Python version can load the library with ctypes, because it does not use Python's C API.
            build_data["pure_python"], build_data["tag"] = False, "py3-none-linux_x86_64"


def compile_kernels(root: Path) -> bool:
    """Compile the int8 kernels in place.

    Args:
        root: The source checkout.

    Returns:
        Whether the library was compiled.
    """
    compiler = next(filter(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")), None)
    if compiler is None or sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    # Write to a temporary name first, because a running process may have the old library loaded.
    partial = root / f"{TARGET}.tmp"
    command = [compiler, *FLAGS, "-o", str(partial), str(root / SOURCE)]
    completed = subprocess.run(command, capture_output=True, check=False)
    if completed.returncode:
        partial.unlink(missing_ok=True)
        return False
    partial.replace(root / TARGET)
    return True
