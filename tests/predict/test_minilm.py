"""all-MiniLM-L6-v2 compared with ``sentence-transformers``: 200 texts of every kind, in any batch."""

import random
from pathlib import Path

import numpy
import pytest
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from cloze.predict import Model, load
from tests.model.made import assert_close
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

CODE = "def f(x):\n\treturn {k: v**2 for k, v in x.items() if v != -1}  # O(n)"


def texts() -> list[str]:
    """Return two hundred texts: unusual ones, ones beyond 256 tokens, excerpts of real text, and random Unicode."""
    odd = [
        *("", " ", "\t\n \u3000", "a", ".", "?!" * 40, "the " * 60, "é è ê ü ß ñ", "ALL CAPITALS", "snake_case_name"),
        *("猫坐在垫子上。", "私は猫が好きです", "나는 고양이를 좋아한다", "кошка сидит", "القط على الحصيرة"),
        *("नमस्ते दुनिया", "👍🏽🎉", "family: 👨‍👩‍👧‍👦", "1,234.56 + 7e-9 = ?", "https://example.org/a?b=c&d=e#f", CODE),
        *("don't", "state-of-the-art", "x" * 99, "y" * 150, "word\u00a0word", "ﬁne ﬂow", "İstanbul", "ⅷ ½ ㎏"),
        *("\x00\ufffd\u200b", "again", "again", "[square] {curly} <angle>"),
    ]
    long = [ENGLISH * 3, CHINESE * 3, "very " * 400]
    source = random.Random(1)
    words = (ENGLISH + " " + MIXED).split()
    cuts = [" ".join(words[start : start + source.randint(1, 40)]) for start in range(0, len(words), 3)]
    return [*odd, *long, *cuts, *(text[:80] for text in strings(200, seed=2))][:200]


@pytest.fixture(scope="module")
def model(minilm_folder: Path) -> Model:
    return load(minilm_folder)


@pytest.fixture(scope="module")
def expected(minilm_folder: Path) -> NDArray[numpy.float32]:
    vectors: NDArray[numpy.float32] = SentenceTransformer(str(minilm_folder), device="cpu").encode(texts())
    return vectors


def test_the_texts_have_the_expected_kinds(model: Model) -> None:
    encodings = model.tokenizer.encode_batch(texts())
    assert len(encodings) == 200
    assert sum(encoding.dropped > 0 for encoding in encodings) == 3
    assert sum(len(encoding.ids) == 2 for encoding in encodings) >= 3  # only [CLS] and [SEP]


@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_embeddings(size: int, model: Model, expected: NDArray[numpy.float32]) -> None:
    parts = [model.embed(texts()[start : start + size]) for start in range(0, 200, size)]
    assert_close(numpy.concatenate(parts), expected)


def test_saved_again(model: Model, expected: NDArray[numpy.float32], tmp_path: Path) -> None:
    model.save(tmp_path / "copy")
    theirs = SentenceTransformer(str(tmp_path / "copy"), device="cpu")
    assert theirs.max_seq_length == model.tokenizer.max_length == 256
    assert_close(theirs.encode(texts()[:60]), expected[:60])
