import numpy as np
import pytest

from cloze.corpus.sampling import EpochPlan, Sequences, assemble
from cloze.corpus.shards import Corpus
from tests.corpus.made_corpora import FIRST_ENDING, FIRST_WORD, made_tokenizer

TOKENIZER = made_tokenizer()
PAD, CLS, SEP = TOKENIZER.pad_id, TOKENIZER.cls_id, TOKENIZER.sep_id
# Eight words; the second, fifth and last have two or more pieces.
A, END = FIRST_WORD, FIRST_ENDING
TOKENS = [A, A + 1, END, A + 2, A + 3, A + 4, END + 1, END + 2, A + 5, A + 6, A + 7, END + 3]
STARTS = [token < END for token in TOKENS]
CORPUS = Corpus.from_documents([[TOKENS[:5], TOKENS[5:8]], [TOKENS[8:]]], STARTS)
# The first example has two chunks, the second one chunk, the third is cut inside words.
PLAN = EpochPlan(
    chunks=np.array([[0, 3, 0], [5, 8, 1], [8, 12, 0], [6, 7, 0], [2, 4, 1], [11, 12, 1]]),
    rows=np.array([0, 2, 3, 6]),
    labels=np.zeros(3, np.int64),
    tossed=np.ones(3, bool),
)


def read(*examples: int, words: bool = True) -> Sequences:
    return assemble(CORPUS, TOKENIZER, PLAN, np.array(examples), width=9, words=words)


def test_chunks_are_followed_by_separators() -> None:
    sequences = read(1, 0)
    assert sequences.ids.tolist() == [
        [CLS, *TOKENS[8:12], SEP, PAD, PAD, PAD],
        [CLS, *TOKENS[0:3], SEP, *TOKENS[5:8], SEP],
    ]
    assert sequences.segments.tolist() == [[0] * 9, [0, 0, 0, 0, 0, 1, 1, 1, 1]]
    assert sequences.lengths.tolist() == [6, 9]
    assert sequences.free.tolist() == [[id_ >= FIRST_WORD for id_ in row] for row in sequences.ids.tolist()]


@pytest.mark.parametrize("example", [0, 1])
def test_word_starts_equal_those_of_the_corpus(example: int) -> None:
    sequences = read(example)
    assert sequences.starts[0].tolist() == [token < END for token in sequences.ids[0].tolist()]
    assert read(example, words=False).starts.all()


def test_rest_of_a_cut_word_is_a_word() -> None:
    sequences = read(2)
    assert sequences.ids[0].tolist() == [CLS, END + 1, SEP, END, A + 2, SEP, END + 3, SEP, PAD]
    assert sequences.starts.all()


def test_lengths_count_special_tokens() -> None:
    assert PLAN.lengths.tolist() == [9, 6, 8]
    assert PLAN.count == 3
    assert PLAN.chunks_of(np.array([0]))[0].tolist() == [[0, 3, 0], [5, 8, 1]]
