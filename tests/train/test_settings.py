from typing import Any

import pytest

from cloze.errors import ConfigError
from cloze.train.settings import FinetuneSettings, LoopSettings, PretrainSettings

WRONG = [
    ({"steps": 0}, "steps is 0; at least 1 was expected"),
    ({"rate": 0.0}, "rate is 0.0; a learning rate such as 1e-4 was expected"),
    ({"rate": float("nan")}, "rate is nan; a learning rate"),
    ({"warmup": 1.0}, "warmup is 1.0; a share of the steps"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1; a small number"),
    ({"seed": -1}, "seed is -1; a whole number from 0"),
    ({"seed": 2**32}, "seed is 4294967296; a whole number from 0"),
    ({"save_every": 0}, "save_every and log_every must be at least 1"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_loop_refuses(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoopSettings(**{"steps": 10, "rate": 1e-4} | changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        PretrainSettings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["epochs", "batch", "length"])
def test_finetuning_refuses_nothing_at_all(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; at least 1 was expected"):
        FinetuneSettings(**{name: 0})  # type: ignore[arg-type]


def test_pretraining_refuses_an_empty_batch() -> None:
    with pytest.raises(ConfigError, match="batch is 0; at least 1 was expected"):
        PretrainSettings(batch=0)


@pytest.mark.parametrize(
    ("way", "rate"),
    [({}, 5e-5), ({"adapter": "lora"}, 1e-3), ({"frozen": "mix"}, 1e-3), ({"adapter": "lora", "rate": 2e-5}, 2e-5)],
)
def test_new_parts_alone_learn_faster_unless_a_rate_is_given(way: dict[str, Any], rate: float) -> None:
    assert FinetuneSettings(**way).loop(1).rate == rate


def test_steps_of_finetuning_are_whole_epochs() -> None:
    loop = FinetuneSettings(epochs=3).loop(steps_an_epoch=7)
    assert (loop.steps, loop.evaluate_every) == (21, 7)
