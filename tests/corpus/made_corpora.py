"""Synthetic corpora of token ids, for tests of spans, words and shares that need no real text."""

import numpy as np

from cloze.corpus.shards import Corpus
from cloze.text import Tokenizer

SPECIAL = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]"]
WORDS, ENDINGS = 600, 300
FIRST_WORD, FIRST_ENDING = len(SPECIAL), len(SPECIAL) + WORDS


def make_corpus(document_sizes: list[int], sentence_size: tuple[int, int], seed: int = 0) -> Corpus:
    """Return a corpus in which each token id is its own position, so that a segment shows its origin."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(sentence_size[0], sentence_size[1] + 1, sum(document_sizes))
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    documents = np.concatenate([[0], np.cumsum(document_sizes)]).astype(np.int64)
    starts = np.packbits(np.ones(sentences[-1], bool), bitorder="little")
    return Corpus(np.arange(sentences[-1]), sentences, documents, starts)


def made_tokenizer() -> Tokenizer:
    """Return a tokenizer with words, word endings and unused entries."""
    pieces = SPECIAL + [f"w{number}" for number in range(WORDS)] + [f"##e{number}" for number in range(ENDINGS)]
    return Tokenizer.from_vocabulary(pieces, lowercase=True)


def make_word_corpus(documents: int, *, ends: float = 0.25, seed: int = 0) -> Corpus:
    """Return documents of about 500 tokens with a share of endings: words of one, two and more pieces."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(5, 45, documents * 20)
    sentences = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    starts = generator.random(sentences[-1]) >= ends
    starts[sentences[:-1]] = True
    draw = generator.random(len(starts)) ** 2
    words, endings = FIRST_WORD + draw * WORDS, FIRST_ENDING + draw * ENDINGS
    tokens = np.where(starts, words, endings).astype(np.int32)
    bits = np.packbits(starts, bitorder="little")
    return Corpus(tokens, sentences, np.arange(0, documents * 20 + 1, 20), bits)
