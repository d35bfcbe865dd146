"""Search the initialization of a narrow model: held-out masked-LM loss by standard deviation and sequence length.

    python benchmarks/small_start.py [--steps 1500] [--seeds 1]

Trains ``tiny`` on the bundled books with a fixed number of tokens per update, with the paper's standard deviation
(0.02, chosen for a hidden size of 768) and with the preset's own, on short and on long sequences. Prints the held-out
loss after each sixth of the run.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from cloze.corpus.batches import PretrainingBatches
from cloze.corpus.learn_vocabulary import train_vocabulary
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, PrepareSettings, VocabularySettings
from cloze.corpus.shards import Corpus
from cloze.demo.flow import DATA
from cloze.model import Bert, HeadName, preset
from cloze.text import Tokenizer
from cloze.train.optimization import Schedule, make_optimizer, set_rate
from cloze.train.pretraining.held_out import SEED, HeldOut
from cloze.train.pretraining.objectives.masked import PretrainingObjective

TOKENS = 2048  # tokens per update
RATE = 2e-3
HEADS: tuple[HeadName, ...] = ("mlm", "nsp")


def train(data: Path, deviation: float | None, length: int, steps: int, seed: int) -> list[float]:
    """Train, and return the held-out loss after each sixth of the run."""
    tokenizer = Tokenizer.from_folder(data)
    config = preset("tiny", tokenizer.size, dropout=0.0, attention_dropout=0.0)
    if deviation is not None:
        config = replace(config, initial_deviation=deviation)
    objective = PretrainingObjective(Bert.fresh(config, HEADS, seed=seed), HEADS, torch.device("cpu"))
    source, held_out = (
        PretrainingBatches(
            Corpus.open(data, split),
            tokenizer,
            batch_size=TOKENS // length,
            examples=ExampleSettings(max_length=length),
            masks=MaskSettings(),
            seed=number,
        )
        for split, number in (("train", seed), ("held_out", SEED))
    )
    unseen = HeldOut.of([held_out.at(step) for step in range(10)])
    schedule = Schedule(steps, None, 0.1, RATE)
    optimizer = make_optimizer(objective, RATE, 0.01)
    losses = []
    for step in range(steps):
        set_rate(optimizer, schedule.rate(step, 0.0))
        batch = source.at(step)
        outcome = objective(batch, batch.counts)
        optimizer.zero_grad()
        outcome.loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 6) == 0:
            with torch.inference_mode():
                losses.append(unseen.evaluate(objective)["held_out_mlm_loss"])
    return losses


def main() -> None:
    """Parse the arguments and print one line per run."""
    parser = argparse.ArgumentParser(description="Search the initialization of a narrow model.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vocab, data = Path(folder) / "vocab", Path(folder) / "data"
        train_vocabulary([DATA / "books.txt.xz"], vocab, settings=VocabularySettings(size=6000))
        prepare([DATA / "books.txt.xz"], vocab, data, settings=PrepareSettings(held_out=0.03))
        print("length  deviation  seed  held-out masked-LM loss during training")
        for length in (32, 128):
            for name, deviation in (("paper", 0.02), ("preset", None)):
                for seed in range(arguments.seeds):
                    losses = train(data, deviation, length, arguments.steps, seed)
                    print(f"{length:6}  {name:9}  {seed:4}  {' '.join(f'{loss:.2f}' for loss in losses)}", flush=True)


if __name__ == "__main__":
    main()
