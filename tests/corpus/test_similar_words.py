from pathlib import Path

import numpy as np
import pytest

from cloze.corpus import word_tables as module
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import learn_similar_table, read_similar_table
from cloze.errors import DataError
from cloze.text import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
# Words of four topics that do not mix; the second half of each topic has an ending, and so two pieces.
TOPICS, WORDS = 4, 12
PIECES = [*SPECIAL, *(f"t{topic}w{word}" for topic in range(TOPICS) for word in range(WORDS)), "##x", "##y"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
ENDING = PIECES.index("##x")


def word_of(topic: int, word: int) -> tuple[int, ...]:
    piece = len(SPECIAL) + topic * WORDS + word
    return (piece,) if word < WORDS // 2 else (piece, ENDING)


def topic_of(word: tuple[int, ...]) -> int:
    return (word[0] - len(SPECIAL)) // WORDS


def make_text(sentences: int, seed: int = 0) -> Corpus:
    generator = np.random.default_rng(seed)
    documents, starts = [], []
    for topic in generator.integers(TOPICS, size=sentences).tolist():
        # Words occur among words of their topic, mostly next to the word with the next number.
        place = generator.integers(WORDS, size=12)
        words = [word_of(topic, int(number)) for number in place]
        documents.append([[piece for word in words for piece in word]])
        starts += [number == 0 for word in words for number in range(len(word))]
    return Corpus.from_documents(documents, starts)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_text(3000)


def test_words_of_the_same_company_are_similar(corpus: Corpus) -> None:
    table = learn_similar_table(corpus, TOKENIZER, seed=0)
    assert len(table) == TOPICS * WORDS
    for word, others in table.items():
        assert others
        assert word not in others
        assert {topic_of(other) for other in others} == {topic_of(word)}
        assert {len(other) for other in others} == {len(word)}


def test_table_is_the_same_again(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 20_000)
    monkeypatch.setattr(module, "_BLOCK", 500)
    first, again = (learn_similar_table(corpus, TOKENIZER, seed=0) for _ in range(2))
    assert first == again
    assert list(first) == list(again)
    tokens = [module._sample(corpus, np.random.default_rng(seed))[0] for seed in (0, 0, 1)]
    assert len(tokens[0]) == 20_000  # only part of the text is used
    assert (tokens[0] == tokens[1]).all()
    assert (tokens[0] != tokens[2]).any()


def test_neither_rare_nor_special_words_are_learned() -> None:
    text = make_text(300)
    tokens = np.asarray(text.read(0, text.token_count))
    # Make one word of the first topic out-of-vocabulary.
    tokens = np.where(tokens == word_of(0, 1)[0], TOKENIZER.unknown_id, tokens).tolist()
    rare = [word_of(0, 0)[0], ENDING, ENDING] * 5
    starts = [*text.word_starts(0, text.token_count).tolist(), *[True, False, False] * 5]
    table = learn_similar_table(Corpus.from_documents([[tokens, rare]], starts), TOKENIZER, seed=0)
    words = {*table, *(other for others in table.values() for other in others)}
    assert {len(word) for word in words} == {1, 2}
    assert not {piece for word in words for piece in word} & TOKENIZER.special_ids


def test_too_little_text_to_learn_from_is_told() -> None:
    for corpus in (Corpus.from_documents([]), make_text(1)):
        with pytest.raises(
            DataError, match=r"has 0 words that occur 20 times, .* use more text, or give a file with --sim"
        ):
            learn_similar_table(corpus, TOKENIZER, seed=0)


def test_text_without_any_order_teaches_nothing() -> None:
    words = np.random.default_rng(0).integers(len(SPECIAL), ENDING, (300, 40)).tolist()
    with pytest.raises(
        DataError, match=r"none of the 48 frequent words .* occurs in the same contexts as another; use more te"
    ):
        learn_similar_table(Corpus.from_documents([words]), TOKENIZER, seed=0)


def test_similar_words_are_read_as_ids(tmp_path: Path) -> None:
    path = tmp_path / "similar.tsv"
    path.write_text("t0w0\tt0w1 t0w2x t0w2 t0w0 nothing\n\nT0w0\tt0w3\nt1w1x\tt1w2y\nnothing\tt0w1\n", encoding="utf-8")
    first, second, third, fourth = (TOKENIZER.id(f"t0w{number}") for number in range(4))
    assert first is not None
    one, two, other = TOKENIZER.id("t1w1"), TOKENIZER.id("t1w2"), PIECES.index("##y")
    assert read_similar_table(path, TOKENIZER) == {
        (first,): ((second,), (third,), (fourth,)),
        (one, ENDING): ((two, other),),
    }


@pytest.mark.parametrize("line", ["lonely", "\tword", "word\t", "word \t \t"])
def test_line_without_similar_words_is_told(line: str, tmp_path: Path) -> None:
    path = tmp_path / "similar.tsv"
    path.write_text(f"t0w0\tt0w1\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"similar\.tsv:2: '.*'; expected a word, a tab, and words separated by spaces"):
        read_similar_table(path, TOKENIZER)


def test_file_without_words_of_equal_size_is_told(tmp_path: Path) -> None:
    path = tmp_path / "similar.tsv"
    path.write_text("t0w0\tt0w1x\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"similar\.tsv: none of its 1 words has a similar word .*; list similar words of equal length"
    ):
        read_similar_table(path, TOKENIZER)
