"""The device to compute on, and a processor feature that some virtual machines announce but do not provide.

Light to import, without torch: ``import cloze`` calls ``avoid_hidden_tiles``, because oneDNN reads its setting when it
first multiplies.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.errors import ConfigError

if TYPE_CHECKING:
    import torch

# The CPUID leaf that describes AMX tiles; oneDNN configures its tiles by it.
TILE_PAGE = 0x1D
# The highest instruction set that oneDNN may use without tiles.
WITHOUT_TILES = "AVX512_CORE_FP16"


def avoid_hidden_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Keep oneDNN from using AMX on virtual machines that do not expose the size of its tiles.

    Some hypervisors pass on the AMX flag but end CPUID before the leaf that describes it. oneDNN then configures tiles
    of size zero, and the first bfloat16 product kills the process with an illegal instruction. A setting of the user is
    kept.
    """
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and _hides_tiles(_first_processor(cpuinfo)):
        os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES


def _hides_tiles(processor: dict[str, str]) -> bool:
    highest_leaf = processor.get("cpuid level", "")
    return "amx_tile" in processor.get("flags", "").split() and highest_leaf.isdigit() and int(highest_leaf) < TILE_PAGE


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the fields of the first processor in cpuinfo; empty if there is no such file."""
    fields: dict[str, str] = {}
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                fields[name.strip()] = value.strip()
    except OSError:
        return {}
    return fields


def choose_device(name: str | None) -> "torch.device":
    """Return the device with this name; by default CUDA, MPS or the CPU, the first that is available.

    Raises:
        ConfigError: There is no such device on this machine.
    """
    import torch

    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no memory
        return probe.device
    # ImportError: some devices need a package that is not installed.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(
            f"device {name!r} is not available on this machine; use 'cpu', or leave --device out"
        ) from error
