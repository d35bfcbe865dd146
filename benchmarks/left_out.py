"""Measure the time saved by skipping unneeded work: last-layer states that no head uses, and padding.

    python benchmarks/left_out.py states [--presets mini base] [--length 128] [--batch 16] [--rounds 10]
    python benchmarks/left_out.py padding [--texts 8 16 64 400] [--rounds 10]

states   Training steps that compute all states of the last layer ("all") or only those that the heads use ("needed").
         Pre-training (MLM and NSP) uses 15 % of the tokens and the first; a classifier uses only the first.
padding  Prediction with MiniLM's shape on texts of mixed length: padded to the longest, one pass per length, or packed
         into one row without padding. The weights are random, since only time is measured.

Variants alternate; the best round of each is printed.
"""

import argparse
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from cloze.model import PRESETS, Bert, BertConfig, first_positions, preset
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss, task_logits, task_loss
from cloze.predict.quantization.precision import use_products

MINILM = BertConfig(vocab_size=30522, hidden_size=384, layers=6, heads=12, feedforward_size=1536, positions=512)


def pretraining_step(model: Bert, ids: Tensor, saving: bool) -> Tensor:
    """Run the forward pass of pre-training with masked words and next-sentence prediction."""
    words = torch.arange(1, ids.numel(), 7)  # about 15 % of the tokens
    words = words[words % ids.shape[1] != 0]
    needed = torch.cat([first_positions(ids), words]) if saving else None
    last = model(ids, torch.zeros_like(ids), None, needed).last
    loss = masked_word_loss(masked_word_logits(model, last, words), ids.flatten()[words])
    return loss + next_sentence_loss(model, last, torch.zeros(len(ids), dtype=torch.long))[0]


def classifying_step(model: Bert, ids: Tensor, saving: bool) -> Tensor:
    """Run the forward pass of a text classifier."""
    last = model(ids, torch.zeros_like(ids), None, first_positions(ids) if saving else None).last
    logits = task_logits(model, "sequence", last, [1] * len(ids))
    return task_loss(logits, torch.zeros(len(ids), dtype=torch.long), len(ids))


def best_of(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each variant; the variants alternate."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure_states(arguments: argparse.Namespace) -> None:
    """Print the times of both training objectives for each preset."""
    for name in arguments.presets:
        for what, heads, step in (
            ("masked words, sentences", ("mlm", "nsp"), pretraining_step),
            ("one label per text", ("sequence",), classifying_step),
        ):
            model = Bert.fresh(preset(name), heads).train()  # type: ignore[arg-type]
            ids = torch.randint(1, model.config.vocab_size, (arguments.batch, arguments.length))
            variants = {kind: _stepping(step, model, ids, kind == "read") for kind in ("all", "read")}
            best = best_of(variants, arguments.rounds)
            ratio = best["all"] / best["read"]
            print(
                f"{name:<6} {what:<24} all {best['all']:.3f} s, needed {best['read']:.3f} s, {ratio:.2f} x",
                flush=True,
            )


def _stepping(
    step: Callable[[Bert, Tensor, bool], Tensor], model: Bert, ids: Tensor, saving: bool
) -> Callable[[], object]:
    return lambda: step(model, ids, saving).backward()  # type: ignore[no-untyped-call]


def measure_padding(arguments: argparse.Namespace) -> None:
    """Print prediction times on texts of 5 to 60 tokens, most of them short."""
    source = np.random.default_rng(1)
    for precision in ("fp32", "int8"):
        bert = Bert.fresh(MINILM).eval()
        use_products(bert, precision, {})
        for count in arguments.texts:
            lengths = np.sort(np.clip(source.gamma(3, 5, count).astype(int), 5, 60))
            best = best_of(_predicting(bert, lengths), arguments.rounds)
            times = [f"{name} {1e3 * one:7.1f} ms ({one / best['packed']:.2f} x)" for name, one in best.items()]
            print(f"{precision} {count:>4} texts: " + ", ".join(times), flush=True)


def _predicting(bert: Bert, lengths: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> dict[str, Callable[[], object]]:
    mask = torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
    ids = torch.randint(1, bert.config.vocab_size, mask.shape)
    zeros = torch.zeros_like(ids)
    alike = [(torch.from_numpy(np.flatnonzero(lengths == length)), length) for length in np.unique(lengths)]

    @torch.no_grad()
    def padded() -> None:
        bert(ids, zeros, mask)

    @torch.inference_mode()
    def by_length() -> None:
        for rows, length in alike:
            bert(ids[rows, :length], zeros[rows, :length])

    @torch.inference_mode()
    def packed() -> None:
        bert(ids, zeros, mask)

    return {"padded": padded, "by length": by_length, "packed": packed}


def main() -> None:
    """Parse the arguments and run one of the two benchmarks."""
    parser = argparse.ArgumentParser(description="Measure the time saved by skipping unneeded work.")
    parser.add_argument("what", choices=["states", "padding"], nargs="?", default="states")
    parser.add_argument("--presets", nargs="+", default=["mini", "base"], choices=PRESETS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--texts", type=int, nargs="+", default=[8, 16, 64, 400])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    (measure_states if arguments.what == "states" else measure_padding)(arguments)


if __name__ == "__main__":
    main()
