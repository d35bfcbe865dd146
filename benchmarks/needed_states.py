"""What is saved where a head reads only some of the last layer's states: training steps with and without, in turns.

    python benchmarks/needed_states.py [--presets mini base] [--length 128] [--batch 16] [--rounds 10]

Masked words with next sentences read 15 % of the tokens and the first; a classifier reads the first alone.
"""

import argparse
import time

import torch
from torch import Tensor

from cloze.model import PRESETS, Bert, first_places, preset
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss, task_logits, task_loss


def pretraining_step(model: Bert, ids: Tensor, saving: bool) -> Tensor:
    """Words and sentences, forward."""
    words = torch.arange(1, ids.numel(), 7)  # about 15 %
    words = words[words % ids.shape[1] != 0]
    needed = torch.cat([first_places(ids), words]) if saving else None
    last = model(ids, torch.zeros_like(ids), None, needed).last
    loss = masked_word_loss(masked_word_logits(model, last, words), ids.flatten()[words])
    return loss + next_sentence_loss(model, last, torch.zeros(len(ids), dtype=torch.long))[0]


def classifying_step(model: Bert, ids: Tensor, saving: bool) -> Tensor:
    """A label for each text, forward."""
    last = model(ids, torch.zeros_like(ids), None, first_places(ids) if saving else None).last
    said = task_logits(model, "sequence", last, [1] * len(ids))
    return task_loss(said, torch.zeros(len(ids), dtype=torch.long), len(ids))


def main() -> None:
    """Time both in turns and print the best of each."""
    parser = argparse.ArgumentParser(description="Steps with and without the states that nobody reads.")
    parser.add_argument("--presets", nargs="+", default=["mini", "base"], choices=PRESETS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for name in asked.presets:
        for what, heads, step in (
            ("masked words, sentences", ("mlm", "nsp"), pretraining_step),
            ("one label a text", ("sequence",), classifying_step),
        ):
            model = Bert.fresh(preset(name), heads).train()  # type: ignore[arg-type]
            ids = torch.randint(1, model.config.vocab_size, (asked.batch, asked.length))
            best = {True: float("inf"), False: float("inf")}
            for _ in range(asked.rounds):
                for saving in best:
                    start = time.perf_counter()
                    step(model, ids, saving).backward()  # type: ignore[no-untyped-call]
                    best[saving] = min(best[saving], time.perf_counter() - start)
            print(
                f"{name:<6} {what:<24} all {best[False]:.3f} s, needed {best[True]:.3f} s, "
                f"{best[False] / best[True]:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
