import mmap
import subprocess
import sys

import pytest

from cloze.hardware import MemoryTrimmer, resident_memory

PROGRAM = """
import resource
import torch
from cloze.hardware import return_freed_memory, keep_freed_memory

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    states = [torch.ones(2**22) for _ in range(10)]  # of 16 MB each, freed together
    del states
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert {function}()
torch.set_num_threads(1)
print([step() for _ in range(4)][-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="requires glibc")
def test_pages_are_made_once_or_every_time() -> None:
    counts = {}
    for function in ("keep_freed_memory", "return_freed_memory"):
        program = PROGRAM.format(function=function)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        counts[function] = int(done.stdout)
    # The system may use huge pages, so the exact number of page faults is unknown.
    assert 10 * counts["keep_freed_memory"] < counts["return_freed_memory"]


IDLE = """
import torch
from cloze.hardware import trim_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20

assert keep_freed_memory()
# Blocks of 4 MB, and between them small ones that stay: what is freed lies between what is used.
blocks = [(torch.ones(2**20), torch.ones(64)) for _ in range(50)]
used = [small for _, small in blocks]
del blocks
kept = resident()
assert trim_memory()
print(kept - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="requires glibc")
def test_idle_memory_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
    assert 150 < int(done.stdout) < 250  # in MB; the program used 200


def steps_with_trimming(resident: list[int]) -> list[int]:
    """Return the steps after which memory is returned, given the resident memory after each step."""
    found: list[int] = []
    steps = iter(enumerate(resident))
    now = 0

    def measure() -> int:
        nonlocal now
        now, value = next(steps)
        return value

    def trim() -> bool:
        found.append(now)
        return True

    idle = MemoryTrimmer(measure, trim)
    for _ in resident:
        idle.after_step()
    return found


def test_idle_memory_is_given_back_when_it_has_grown() -> None:
    assert steps_with_trimming([50, 100, 101, 102, 106, 90, 100, 102, 107, 100]) == [4, 8]


def test_a_step_that_takes_more_by_itself_is_no_idle_memory() -> None:
    # After the first return, a step is known to need 120, so memory is idle only well above that.
    assert steps_with_trimming([100, 100, 110, 120, 120, 122, 127]) == [2, 6]


def test_varying_batches_raise_the_limit_until_trimming_is_rare() -> None:
    growing = [100, 110, 120, 130, 140] * 20  # every fifth step starts again from 100
    # 110 exceeds the first limit, then 130 two steps later; after that, a step is known to need 140.
    assert steps_with_trimming([100, 100, *growing]) == [3, 5]


def test_memory_is_not_returned_without_measurements() -> None:
    assert steps_with_trimming([0] * 6) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux reports the resident memory")
def test_resident_memory_is_that_of_this_process() -> None:
    before = resident_memory()
    # Allocated directly from the system, because reusing memory that this process freed earlier would not be measured.
    with mmap.mmap(-1, 2**26) as block:
        for _ in range(64):
            block.write(b"x" * 2**20)
        assert before + 2**25 < resident_memory() < before + 2**28
