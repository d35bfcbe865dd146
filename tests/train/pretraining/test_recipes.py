from dataclasses import replace
from pathlib import Path

import pytest

from cloze.checkpoint import ModelFolder, save_folder
from cloze.errors import ConfigError
from cloze.progress import Silent
from cloze.text import Tokenizer
from cloze.train.pretraining.pretrain import start_model
from cloze.train.settings import PretrainSettings, read_recipe, recipe_names


def test_the_published_ways_are_there() -> None:
    assert {"albert", "bert", "bert-wwm", "ernie", "macbert", "roberta", "spanbert"} <= set(recipe_names())


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != "ernie"])
def test_every_recipe_is_a_setting(name: str) -> None:
    PretrainSettings(**read_recipe(name))


def test_bert_is_the_default() -> None:
    """The defaults are the recipe of BERT, except for Adam's epsilon, in which Google's code differs from PyTorch."""
    assert PretrainSettings(**read_recipe("bert")) == PretrainSettings(epsilon=1e-6)


def test_albert_hides_up_to_three_words_with_chances_as_one_over_n() -> None:
    masks = PretrainSettings(**read_recipe("albert")).masks()
    weights = [1 / 1, 1 / 2, 1 / 3]
    assert masks.run_shares == pytest.approx([*(weight / sum(weights) for weight in weights), 0.0], abs=1e-5)
    with pytest.raises(
        ConfigError, match="ngrams only apply to the maskings ngram and correction, but masking is token"
    ):
        PretrainSettings(ngrams=(1.0, 0.0, 0.0, 0.0))


def test_ernie_asks_for_its_dictionary() -> None:
    with pytest.raises(ConfigError, match=r"entity masking needs a dictionary; .* --entities"):
        PretrainSettings(**read_recipe("ernie"))


def test_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'albret'.*albert.*--config"):
        read_recipe("albret")


def test_a_model_goes_on_by_the_recipe_that_made_it(data: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    settings = PretrainSettings(preset="tiny", max_length=16, **read_recipe("albert"))
    bert, tokenizer = start_model(tokenizer, settings, None, Silent())
    save_folder(ModelFolder(bert, tokenizer), tmp_path / "albert")
    again, _ = start_model(tokenizer, settings, tmp_path / "albert", Silent())
    assert (again.config.shared_layers, again.config.embedding_size) == (True, 128)
    for change in ({"embedding_size": 64}, {"embedding_size": 64, "shared_layers": False}):
        with pytest.raises(
            ConfigError, match=r"already has its shape \(embedding_size is 128\); embedding_size only applies to new"
        ):
            start_model(tokenizer, replace(settings, **change), tmp_path / "albert", Silent())  # type: ignore[arg-type]


def test_a_model_does_not_take_the_shape_of_another_recipe(base: Path, data: Path) -> None:
    settings = PretrainSettings(max_length=16, **read_recipe("albert"))
    with pytest.raises(ConfigError, match="already has its shape"):
        start_model(Tokenizer.from_folder(data), settings, base, Silent())
