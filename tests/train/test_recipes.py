import pytest

from cloze.errors import ConfigError
from cloze.train.recipes import read_recipe, recipe_names
from cloze.train.settings import PretrainSettings


def test_the_published_ways_are_there() -> None:
    assert recipe_names() == ["albert", "bert", "bert-wwm", "ernie", "macbert", "roberta", "spanbert"]


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != "ernie"])
def test_every_recipe_is_a_setting(name: str) -> None:
    PretrainSettings(**read_recipe(name))


def test_bert_is_the_default() -> None:
    assert PretrainSettings(**read_recipe("bert")) == PretrainSettings()


def test_ernie_asks_for_its_dictionary() -> None:
    with pytest.raises(ConfigError, match=r"entity masking needs a dictionary; .* --entities"):
        PretrainSettings(**read_recipe("ernie"))


def test_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'albret'.*albert.*--config"):
        read_recipe("albret")
