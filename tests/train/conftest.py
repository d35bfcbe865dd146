from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cloze.checkpoint import ModelFolder, save_folder
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import PrepareSettings
from cloze.text import Tokenizer, learn_pieces
from tests.corpus.texts import as_text, make_documents
from tests.train.made import make_bert


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because with such small models additional threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of sixty documents, a fifth of them held out."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = make_documents(60)
    (folder / "text.txt").write_text(as_text(documents), encoding="utf-8")
    pieces = learn_pieces([sentence for document in documents for sentence in document], 150)
    Tokenizer.from_vocabulary(pieces, lowercase=True).save(folder / "vocabulary")
    return prepare([folder / "text.txt"], folder / "vocabulary", folder / "data", settings=PrepareSettings(0.2))


@pytest.fixture(scope="session")
def base(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny untrained model with both pre-training heads."""
    folder = tmp_path_factory.mktemp("base") / "model"
    save_folder(ModelFolder(make_bert(data), Tokenizer.from_folder(data)), folder)
    return folder
