"""Two gloo processes give the losses and weights of one, with DDP and FSDP2, across resumptions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cloze.train.distributed import ProcessGroup

SETTINGS = ("--preset", "tiny", "--batch", "4", "--length", "24", "--steps", "20", "--evaluate-every", "10")

# bfloat16 rounding depends on how sums are split.
EXACT = ("--threads", "1", "--precision", "fp32")


def command(data: Path, out: Path, *more: str) -> list[str]:
    return ["pretrain", str(data), "--out", str(out), *SETTINGS, "--save-every", "7", *EXACT, *more]


def run_alone(data: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cloze", *command(data, out, *more)], capture_output=True, text=True)


def together(
    data: Path, out: Path, *more: str, program: tuple[str, ...] = ("-m", "cloze")
) -> subprocess.CompletedProcess[str]:
    return launched(2, *program, *command(data, out, *more))


def launched(processes: int, *words: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *words], capture_output=True, text=True, env=environment, timeout=300)


def losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row[name] for row in rows for name in ("loss", "held_out_mlm_loss", "held_out_nsp_accuracy") if name in row]


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "run"
    assert run_alone(data, out, "--dropout", "0").returncode == 0
    return out


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_equal_one(data: Path, tmp_path: Path, one: Path, parallel: str) -> None:
    done = together(data, tmp_path / "run", "--dropout", "0", "--parallel", parallel)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held_out_mlm_loss\t") == 1  # only the main rank prints
    assert losses(tmp_path / "run") == pytest.approx(losses(one), abs=1e-6)
    ours, theirs = (load_file(run / "model" / "model.safetensors") for run in (tmp_path / "run", one))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] - theirs[name]).abs().max() < 1e-4 for name in ours)


def test_large_models_gather_one_layer_at_a_time(data: Path, tmp_path: Path, one: Path) -> None:
    program = tmp_path / "large.py"
    program.write_text(
        # Run the module instead of main(): it handles the shutdown of several processes.
        "import runpy\nimport cloze.train.distributed as distributed\n"
        "distributed._GATHER_AT_ONCE = 0\nrunpy.run_module('cloze', run_name='__main__')\n",
        encoding="utf-8",
    )
    done = together(data, tmp_path / "run", "--dropout", "0", "--parallel", "fsdp", program=(str(program),))
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(one), abs=1e-6)


def test_shares_are_exchanged_among_three(tmp_path: Path) -> None:
    program = tmp_path / "exchange.py"
    program.write_text(EXCHANGE, encoding="utf-8")
    done = launched(3, str(program))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("as it should be") == 3


EXCHANGE = """
import os

import torch
import torch.distributed as distributed

from cloze.train.distributed import AllGather, ReduceScatter

distributed.init_process_group("gloo")
group, rank = distributed.group.WORLD, distributed.get_rank()
parts = [torch.arange(4.0) + 10 * one for one in range(3)]
for asynchronous in (False, True):
    gathered = AllGather().allocate((12,), dtype=torch.float32, device=torch.device("cpu"))
    work = AllGather()(gathered, parts[rank], group, async_op=asynchronous)
    assert (work is not None) == asynchronous
    if work is not None:
        work.wait()
    assert torch.equal(gathered, torch.cat(parts))
place = torch.full((12,), -1.0)
place.view(3, 4)[rank] = parts[rank]
AllGather()(place, place.view(3, 4)[rank], group)  # made where it belongs
assert torch.equal(place, torch.cat(parts))
own = torch.arange(12.0) * (rank + 1)
whole = torch.arange(12.0).view(3, 4)[rank]
for operation, factor in ((distributed.ReduceOp.SUM, 6.0), (distributed.ReduceOp.AVG, 2.0)):
    reduced = torch.empty(4)
    assert ReduceScatter()(reduced, own, group, operation) is None
    assert torch.equal(reduced, factor * whole), reduced
try:
    ReduceScatter()(reduced, own, group, distributed.ReduceOp.MAX)
except NotImplementedError:
    print("as it should be", flush=True)
distributed.destroy_process_group()
os._exit(0)  # as cloze does: PyTorch's threads may abort a process that ends otherwise
"""


def test_parts_of_a_batch_are_the_batch(data: Path, tmp_path: Path, one: Path) -> None:
    assert run_alone(data, tmp_path / "run", "--dropout", "0", "--accumulate", "2").returncode == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(one), abs=1e-6)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_with_dropout_two_ranks_equal_one_with_two_parts(data: Path, tmp_path: Path, parallel: str) -> None:
    assert run_alone(data, tmp_path / "one", "--dropout", "0.1", "--accumulate", "2").returncode == 0
    done = together(data, tmp_path / "two", "--dropout", "0.1", "--parallel", parallel)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


def test_a_run_can_be_resumed_with_another_number_of_processes(data: Path, tmp_path: Path, one: Path) -> None:
    out = tmp_path / "run"
    stops = "import cloze.train.loop as loop, os, signal, sys\nfrom cloze.cli import main\n"
    # Sends itself a signal at the end of a step, so that the stopping point is known.
    stops += "step = loop._Training._report\n"
    stops += "def report(self, done, seconds):\n    step(self, done, seconds)\n"
    stops += "    if done == {0}: os.kill(os.getpid(), signal.SIGTERM)\n"
    stops += "loop._Training._report = report\nmain(sys.argv[1:])\n"
    first = [sys.executable, "-c", stops.format(5), *command(data, out, "--dropout", "0")]
    assert subprocess.run(first, capture_output=True, text=True).returncode == 143
    done = together(data, out, "--dropout", "0", "--parallel", "fsdp")
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in done.stderr
    assert losses(out) == pytest.approx(losses(one), abs=1e-6)


def test_more_processes_than_rows_are_refused(data: Path, tmp_path: Path) -> None:
    done = together(data, tmp_path / "run", "--accumulate", "4")
    assert (
        "batch_size is 4 for sequences of 24 tokens, too small to divide among 2 processes with 4 accumulation "
        "steps each; use a --batch-size of at least 8" in done.stderr
    )


def test_one_process_needs_no_group() -> None:
    group = ProcessGroup()
    assert group.is_main
    assert group.all_reduce([1.0, 2.0]) == [1.0, 2.0]
    group.barrier()
    group.destroy()
