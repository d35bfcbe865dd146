from pathlib import Path

import pytest

from cloze.corpus.settings import VocabularySettings
from cloze.corpus.vocabulary import train_vocabulary
from cloze.errors import ConfigError, DataError
from cloze.text import Tokenizer

SETTINGS = VocabularySettings(size=200)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_text_gives_same_bytes(text: Path, tmp_path: Path) -> None:
    first = train_vocabulary([text], tmp_path / "first", settings=SETTINGS)
    again = train_vocabulary([text], tmp_path / "again", settings=SETTINGS)
    assert contents(first) == contents(again)
    assert contents(first).keys() == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}


def test_words_of_a_file_get_entries(text: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("zebrafish\n\nQuagga\n", encoding="utf-8")
    without = Tokenizer.from_folder(train_vocabulary([text], tmp_path / "without", settings=SETTINGS))
    folder = train_vocabulary([text], tmp_path / "with", words=words, settings=SETTINGS)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer("zebrafish quagga", special=False).tokens == ["zebrafish", "quagga"]
    assert without.id("zebrafish") is None


def test_case_is_kept_where_asked(text: Path, tmp_path: Path) -> None:
    settings = VocabularySettings(size=200, cased=True)
    tokenizer = Tokenizer.from_folder(train_vocabulary([text], tmp_path / "cased", settings=settings))
    assert not tokenizer.lowercase
    assert tokenizer.id("T") is not None


def test_text_without_words_teaches_nothing(tmp_path: Path) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="no words in the text"):
        train_vocabulary([blank], tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out").exists()


def test_only_a_vocabulary_is_replaced(text: Path, tmp_path: Path) -> None:
    folder = train_vocabulary([text], tmp_path / "out", settings=SETTINGS)
    train_vocabulary([text], folder, settings=VocabularySettings(size=120))
    assert Tokenizer.from_folder(folder).size <= 120
    # A model has a vocabulary too, and is worth more.
    (folder / "model.safetensors").write_bytes(b"weights")
    for place in (folder, text):
        with pytest.raises(DataError, match="exists and is not a vocabulary's folder; choose another --out"):
            train_vocabulary([text], place, settings=SETTINGS)
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_size_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="size is 9; a vocabulary needs at least 10 entries"):
        VocabularySettings(size=9)
