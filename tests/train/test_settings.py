from pathlib import Path
from typing import Any

import pytest

from cloze.errors import ConfigError
from cloze.progress import Silent
from cloze.train.distillation.settings import AdaptSettings
from cloze.train.finetuning.defaults import resolve_settings
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from cloze.train.settings import LoopSettings, PretrainSettings

WRONG = [
    ({"steps": 0}, "steps is 0; expected at least 1"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a learning rate such as 1e-4"),
    ({"learning_rate": float("nan")}, "learning_rate is nan; expected a "),
    ({"warmup": 1.0}, "warmup is 1.0; expected a fraction of the steps"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a small number"),
    ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
    ({"seed": 2**32}, "seed is 4294967296; expected a whole number of at least 0"),
    ({"save_every": 0}, "save_every is 0; expected at least 1"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_loop_refuses(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoopSettings(**{"steps": 10, "learning_rate": 1e-4} | changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        PretrainSettings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "least"), [("epochs", 1), ("batch_size", 1), ("max_length", 3), ("stride", 1), ("longest_answer", 1)]
)
def test_finetuning_refuses_too_little(name: str, least: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {least - 1}; expected at least {least}"):
        FinetuneSettings(**{name: least - 1})  # type: ignore[arg-type]


def test_what_would_be_passed_over_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"teacher_decay is 0\.9, but there is no teacher; set mean_teacher too"):
        FinetuneSettings(teacher_decay=0.9)
    with pytest.raises(ConfigError, match="masking is entity; expected token, word, ngram or span"):
        AdaptSettings(masking="entity")


def test_pretraining_refuses_an_empty_batch() -> None:
    with pytest.raises(ConfigError, match="batch_size is 0; expected at least 1"):
        PretrainSettings(batch_size=0)


@pytest.mark.parametrize(
    ("way", "rate"),
    [
        ({}, 5e-5),
        ({"adapter": "lora"}, 1e-3),
        ({"frozen": "mix"}, 1e-3),
        ({"adapter": "lora", "learning_rate": 2e-5}, 2e-5),
    ],
)
def test_new_parts_alone_learn_faster_unless_a_rate_is_given(way: dict[str, Any], rate: float) -> None:
    assert resolve_settings(FinetuneSettings(**way), 768, 5000, Silent()).loop(1).learning_rate == rate


def test_steps_of_finetuning_are_whole_epochs() -> None:
    loop = ResolvedSettings(epochs=3).loop(steps_per_epoch=7)
    assert (loop.steps, loop.evaluate_every) == (21, 7)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"entities": Path("a.txt")},
            "entities only applies to the masking entity, but masking is token; leave out one of them",
        ),
        (
            {"similar": Path("a.txt")},
            "similar only applies to the masking correction, but masking is token; leave out one of them",
        ),
        ({"long_share": 0.2}, "long_share is 0.2, but there is no second phase; give a long_length"),
    ],
)
def test_settings_that_would_go_unheard(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{complaint}$"):
        PretrainSettings(**given)
