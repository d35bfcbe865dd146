import sys
from pathlib import Path

import pytest

from cloze.errors import ConfigError
from cloze.train.loop import TensorBoardLogger
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PretrainSettings


def test_a_run_writes_its_curves(data: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = PretrainSettings(
        preset="tiny", steps=20, batch_size=4, max_length=24, evaluate_every=10, tensorboard=True
    )
    run = pretrain(data, tmp_path / "run", settings=settings)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert {"training/loss", "training/mlm_loss", "held out/mlm_loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("held out/mlm_loss")] == [10, 20]


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'cloze-bert\[tensorboard\]'"):
        TensorBoardLogger(tmp_path)
