from pathlib import Path

import pytest

from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.text import Tokenizer, learn_pieces
from tests.corpus.texts import as_text, make_documents


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = [sentence for document in make_documents(40, seed=1) for sentence in document]
    return Tokenizer.from_vocabulary(learn_pieces(texts, 120), lowercase=True)


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(as_text(make_documents(200)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def prepared(text: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred documents, a fifth of them held out; read-only."""
    return prepare([text], vocabulary, tmp_path_factory.mktemp("data") / "data", settings=PrepareSettings(0.2))
