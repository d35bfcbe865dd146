"""What a processor claims and does not have, found before anything computes.

Light to import: `cloze` itself asks, since what it sets is read when a library first multiplies.
"""

import os
from pathlib import Path

# The page of CPUID that describes the tiles of AMX. oneDNN lays its tiles out by it.
TILE_PAGE = 0x1D
# The most that oneDNN may use without tiles.
WITHOUT_TILES = "AVX512_CORE_FP16"


def avoid_hidden_tiles(facts: Path = Path("/proc/cpuinfo")) -> None:
    """Keep oneDNN from AMX where a virtual machine has it and hides how large its tiles are.

    Some hypervisors pass the flag on and end CPUID before the page that describes it. oneDNN then takes tiles of no
    size, and the first product of bfloat16 ends the process with an illegal instruction. What the user has set stays.
    """
    if "ONEDNN_MAX_CPU_ISA" not in os.environ and _hides_tiles(_first_processor(facts)):
        os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_TILES


def _hides_tiles(processor: dict[str, str]) -> bool:
    pages = processor.get("cpuid level", "")
    return "amx_tile" in processor.get("flags", "").split() and pages.isdigit() and int(pages) < TILE_PAGE


def _first_processor(facts: Path) -> dict[str, str]:
    """The facts about one processor, which are those about the others; none where the system tells none."""
    found: dict[str, str] = {}
    try:
        with facts.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                found[name.strip()] = value.strip()
    except OSError:
        return {}
    return found
