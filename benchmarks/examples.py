"""Measure the cost of creating training examples on the fly: planning an epoch, and one batch per masking strategy.

    python benchmarks/examples.py [--tokens 30000000] [--documents 8000]

The corpus consists of random ids, with 24 tokens per sentence and 1.25 pieces per word on average; nothing is read from
disk. A training step takes at least a few tenths of a second on a CPU, so the last column gives the time per batch as a
share of one second.
"""

import argparse
import time
from typing import get_args

import numpy as np

from cloze.corpus.batches import PretrainingBatches
from cloze.corpus.settings import ExampleSettings, Masking, MaskSettings, Objective
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.text import Tokenizer

BATCH, LENGTH, STEPS = 32, 128, 200
WORDS, ENDINGS = 20_000, 9_995
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_tokenizer() -> Tokenizer:
    pieces = [*SPECIAL, *(f"w{number}" for number in range(WORDS)), *(f"##e{number}" for number in range(ENDINGS))]
    return Tokenizer.from_vocabulary(pieces, lowercase=True)


def make_corpus(tokens: int, documents: int) -> Corpus:
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, 45, tokens // 24)
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    cuts = np.sort(generator.choice(np.arange(1, len(lengths)), documents - 1, replace=False))
    starts = generator.random(sentences[-1]) < 0.8
    starts[sentences[:-1]] = True
    draw = generator.random(len(starts)) ** 3  # the distribution is skewed, so that a few words are frequent
    ids = np.where(starts, len(SPECIAL) + draw * WORDS, len(SPECIAL) + WORDS + draw * ENDINGS).astype(np.uint16)
    bounds = np.concatenate([[0], cuts, [len(lengths)]]).astype(np.int64)
    return Corpus(ids, sentences, bounds, np.packbits(starts, bitorder="little"))


def make_tables() -> WordTables:
    first = len(SPECIAL)
    pairs = np.random.default_rng(0).integers(first, first + 300, (20_000, 2)).tolist()
    similar: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
        (number,): tuple((number + k,) for k in range(1, 6)) for number in range(first, first + 4_000)
    }
    return WordTables(entities=tuple((one, other) for one, other in pairs), similar=similar)


def make_batches(corpus: Corpus, objective: Objective, masking: Masking) -> PretrainingBatches:
    return PretrainingBatches(
        corpus,
        make_tokenizer(),
        batch_size=BATCH,
        examples=ExampleSettings(objective, LENGTH),
        masks=MaskSettings(masking),
        seed=0,
        tables=make_tables(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=30_000_000)
    parser.add_argument("--documents", type=int, default=8_000)
    arguments = parser.parse_args()
    corpus = make_corpus(arguments.tokens, arguments.documents)
    print(f"{'planning':<12}{'examples':>10}{'seconds':>10}{'us/example':>12}")
    for objective in get_args(Objective):
        batches = make_batches(corpus, objective, "token")
        start = time.perf_counter()
        count = batches.steps_in(0) * BATCH
        seconds = time.perf_counter() - start
        print(f"{objective:<12}{count:>10,}{seconds:>10.2f}{seconds / count * 1e6:>12.2f}")
    print(f"\n{'masking':<12}{'ms/batch':>10}{'us/token':>10}{'of 1 s':>10}")
    for masking in get_args(Masking):
        batches = make_batches(corpus, "nsp", masking)
        batches.at(0)
        start = time.perf_counter()
        tokens = sum(batches.at(step).token_count for step in range(STEPS))
        seconds = time.perf_counter() - start
        print(f"{masking:<12}{seconds / STEPS * 1e3:>10.2f}{seconds / tokens * 1e6:>10.3f}{seconds / STEPS:>10.2%}")


if __name__ == "__main__":
    main()
