"""Compare the speed of fine-tuning with transformers' Trainer, alternating step by step.

    python benchmarks/finetuning.py [--steps 300] [--threads N]

Both train MiniLM on MRPC: batches of 32 rows of at most 128 tokens, the paper's dropout, AdamW. Each runs in a separate
process, and only one of them runs a step at a time. The Trainer has three variants: rows padded to 128 as in its
examples, padded to the longest row of the batch, and grouped by length (with bf16 where the hardware is faster with
it). Prints rows per second, the median seconds per step and the speed of cloze relative to each variant. For dev scores
see scores.py.
"""

import argparse
import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/
from trainer_peer import BATCH, LENGTH, RATE, make_trainer

ROOT = Path(__file__).parents[1]
GROUPED = "Trainer, grouped by length"


def read(folder: Path) -> Any:
    from cloze.tasks.registry import read_task
    from cloze.tasks.rows import Source

    return read_task(Source("mrpc", folder))


def serve_trainer(connection: Connection, variant: str, folder: Path, threads: int, steps: int, out: Path) -> None:
    """Train with the Trainer, one step per message."""
    from transformers import TrainerCallback

    torch.set_num_threads(threads)

    class InTurns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            connection.recv()
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            connection.send(time.perf_counter() - self.start)

    make_trainer(read(folder), variant, 0, out, [InTurns()], steps).train()


def variants() -> tuple[str, ...]:
    """Return the variants of the Trainer that this machine supports."""
    from cloze.predict.quantization.precision import has_fast_bf16

    grouped = f"{GROUPED}, bf16" if has_fast_bf16(torch.device("cpu")) else GROUPED
    return ("cloze", "Trainer, padded to 128", "Trainer, padded to the longest", grouped)


def serve_cloze(connection: Connection, folder: Path, threads: int, steps: int, out: Path) -> None:
    """Train with cloze's own loop, one step per message."""
    from cloze.checkpoint import load_folder
    from cloze.hardware import keep_freed_memory
    from cloze.model.surgery import with_heads
    from cloze.progress import Silent
    from cloze.tasks.classification.kind import sequence_items
    from cloze.train.finetuning.objective import TaskBatches, TaskObjective
    from cloze.train.loop import TrainerOptions, train
    from cloze.train.optimization import Precision
    from cloze.train.run import Run
    from cloze.train.settings import LoopSettings

    torch.set_num_threads(threads)
    keep_freed_memory()
    data, base = read(folder), load_folder(minilm())
    head = data.kind.head
    tokenizer = base.tokenizer.with_max_length(LENGTH)
    items = sequence_items(data.train, tokenizer, "cut")
    bert = with_heads(base.model, (head,), labels=len(data.labels), keep=False, seed=0)

    class InTurns(TaskBatches):
        """Batches that time each step from one request for a batch to the next, which covers all work of the loop."""

        begun: float | None = None

        def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
            if self.begun is not None:
                connection.send(time.perf_counter() - self.begun)
            connection.recv()
            self.begun = time.perf_counter()
            return super().at(step, part, parts, progress)

    batches = InTurns(items, BATCH, 0, tokenizer.pad_id, torch.device("cpu"))
    settings = LoopSettings(steps=steps, learning_rate=RATE, save_every=10**9)
    options = TrainerOptions(precision=Precision.choose("auto", torch.device("cpu")))
    train(TaskObjective(bert, head), batches, settings, Run.open(out / "run", {}), Silent(), options=options)
    assert batches.begun is not None
    connection.send(time.perf_counter() - batches.begun)


def measure_speed(folder: Path, steps: int, threads: int) -> None:
    context = multiprocessing.get_context("spawn")
    compared = variants()
    times: dict[str, list[float]] = {variant: [] for variant in compared}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        ends = {}
        for number, variant in enumerate(compared):
            ends[variant], theirs = context.Pipe()
            out = Path(name, str(number))
            if variant == "cloze":
                process = context.Process(target=serve_cloze, args=(theirs, folder, threads, steps, out))
            else:
                process = context.Process(target=serve_trainer, args=(theirs, variant, folder, threads, steps, out))
            process.start()
            theirs.close()  # closed here so that a dead worker is noticed instead of waited for
            stack.callback(process.join)
        for step in range(steps):
            for variant in compared if step % 2 else reversed(compared):
                ends[variant].send(step)
                times[variant].append(ends[variant].recv())
            if step == steps - 1 or step % 50 == 49:
                _print_speed(times, step + 1)


def _print_speed(times: dict[str, list[float]], done: int) -> None:
    print(f"\nafter {done} steps of {BATCH} rows       rows/s (mean)  median step s   cloze is")
    ours = times["cloze"][2:] or times["cloze"]
    for variant, some in times.items():
        later = some[2:] or some
        ratio = sum(later) / sum(ours)
        print(f"{variant:<32} {BATCH / mean(later):12.1f} {median(later):14.3f}   {ratio:6.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of fine-tuning with the Trainer.")
    add_data(parser)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    glue = find_data(arguments.data, "glue/MRPC") / "glue"
    measure_speed(glue / "MRPC", arguments.steps, arguments.threads)


if __name__ == "__main__":
    main()
