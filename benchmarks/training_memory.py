"""Compare the memory and FLOPs estimated by ``model/cost.py`` with real training steps.

    python benchmarks/training_memory.py [--preset base] [--length 512] [--batch 2 4]

Every row is measured in a separate process with one thread: it creates the model and its gradients, resets the peak
memory counter (Linux only), runs one forward and backward pass, and compares the growth with the estimate. It does so
with the default allocator, and with one that returns freed memory to the system (MALLOC_MMAP_THRESHOLD_=65536).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloze.model import HeadName

HEADS: "tuple[HeadName, ...]" = ("mlm", "nsp")


def memory(key: str) -> int:
    """Return the memory of this process in bytes: ``VmRSS`` (current) or ``VmHWM`` (peak)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status is missing: this benchmark needs Linux")


def measure(preset_name: str, batch: int, length: int, checkpointing: bool) -> dict[str, float]:
    """Return the peak memory growth of one step, its seconds, and the estimates."""
    import torch

    from cloze.model import Bert, first_positions, preset
    from cloze.model.cost import estimate
    from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss

    torch.set_num_threads(1)
    config = preset(preset_name, positions=max(512, length))
    model = Bert.fresh(config, HEADS).train()
    model.encoder.checkpointing = checkpointing
    for parameter in model.parameters():
        # Non-zero values: untouched pages of zeros take no memory.
        parameter.grad = torch.ones_like(parameter)

    def step(rows: int, tokens: int) -> None:
        ids = torch.randint(1, config.vocab_size, (rows, tokens))
        chosen = torch.arange(round(0.15 * rows * tokens)) * 6 + 1
        chosen = chosen[chosen % tokens != 0]
        needed = torch.cat([first_positions(ids), chosen])
        last = model(ids, torch.zeros_like(ids), None, needed).last
        words = masked_word_loss(masked_word_logits(model, last, chosen), ids.flatten()[chosen])
        loss = words + next_sentence_loss(model, last, torch.zeros(rows, dtype=torch.long))[0]
        loss.backward()  # type: ignore[no-untyped-call]

    step(1, 8)  # warm-up, for one-time allocations of libraries
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # proc(5): resets VmHWM
    started = time.perf_counter()
    step(batch, length)
    seconds = time.perf_counter() - started
    expected = estimate(config, HEADS, batch=batch, length=length, checkpointing=checkpointing)
    return {
        "growth": memory("VmHWM") - before,
        "estimate": expected.activation_bytes,
        "seconds": seconds,
        "flops": expected.flops_per_token * batch * length,
    }


def main() -> None:
    """Parse the arguments and print one row per shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)  # batch, checkpointing
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.preset, arguments.one[0], arguments.length, bool(arguments.one[1]))))
        return
    print("batch  checkpointing  trimming  growth MiB  estimate MiB  ratio  seconds  GFLOP/s")
    for checkpointing, gives_back, batch in itertools.product((0, 1), (0, 1), arguments.batch):
        flags = [
            "--preset",
            arguments.preset,
            "--length",
            str(arguments.length),
            "--one",
            str(batch),
            str(checkpointing),
        ]
        settings = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "65536"} if gives_back else {})
        command = [sys.executable, __file__, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
        row = json.loads(done.stdout)
        print(
            f"{batch:5}  {'yes' if checkpointing else 'no':13}  {'yes' if gives_back else 'no':10}  "
            f"{row['growth'] / 2**20:10.0f}  {row['estimate'] / 2**20:12.0f}  {row['estimate'] / row['growth']:5.2f}  "
            f"{row['seconds']:7.1f}  {row['flops'] / row['seconds'] / 1e9:7.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
