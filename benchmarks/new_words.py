"""Measure the benefit of added words and compare initial vectors for them, on biomedical text with MiniLM weights.

    python benchmarks/new_words.py [--data ../shared/data] [--words 2000] [--steps 300] [--seeds 3]

The first table gives the coverage of MiniLM's vocabulary before and after adding the best candidate words of the text.
Then MiniLM, which ships without a masked-LM head, is trained further with a new head on the extended vocabulary.
Vectors of added words are initialized with the mean of their pieces or at random. Data order, masks and the initial
head are the same for both. The second table gives the held-out masked-LM loss during training, over all masked tokens
and over those whose answer is an added word. Results are stored in --out as they are measured, and finished runs are
not repeated.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.nn import functional

from cloze.checkpoint import load_folder
from cloze.checkpoint.convert import extend
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.documents import read_lines
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.model import Backbone, HeadName
from cloze.model.losses import masked_word_logits
from cloze.model.surgery import WordStart, with_heads
from cloze.text import Tokenizer
from cloze.text.oov.coverage import Coverage, measure_coverage
from cloze.train.optimization import Schedule, make_optimizer, set_rate
from cloze.train.pretraining.held_out import SEED
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from minilm import minilm  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

LENGTH, BATCH, RATE = 64, 16, 2e-4
HEADS: tuple[HeadName, ...] = ("mlm", "nsp")
POINTS = (0, 25, 50, 100, 150, 200, 250, 300, 400, 600, 800, 1000)
STARTS: tuple[WordStart, ...] = ("pieces", "random")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the benefit of added words and compare initial vectors for them."
    )
    add_data(parser)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/new_words"))
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "corpus_sci/biomed.txt.xz")
    text = arguments.data / "corpus_sci/biomed.txt.xz"
    words = _choose_words(text, arguments.words, arguments.out)
    _print_coverage(text, words, arguments.out)
    for seed in range(arguments.seeds):
        for start in STARTS:
            _train(text, words, start, seed, arguments.steps, arguments.out)
    _print_losses(arguments.out, arguments.seeds)


def _measure(text: Path, folder: Path) -> Coverage:
    return measure_coverage(read_lines(text), Tokenizer.from_folder(folder))


def _choose_words(text: Path, count: int, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    path = out / "words.txt"
    if not path.exists():
        candidates = _measure(text, minilm()).candidates[:count]
        path.write_text("".join(f"{candidate.word}\n" for candidate in candidates), encoding="utf-8")
    return path


def _print_coverage(text: Path, words: Path, out: Path) -> None:
    extend(minilm(), out / "pieces", words=words)
    extend(minilm(), out / "rungs", words=words, characters=True, look_alikes=True)
    print(f"{'vocabulary':<36}{'pieces per word':>14}{'whole words':>13}{'[UNK] words':>13}")
    for name, folder in (
        ("MiniLM's own", minilm()),
        ("with the words", out / "pieces"),
        ("with words, characters, look-alikes", out / "rungs"),
    ):
        found = _measure(text, folder)
        whole = (found.rungs["word"] + found.rungs["added"]) / found.words
        print(f"{name:<36}{found.pieces_per_word:>14.4f}{whole:>13.2%}{found.unknown_rate:>13.4%}")


def _train(text: Path, words: Path, start: WordStart, seed: int, steps: int, out: Path) -> None:
    record = out / f"{start}-{seed}.json"
    if record.exists():
        return
    extend(minilm(), out / start, words=words, start=start, seed=seed)
    data = prepare([text], out / "pieces", out / "data", settings=PrepareSettings(held_out=0.05))
    folder = load_folder(out / start)
    model = with_heads(folder.model, HEADS, keep=True, seed=seed)
    train, held_out = (
        PretrainingBatches(
            Corpus.open(data, split),
            folder.tokenizer,
            batch_size=BATCH,
            examples=ExampleSettings(max_length=LENGTH),
            masks=MaskSettings(),
            seed=number,
        )
        for split, number in (("train", seed), ("held_out", SEED))
    )
    batches = [held_out.at(step) for step in range(20)]
    added = torch.tensor(sorted(folder.tokenizer.added_ids))
    objective = PretrainingObjective(model, HEADS, torch.device("cpu"))
    optimizer = make_optimizer(objective, RATE, 0.01)
    schedule = Schedule(steps + 1, None, 0.1, RATE)
    torch.manual_seed(seed)
    losses: dict[int, tuple[float, float]] = {}
    for step in range(steps + 1):
        if step in POINTS or step == steps:
            losses[step] = _evaluate(model, batches, added)
            print(f"{start} {seed} step {step}: {losses[step][0]:.3f}, added words {losses[step][1]:.3f}", flush=True)
        set_rate(optimizer, schedule.rate(step, 0.0))
        objective.train()
        batch = train.at(step)
        outcome = objective(batch, batch.counts)
        optimizer.zero_grad()
        outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
    record.write_text(json.dumps(losses), encoding="utf-8")


@torch.inference_mode()
def _evaluate(model: Backbone, batches: list[PretrainingBatch], added: Tensor) -> tuple[float, float]:
    """Return the mean loss over all masked tokens, and over those whose answer is an added word."""
    model.eval()
    losses, is_added = [], []
    for batch in batches:
        ids, segments, positions, targets = (
            torch.from_numpy(array) for array in (batch.ids, batch.segments, batch.positions, batch.targets)
        )
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
        logits = masked_word_logits(model, model(ids, segments, mask).last, positions)
        losses.append(functional.cross_entropy(logits, targets, reduction="none"))
        is_added.append(torch.isin(targets, added))
    all_losses, where = torch.cat(losses), torch.cat(is_added)
    return float(all_losses.mean()), float(all_losses[where].mean())


def _print_losses(out: Path, seeds: int) -> None:
    records = {
        start: [json.loads((out / f"{start}-{seed}.json").read_text(encoding="utf-8")) for seed in range(seeds)]
        for start in STARTS
    }
    print(f"\nheld-out masked-LM loss, mean and standard deviation over {seeds} seeds")
    print(f"{'step':>5}{'pieces':>16}{'random':>16}{'added: pieces':>18}{'added: random':>18}")
    for step in records["pieces"][0]:
        cells = [_cell([record[step][part] for record in records[start]]) for part in (0, 1) for start in STARTS]
        print(f"{step:>5}{cells[0]:>16}{cells[1]:>16}{cells[2]:>18}{cells[3]:>18}")


def _cell(values: list[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
