from pathlib import Path

import pytest

from cloze.text import Tokenizer, learn_pieces
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(minilm_folder)


def _learn(lowercase: bool) -> Tokenizer:
    texts = [ENGLISH, CHINESE, MIXED, *strings(400, seed=5)]
    pieces = learn_pieces(texts, 4000, lowercase=lowercase, minimum_frequency=1)
    return Tokenizer.from_vocabulary(pieces, lowercase=lowercase)


@pytest.fixture(scope="session")
def uncased() -> Tokenizer:
    """A small vocabulary that covers most of the generated strings."""
    return _learn(lowercase=True)


@pytest.fixture(scope="session")
def cased() -> Tokenizer:
    return _learn(lowercase=False)
