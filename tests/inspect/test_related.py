"""Related words: identical, related by vectors, or related by a list."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import cloze
from cloze.errors import DataError
from cloze.inspect.relations import Relatedness, read_related
from cloze.predict import load
from cloze.text import Encoding, Tokenizer
from tests.model.made import vocabulary


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(vocabulary(60), lowercase=True)


def test_vectors_that_are_close_are_related(tokenizer: Tokenizer) -> None:
    vectors = np.random.default_rng(0).standard_normal((60, 32)).astype(np.float32)
    cat, dog = tokenizer.id("cat"), tokenizer.id("dog")
    assert cat is not None
    assert dog is not None
    vectors[dog] = vectors[cat] + 0.1
    encoding = tokenizer("the cat sat on a mat", "a dog ran")
    found = Relatedness(vectors, [encoding], 0.02).matrix(encoding)
    pairs = {(encoding.tokens[i], encoding.tokens[j]) for i, j in zip(*np.nonzero(found), strict=True) if i < j}
    assert pairs == {("cat", "dog"), ("a", "a"), ("[SEP]", "[SEP]")}


def test_words_of_a_list_are_related_with_all_their_pieces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "related.txt"
    path.write_text("Cats dog\n\ndog mat\n", encoding="utf-8")
    vectors = np.eye(60, dtype=np.float32)
    texts = ("the cats ran", "a dog sat on a mat")
    encoding = tokenizer(*texts)
    measure = Relatedness(vectors, [encoding], 0.001, read_related(path))
    found = measure.matrix(encoding, tokenizer.words(encoding, *texts))
    tokens = encoding.tokens
    assert {tokens[place] for place in np.flatnonzero(found[tokens.index("dog")])} == {"cat", "##s", "dog", "mat"}
    assert {tokens[place] for place in np.flatnonzero(found[tokens.index("mat")])} == {"dog", "mat"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("store shop\nalone\n", "related.txt:2: 'alone' is one word"), ("\n \n", "contains no words"), ("", "is empty")],
)
def test_lists_that_name_nothing(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "related.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_related(path)


def test_related_words_of_a_published_model(minilm_folder: Path) -> None:
    """Inflected and similar words are related; frequent words rarely are."""
    model = load(minilm_folder)
    path = Path(cloze.__file__).parent / "demo" / "data" / "authors_dev.tsv"
    sentences = [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines()[1:81]]
    text = "the king and the kings of france saw a french soldier with soldiers in september and october"
    encodings = model.tokenizer.encode_batch([text, *sentences])
    measure = Relatedness(model.bert.encoder.embeddings.token.weight.detach().numpy(), encodings, 0.001)

    def related(encoding: Encoding) -> set[frozenset[str]]:
        found = np.argwhere(np.triu(measure.matrix(encoding), k=1))
        return {frozenset((encoding.tokens[i], encoding.tokens[j])) for i, j in found}

    assert related(encodings[0]) >= {
        frozenset(pair.split()) for pair in ("king kings", "france french", "soldier soldiers", "september october")
    }
    pairs = set[frozenset[str]]().union(*(related(encoding) for encoding in encodings))
    counts = Counter(token for encoding in encodings for token in encoding.tokens)
    frequent = {token for token, _ in counts.most_common(30)}
    different = [pair for pair in pairs if len(pair) == 2]
    assert np.mean([pair <= frequent for pair in different]) < 0.2
