"""Fine-tuning beside transformers' Trainer: the speed of steps in turns, and dev scores over seeds.

    python benchmarks/finetuning.py --part speed [--steps 300]
    python benchmarks/finetuning.py --part quality [--tasks mrpc sts-b sst-2] [--seeds 3] [--out runs/finetuning]

speed    MiniLM on MRPC, batches of 32 rows of at most 128 tokens, the paper's dropout, AdamW, a process each, one step
         of one after one step of the other. The Trainer three ways: as its examples have it (rows padded to 128), with
         rows padded to the longest of their batch, and with rows of like length together (and bf16, where the hardware
         multiplies it, for both).
quality  The same start, rows and settings (3 epochs, batch 32, rate 5e-5, linear warm-up over a tenth), each seed with
         its own order, head and dropout: mean and spread of the dev score. SST-2 with its first 10,000 rows. Scores are
         kept in --out, and the same command goes on with what is missing.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch

from glue_rows import first_rows  # beside this file
from minilm import minilm

ROOT = Path(__file__).parents[1]
FOLDERS = {"mrpc": "MRPC", "sts-b": "STS-B", "sst-2": "SST-2", "rte": "RTE", "cola": "CoLA"}
BATCH, LENGTH, RATE, EPOCHS = 32, 128, 5e-5, 3
WAYS = ("cloze", "Trainer, padded to 128", "Trainer, padded to the longest", "Trainer, grouped by length")


def task_folder(task: str, glue: Path, scratch: Path) -> Path:
    """The task's own folder; of SST-2, one with the first rows of its training set."""
    return first_rows(glue / "SST-2", scratch / "SST-2") if task == "sst-2" else glue / FOLDERS[task]


def read(task: str, folder: Path) -> Any:
    from cloze.tasks.source import Source
    from cloze.tasks.task import read_task

    return read_task(Source(task, folder))


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows as the Trainer takes them."""

    def __init__(self, examples: Any, tokenizer: Any, pad: bool) -> None:
        padding = "max_length" if pad else False
        pairs = [examples.pairs] if examples.pairs is not None else []
        encoded = tokenizer(examples.texts, *pairs, truncation=True, max_length=LENGTH, padding=padding)
        self.rows = [
            {name: values[index] for name, values in encoded.items()} | {"labels": target}
            for index, target in enumerate(examples.targets)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def make_trainer(data: Any, way: str, seed: int, out: Path, callbacks: list[Any], steps: int = -1) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    torch.manual_seed(seed)
    labels = 1 if data.labels is None else len(data.labels)
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=labels, dtype=torch.float32)
    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        num_train_epochs=EPOCHS,
        max_steps=steps,
        warmup_steps=0.1,
        weight_decay=0.01,
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        train_sampling_strategy="group_by_length" if "grouped" in way else "random",
    )
    rows = Rows(data.train, tokenizer, pad="128" in way)
    return Trainer(model, arguments, train_dataset=rows, processing_class=tokenizer, callbacks=callbacks)


def serve_trainer(connection: Connection, way: str, folder: Path, threads: int, steps: int, out: Path) -> None:
    """Train with the Trainer, each step when it is told to."""
    from transformers import TrainerCallback

    torch.set_num_threads(threads)

    class InTurns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            connection.recv()
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            connection.send(time.perf_counter() - self.start)

    make_trainer(read("mrpc", folder), way, 0, out, [InTurns()], steps).train()


def serve_cloze(connection: Connection, folder: Path, threads: int, steps: int, out: Path) -> None:
    """Train with the product's own loop, each step when it is told to."""
    from cloze.checkpoint import HEAD_OF, load_folder
    from cloze.model.surgery import with_heads
    from cloze.progress import Silent
    from cloze.tasks.classify import sequence_items
    from cloze.train.allocator import keep_freed_memory
    from cloze.train.loop import train
    from cloze.train.run import Run
    from cloze.train.settings import LoopSettings
    from cloze.train.task_batches import TaskBatches
    from cloze.train.task_objective import TaskObjective

    torch.set_num_threads(threads)
    keep_freed_memory()
    data, base = read("mrpc", folder), load_folder(minilm())
    head = HEAD_OF[data.kind]
    tokenizer = base.tokenizer.with_max_length(LENGTH)
    items = sequence_items(data.train, tokenizer, "cut")
    bert = with_heads(base.model, (head,), labels=len(data.labels), keep=False, seed=0)

    class InTurns(TaskBatches):
        """A step lasts from one batch being asked for to the next: all that the loop does is in it."""

        begun: float | None = None

        def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
            if self.begun is not None:
                connection.send(time.perf_counter() - self.begun)
            connection.recv()
            self.begun = time.perf_counter()
            return super().at(step, part, parts, progress)

    batches = InTurns(items, BATCH, 0, tokenizer.pad_id, torch.device("cpu"))
    settings = LoopSettings(steps=steps, rate=RATE, save_every=10**9)
    train(TaskObjective(bert, head), batches, settings, Run.open(out / "run", {}), Silent())
    assert batches.begun is not None
    connection.send(time.perf_counter() - batches.begun)


def measure_speed(glue: Path, steps: int, threads: int) -> None:
    context = multiprocessing.get_context("spawn")
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = task_folder("mrpc", glue, Path(name))
        ends = {}
        for number, way in enumerate(WAYS):
            ends[way], theirs = context.Pipe()
            out = Path(name, str(number))
            if way == "cloze":
                process = context.Process(target=serve_cloze, args=(theirs, folder, threads, steps, out))
            else:
                process = context.Process(target=serve_trainer, args=(theirs, way, folder, threads, steps, out))
            process.start()
            stack.callback(process.join)
        for step in range(steps):
            for way in WAYS if step % 2 else reversed(WAYS):
                ends[way].send(step)
                times[way].append(ends[way].recv())
            if step == steps - 1 or step % 50 == 49:
                _print_speed(times, step + 1)


def _print_speed(times: dict[str, list[float]], done: int) -> None:
    print(f"\nafter {done} steps of {BATCH} rows       rows/s (mean)  median step s   cloze is")
    ours = times["cloze"][2:] or times["cloze"]
    for way, some in times.items():
        later = some[2:] or some
        ratio = sum(later) / sum(ours)
        print(f"{way:<32} {BATCH / mean(later):12.1f} {median(later):14.3f}   {ratio:6.2f} x", flush=True)


def trainer_score(task: str, folder: Path, seed: int, out: Path) -> float:
    """The Trainer's dev score, by the product's metrics."""
    from cloze.tasks.metrics import score

    data = read(task, folder)
    trainer = make_trainer(data, "Trainer, padded to the longest", seed, out, [])
    trainer.train()
    logits = trainer.predict(Rows(data.dev, trainer.processing_class, pad=False)).predictions
    told = logits[:, 0].tolist() if data.labels is None else logits.argmax(-1).tolist()
    return float(score(data.metrics[:1], data.dev.targets, told)[data.metrics[0]])


def cloze_score(task: str, folder: Path, seed: int, out: Path) -> float:
    """Ours, by the product's own command."""
    from cloze.tasks.source import Source
    from cloze.tasks.task import find_task
    from cloze.train.finetune import finetune
    from cloze.train.run import Run
    from cloze.train.settings import FinetuneSettings

    settings = FinetuneSettings(epochs=EPOCHS, batch=BATCH, length=LENGTH, rate=RATE, seed=seed)
    run = finetune(Source(task, folder), minilm(), out, settings=settings)
    return float(Run(run).results()[find_task(task).metrics[0]])


def measure_quality(tasks: list[str], glue: Path, seeds: int, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "scores.json"
    scores: dict[str, float] = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for task in tasks:
        folder = task_folder(task, glue, out)
        for seed in range(seeds):
            for who, scored in (("cloze", cloze_score), ("Trainer", trainer_score)):
                key = f"{task} {who} {seed}"
                if key not in scores:
                    scores[key] = scored(task, folder, seed, out / key.replace(" ", "-"))
                    kept.write_text(json.dumps(scores, indent=1), encoding="utf-8")
        for who in ("cloze", "Trainer"):
            found = [100 * scores[f"{task} {who} {seed}"] for seed in range(seeds)]
            spread = stdev(found) if len(found) > 1 else 0.0
            print(
                f"{task:<8} {who:<8} {mean(found):6.2f} ± {spread:.2f}   {[round(one, 2) for one in found]}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning beside the Trainer.")
    parser.add_argument("--part", choices=["speed", "quality"], default="speed")
    parser.add_argument("--glue", type=Path, default=ROOT / "../shared/data/glue")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "sts-b", "sst-2"], choices=FOLDERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/finetuning"))
    asked = parser.parse_args()
    if asked.part == "speed":
        measure_speed(asked.glue, asked.steps, asked.threads)
    else:
        torch.set_num_threads(asked.threads)
        measure_quality(asked.tasks, asked.glue, asked.seeds, asked.out)


if __name__ == "__main__":
    main()
