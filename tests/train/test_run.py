from pathlib import Path

import pytest

from cloze.errors import ConfigError
from cloze.train.run import Run


def test_an_evaluation_that_is_owed_is_not_counted_twice(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})
    run.log(4, loss=2.0, seconds=1.0)
    run.log(4, dev_accuracy=0.5)
    run.log(5, loss=1.0, seconds=2.0)
    run.rewind(4)
    assert run.metrics() == [{"step": 4, "loss": 2.0, "seconds": 1.0}, {"step": 4, "dev_accuracy": 0.5}]
    run.rewind(4, owed=True)
    assert run.metrics() == [{"step": 4, "loss": 2.0, "seconds": 1.0}]


def test_of_a_changed_corpus_only_what_differs_is_told(tmp_path: Path) -> None:
    texts = [[f"{number}.txt", "0123456789abcdef" * 4] for number in range(300)]
    recorded = {"steps": 3, "data": {"texts": texts, "seed": 0, "held_out": 0.01}}
    Run.open(tmp_path / "run", recorded)
    Run.open(tmp_path / "run", recorded)
    with pytest.raises(ConfigError) as caught:
        Run.open(tmp_path / "run", {"steps": 4, "data": {"texts": texts, "seed": 7, "held_out": 0.01}})
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: this run was started otherwise: data: seed was 0 and is now 7; steps was 3 and is now 4; "
        "choose another --out, or start over with --fresh"
    )
    with pytest.raises(ConfigError, match=r"data: texts was \[\['0.txt', .*\.\.\. and is now \[\]; choose") as caught:
        Run.open(tmp_path / "run", {"steps": 3, "data": {"texts": [], "seed": 0, "held_out": 0.01}})
    assert len(str(caught.value)) < 400
