"""The file formats of word2vec, written and read by gensim and by cloze."""

from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.checkpoint.convert import convert_vectors
from cloze.checkpoint.word2vec_file import read_word2vec, write_word2vec
from cloze.errors import CheckpointError
from cloze.model import Bert, BertConfig, StaticVectors
from cloze.predict import load
from cloze.text import Tokenizer

WORDS = ["winter", "house", "##s", "fluß", "河", "stone"]
VECTORS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32) * np.float32(1e-3) ** np.arange(5)
FILES = ["vectors.txt", "vectors.vec", "vectors.bin"]


@pytest.mark.parametrize("name", FILES)
def test_gensim_reads_the_same_vectors(name: str, tmp_path: Path) -> None:
    write_word2vec(tmp_path / name, WORDS, VECTORS)
    theirs = KeyedVectors.load_word2vec_format(str(tmp_path / name), binary=name.endswith(".bin"))
    assert theirs.index_to_key == WORDS
    np.testing.assert_array_equal(theirs.vectors, VECTORS.astype(np.float32))


@pytest.mark.parametrize("name", FILES)
def test_vectors_of_gensim_are_read(name: str, tmp_path: Path) -> None:
    theirs = KeyedVectors(5)
    theirs.add_vectors(WORDS, VECTORS.astype(np.float32))
    theirs.save_word2vec_format(str(tmp_path / name), binary=name.endswith(".bin"))
    words, vectors = read_word2vec(tmp_path / name)
    assert words == theirs.index_to_key
    np.testing.assert_array_equal(vectors, theirs.vectors)
    write_word2vec(tmp_path / f"ours-{name}", words, vectors)
    if name.endswith(".bin"):
        assert (tmp_path / f"ours-{name}").read_bytes() == (tmp_path / name).read_bytes()


def test_files_of_the_original_programs_are_read(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("the 0.1 -0.2\n, 1e-3 2\n", encoding="utf-8")  # no sizes in the first line
    words, vectors = read_word2vec(tmp_path / "glove.txt")
    assert words == ["the", ","]
    np.testing.assert_array_equal(vectors, np.array([[0.1, -0.2], [1e-3, 2]], np.float32))
    numbers = np.array([1.5, 2.5], "<f4").tobytes()
    (tmp_path / "c.bin").write_bytes(b"2 2\nthe " + numbers + b"\nof " + numbers + b"\n")  # a line feed after each word
    words, vectors = read_word2vec(tmp_path / "c.bin")
    assert words == ["the", "of"]
    np.testing.assert_array_equal(vectors, np.array([[1.5, 2.5]] * 2, np.float32))


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
def test_a_file_becomes_a_folder_and_a_file_again(name: str, tmp_path: Path) -> None:
    write_word2vec(tmp_path / name, WORDS, VECTORS)
    convert_vectors(tmp_path / name, tmp_path / "folder")
    contents = load_folder(tmp_path / "folder")
    assert isinstance(contents.model, StaticVectors)
    model = load(tmp_path / "folder")
    np.testing.assert_allclose(model.embed(["winter houses"])[0], VECTORS[:3].mean(0), rtol=1e-5)
    convert_vectors(tmp_path / "folder", tmp_path / f"again-{name}")
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "expected a word and its vector, or both sizes"),
        ("a.txt", b"2 2\nthe 1 2\n", "1 words; the first line announces 2"),
        ("a.txt", b"1 2\nthe 1\n", r"a.txt:2: 1 numbers; expected 2"),
        ("a.txt", b"1 2\nthe 1 x\n", r"a.txt:2: not a number in the vector of b'the'"),
        ("a.txt", b"1 2\nthe 1 nan\n", "the vector of 'the' is not finite"),
        ("a.txt", b"2 1\nthe 1\nthe 2\n", "the word 'the' occurs twice"),
        ("a.txt", b"1 1\n\xff 1\n", "is not UTF-8"),
        ("a.txt", b"0 3\n", "0 words and vectors of size 3; expected"),
        ("a.bin", b"x y\n", "expected the number of words and the size"),
        ("a.bin", b"1000000000 300\nthe ", "1000000000 vectors of size 300 do not fit into the file"),
        ("a.bin", b"2 1\nthe \0\0\0\0of \0\0", "damaged at word 2 of 2"),
        ("a.bin", b"1 1\n" + b"x" * 2000, "damaged at word 1 of 1"),
    ],
)
def test_damaged_files_are_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_word2vec(tmp_path / name)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_word2vec(tmp_path / "none.txt")
    with pytest.raises(CheckpointError, match="the word 'a b' is empty or contains whitespace"):
        write_word2vec(tmp_path / "out.txt", ["a b"], np.zeros((1, 2), np.float32))
    assert not (tmp_path / "out.txt").exists()
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], lowercase=True)
    bert = Bert.fresh(BertConfig(vocab_size=6, hidden_size=4, layers=1, heads=1, feedforward_size=4))
    save_folder(ModelFolder(bert, tokenizer), tmp_path / "bert")
    with pytest.raises(CheckpointError, match="a model of type bert has no vector per word"):
        convert_vectors(tmp_path / "bert", tmp_path / "out.txt")
