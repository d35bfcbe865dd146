"""Compare pre-training steps of cloze and transformers' BertForPreTraining on the same batches.

    python benchmarks/pretraining.py [--presets mini base] [--steps 60] [--threads 2]

Both start from the same weights and train on the same masked batches of real text, with the paper's dropout, AdamW
(fused), gradient clipping and learning rates, in the same precision (bf16 if the hardware supports it, or fp32).
Each runs in a separate process, and steps alternate. Prints the tokens per second of the best and the median step, the
ratio, the share of the machine's matrix-product peak, the share of a step spent on creating batches, and the two loss
curves.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median

import torch
from transformers import BertForPreTraining

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.hardware import keep_freed_memory
from cloze.model import Backbone, Bert, HeadName, preset
from cloze.model.cost import estimate
from cloze.text import Tokenizer
from cloze.train.optimization import Precision, make_optimizer, measure_peak
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from public_data import add_data, find_data  # module in benchmarks/

SHAPES = {"tiny": (32, 128), "mini": (32, 128), "small": (16, 128), "medium": (16, 128), "base": (8, 128)}
RATE = 1e-4
HEADS: tuple[HeadName, ...] = ("mlm", "nsp")
CPU = torch.device("cpu")


def main() -> None:
    """Parse the arguments and measure each preset."""
    parser = argparse.ArgumentParser(description="Compare pre-training steps of cloze and transformers.")
    add_data(parser)
    parser.add_argument("--presets", nargs="+", default=["mini", "base"], choices=SHAPES)
    parser.add_argument("--steps", type=int, help="steps per preset (default: 60 for mini, 12 for base)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "corpus_en/textbooks_ccby.txt.xz", "vocab")
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        corpus = _corpus(arguments.data, Path(temporary))
        for name in arguments.presets:
            steps = arguments.steps or (12 if name == "base" else 60)
            _compare(name, corpus, steps, Path(temporary), arguments.threads)


def _corpus(data: Path, folder: Path) -> Path:
    """Prepare textbooks with the published English vocabulary."""
    published = next((data / "vocab").glob("*uncased*"))
    pieces = (published if published.is_file() else published / "vocab.txt").read_text(encoding="utf-8").splitlines()
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "vocabulary")
    text = data / "corpus_en/textbooks_ccby.txt.xz"
    return prepare([text], folder / "vocabulary", folder / "corpus", settings=PrepareSettings(held_out=0))


def _compare(name: str, corpus: Path, steps: int, folder: Path, threads: int) -> None:
    tokenizer = Tokenizer.from_folder(corpus)
    rows, length = SHAPES[name]
    bert = Bert.fresh(preset(name, tokenizer.size), HEADS)
    save_folder(ModelFolder(bert, tokenizer), folder / name)
    batches = _batches(corpus, name)
    times: dict[str, list[float]] = {"ours": [], "theirs": [], "batch": []}
    losses: dict[str, list[float]] = {"ours": [], "theirs": []}
    with ExitStack() as stack:
        # Separate processes, because the memory allocator is one of the differences.
        workers = {who: stack.enter_context(_Worker(who, folder / name, corpus, name, threads)) for who in losses}
        for step in range(steps + 1):
            for who in ("ours", "theirs") if step % 2 else ("theirs", "ours"):
                seconds, loss, making = workers[who].do(step)
                times[who].append(seconds)
                losses[who].append(loss)
                if who == "ours":
                    times["batch"].append(making)
    precision = Precision.choose("auto", CPU)
    tokens = mean(batches.at(step).token_count for step in range(1, steps + 1))
    work = estimate(bert.config, HEADS, batch=rows, length=length).flops_per_token
    later = {who: some[1:] for who, some in times.items()}
    _print(name, later, losses, tokens, work, measure_peak(precision, 2.0), precision)


def _batches(corpus: Path, name: str) -> PretrainingBatches:
    rows, length = SHAPES[name]
    return PretrainingBatches(
        Corpus.open(corpus),
        Tokenizer.from_folder(corpus),
        batch_size=rows,
        examples=ExampleSettings(max_length=length),
        masks=MaskSettings(),
        seed=0,
    )


class _Worker:
    """Process that runs one training step per message."""

    def __init__(self, who: str, folder: Path, corpus: Path, name: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._theirs, who, folder, corpus, name, threads))

    def __enter__(self) -> "_Worker":
        self._process.start()
        self._theirs.close()  # closed here so that a dead worker is noticed instead of waited for
        return self

    def do(self, step: int) -> tuple[float, float, float]:
        """Return the seconds and the loss of a step, and the seconds spent on its batch."""
        self._connection.send(step)
        answer: tuple[float, float, float] = self._connection.recv()
        return answer

    def __exit__(self, *error: object) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(connection: Connection, who: str, folder: Path, corpus: Path, name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    precision = Precision.choose("auto", CPU)
    batches = _batches(corpus, name)
    act = _ours(load_folder(folder).model, precision) if who == "ours" else _theirs(folder, precision)
    while (step := connection.recv()) is not None:
        start = time.perf_counter()
        batch = batches.at(step)
        made = time.perf_counter()
        loss = act(batch, step)
        connection.send((time.perf_counter() - made, loss, made - start))


def _ours(bert: Backbone, precision: Precision) -> Callable[[PretrainingBatch, int], float]:
    keep_freed_memory()
    objective = PretrainingObjective(bert, HEADS, CPU).train()
    optimizer = make_optimizer(objective, RATE, 0.01)

    def act(batch: PretrainingBatch, step: int) -> float:
        torch.manual_seed(step)
        optimizer.zero_grad()
        with precision.autocast():
            loss = objective(batch, batch.counts).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return act


def _theirs(folder: Path, precision: Precision) -> Callable[[PretrainingBatch, int], float]:
    model = BertForPreTraining.from_pretrained(folder, dtype=torch.float32).train()
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)

    def act(batch: PretrainingBatch, step: int) -> float:
        torch.manual_seed(step)
        ids = torch.from_numpy(batch.ids)
        labels = torch.full_like(ids, -100)
        labels.view(-1)[torch.from_numpy(batch.positions)] = torch.from_numpy(batch.targets)
        mask = (torch.arange(ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]).long()
        optimizer.zero_grad()
        with precision.autocast():
            loss = model(
                input_ids=ids,
                token_type_ids=torch.from_numpy(batch.segments),
                attention_mask=mask,
                labels=labels,
                next_sentence_label=torch.from_numpy(batch.labels),
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return act


def _print(
    name: str,
    times: dict[str, list[float]],
    losses: dict[str, list[float]],
    tokens: float,
    work: float,
    peak: float,
    precision: Precision,
) -> None:
    print(f"\n{name}, {precision.name}, {torch.get_num_threads()} threads; peak {peak / 1e9:.0f} GFLOP/s")
    for who in ("ours", "theirs"):
        best, usual = tokens / min(times[who]), tokens / median(times[who])
        print(f"  {who:<7} {usual:7,.0f} tokens/s (median), {best:7,.0f} (best), {best * work / peak:.0%} of the peak")
    ratio = median(their / our for our, their in zip(times["ours"], times["theirs"], strict=True))
    print(f"  ratio   {ratio:.2f} (median of pairs), {min(times['theirs']) / min(times['ours']):.2f} (best)")
    print(f"  creating a batch takes {median(times['batch']) / median(times['ours']):.2%} of our step time")
    count = len(losses["ours"])
    for part in range(4):
        some = slice(part * count // 4, (part + 1) * count // 4)
        ours, theirs = (mean(losses[who][some]) for who in ("ours", "theirs"))
        print(f"  loss, quarter {part + 1}: ours {ours:.4f}, theirs {theirs:.4f}")


if __name__ == "__main__":
    main()
