"""Work around a processor feature that some virtual machines announce but do not provide.

Light to import: ``import cloze`` calls this, because oneDNN reads the setting when it first multiplies.
"""

import os
from pathlib import Path

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
