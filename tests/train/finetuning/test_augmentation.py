"""Augmentation: words are replaced by other words that a model predicts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.checkpoint import ModelFolder
from cloze.errors import RequestError
from cloze.model import Bert
from cloze.predict import Model
from cloze.text import SPECIAL, Tokenizer
from cloze.train.finetuning.augmentation import ContextualAugmenter, nearest_words, whole_word_pieces
from tests.model.made import SMALL

WORDS = ["river", "mill", "winter", "garden", "cold", "old", "house", "time", "the", "and", "go", "says", "a", "year"]
PIECES = [*SPECIAL, "[unused1]", ".", ",", "##ing", "##s", *WORDS, "北", "京"]
TEXTS = ["The river, the mill and the old house.", "winter", "going. cold garden", "", "...", "北京"]


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True, max_length=16)
    config = replace(SMALL, vocab_size=len(PIECES), initial_deviation=0.3)
    return Model(ModelFolder(Bert.fresh(config, ["mlm"], seed=3), tokenizer))


def generators(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, row]) for row in range(count)]


def proposed(model: Model, texts: Sequence[str], seed: int = 0) -> list[str | None]:
    found = ContextualAugmenter(model).replace([(text,) for text in texts], generators(len(texts), seed))
    return [None if row is None else row[0] for row in found]


def test_same_seed_gives_same_texts_in_any_batch(model: Model) -> None:
    assert proposed(model, TEXTS) == proposed(model, TEXTS)
    assert len({tuple(proposed(model, TEXTS, seed)) for seed in range(20)}) > 10
    assert proposed(model, TEXTS[:1]) == proposed(model, TEXTS)[:1]


def test_a_tenth_of_the_words_is_replaced_by_other_words(model: Model) -> None:
    text = TEXTS[0]
    for seed in range(60):
        (augmented,) = proposed(model, [text], seed)
        assert augmented is not None
        before, after = (one.replace(",", " ,").replace(".", " .").split() for one in (text, augmented))
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        assert len(changed) == 1, "of eight words"
        ((old, new),) = changed
        assert old.lower() != new.lower(), "never the word itself"
        assert new.lower() in [*WORDS, "北", "京"]
        assert new[0].isupper() == old[0].isupper()
    long = " ".join(WORDS)
    assert len(proposed(model, [long])[0].split()) == len(WORDS)  # type: ignore[union-attr]


def test_words_of_several_pieces_are_replaced_whole(model: Model) -> None:
    augmented = {one for seed in range(80) for one in proposed(model, ["goings"], seed)}
    assert augmented <= {*WORDS, "北", "京"}
    assert len(augmented) > 3


def test_text_without_replacements_gives_none(model: Model) -> None:
    found = proposed(model, TEXTS)
    assert [text for text, augmented in zip(TEXTS, found, strict=True) if augmented is None] == ["", "..."]


def test_both_texts_of_a_pair_are_looked_at(model: Model) -> None:
    rows = [("winter", "old mill")] * 40
    found = ContextualAugmenter(model).replace(rows, generators(40))
    assert all(row is not None and row != ("winter", "old mill") for row in found)
    assert {row[0] == "winter" for row in found if row is not None} == {True, False}


def test_words_beyond_the_length_stay(model: Model) -> None:
    text = "the " * 14 + "river " * 30
    for seed in range(10):
        (augmented,) = proposed(model, [text], seed)
        assert augmented is not None
        assert augmented.split()[14:] == ["river"] * 30


def test_likelier_words_are_drawn_more_often() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True, max_length=16)
    bert = Bert.fresh(replace(SMALL, vocab_size=len(PIECES)), ["mlm"], seed=3)
    with torch.no_grad():
        bert.heads["mlm"].bias[PIECES.index("house")] = 6.0  # type: ignore[operator]
        bert.heads["mlm"].bias[PIECES.index("[SEP]")] = 99.0  # type: ignore[operator]
        bert.heads["mlm"].bias[PIECES.index("##ing")] = 99.0  # type: ignore[operator]
    likely = Model(ModelFolder(bert, tokenizer))
    found = [proposed(likely, ["cold"], seed)[0] for seed in range(50)]
    assert found.count("house") > 40
    assert all(augmented is not None and "[" not in augmented and "#" not in augmented for augmented in found)
    assert "house" not in [proposed(likely, ["house"], seed)[0] for seed in range(50)]


def test_sayable_pieces() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    assert [piece for piece, says in zip(PIECES, whole_word_pieces(tokenizer), strict=True) if says] == [
        *WORDS,
        "北",
        "京",
    ]


def test_model_without_the_head_is_refused(model: Model) -> None:
    bare = Model(ModelFolder(Bert.fresh(model.bert.config, ["nsp"]), model.tokenizer))
    with pytest.raises(RequestError, match="this model has no 'mlm' head"):
        ContextualAugmenter(bare)


def test_similar_words_have_like_vectors(model: Model) -> None:
    table = torch.zeros_like(model.bert.encoder.embeddings.token.weight)
    for number, word in enumerate(["river", "mill", "winter"]):
        table[PIECES.index(word)] = torch.eye(table.shape[1])[0] + 0.1 * number * torch.eye(table.shape[1])[1]
    table[PIECES.index("cold")] = -torch.eye(table.shape[1])[0]
    table[PIECES.index("##s")] = torch.eye(table.shape[1])[0]
    bert = Bert.fresh(model.bert.config, ["mlm"])
    bert.encoder.embeddings.token.weight = torch.nn.Parameter(table)
    found = nearest_words(Model(ModelFolder(bert, model.tokenizer)), ["river", "winter", "cold", "unknown", "##s", "."])
    assert found == {"river": ["mill", "winter"], "winter": ["mill", "river"], "cold": []}


def test_folder_is_left_as_it_was(model: Model, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.bert.state_dict().items()}
    proposed(model, TEXTS)
    nearest_words(model, WORDS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.bert.state_dict().items())
    model.save(tmp_path / "model")
