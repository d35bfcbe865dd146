import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from cloze.train.allocator import give_back_freed_memory, keep_freed_memory

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    states = [torch.ones(2**22) for _ in range(10)]  # of 16 MB each, freed together
    del states
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert {function}()
torch.set_num_threads(1)
print([step() for _ in range(4)][-1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is what is spoken to")
def test_pages_are_made_once_or_every_time() -> None:
    counts = {}
    for function in ("keep_freed_memory", "give_back_freed_memory"):
        program = PROGRAM.format(function=function)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        counts[function] = int(done.stdout)
    # Pages may be large ones, so that how many there are is the system's to say.
    assert 10 * counts["keep_freed_memory"] < counts["give_back_freed_memory"]


IDLE = """
import torch
from cloze.train.allocator import give_back_idle_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 // 2**20

assert keep_freed_memory()
# Blocks of 4 MB, and between them small ones that stay: what is freed lies between what is used.
blocks = [(torch.ones(2**20), torch.ones(64)) for _ in range(50)]
used = [small for _, small in blocks]
del blocks
kept = resident()
assert give_back_idle_memory()
print(kept - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is what is spoken to")
def test_what_lies_idle_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
    assert 150 < int(done.stdout) < 250  # MB, of 200
