from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloze.corpus.batches import WordTables
from cloze.errors import ConfigError, DataError
from cloze.model import Bert
from cloze.text import Tokenizer
from cloze.train.phases import Phases, open_tables
from cloze.train.pretrain import pretrain
from cloze.train.settings import PretrainSettings

TWO = PretrainSettings(preset="tiny", steps=8, batch=8, length=16, long_length=32, long_share=0.25, evaluate_every=4)


def open_phases(data: Path, settings: PretrainSettings) -> Phases:
    return Phases.open(data, Tokenizer.from_folder(data), settings, WordTables())


def test_long_sequences_come_at_the_end_and_an_update_keeps_its_tokens(data: Path) -> None:
    phases = open_phases(data, TWO)
    shapes = [phases.at(step, progress=step / 8).ids.shape for step in range(8)]
    assert all(rows == 8 and length <= 16 for rows, length in shapes[:6])
    assert all(rows == 4 and 16 < length <= 32 for rows, length in shapes[6:])


def test_without_a_second_phase_nothing_changes_at_the_end(data: Path) -> None:
    phases = open_phases(data, PretrainSettings(batch=8, length=16))
    assert np.array_equal(phases.at(3, progress=0.99).ids, phases.at(3).ids)


def test_what_would_end_the_second_phase_is_told_before_the_first(data: Path) -> None:
    # Sequences as long as the corpus: enough of the short ones, not one batch of the long ones.
    long = replace(TWO, objective="none", long_length=30_000, batch=64)
    with pytest.raises(DataError, match=r"sequences of 30000 tokens, fewer than one batch"):
        open_phases(data, replace(long, accumulate=64)).check(1, 64)
    phases = open_phases(data, TWO)
    phases.check(4, 1)
    with pytest.raises(ConfigError, match="batch is 8, which is 4 of the long sequences, but 5 processes with 1 parts"):
        phases.check(5, 1)
    with pytest.raises(ConfigError, match=r"batch is 8, but 3 processes with 3 parts each share it; .* at least 9"):
        phases.check(3, 3)


def test_the_model_is_saved_with_the_longer_length(data: Path, tmp_path: Path) -> None:
    run = pretrain(data, tmp_path / "run", settings=TWO)
    assert Tokenizer.from_folder(run / "model").max_length == 32


def test_training_counts_the_work_of_both_phases(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def cost(bert: Bert, settings: PretrainSettings, long: float) -> float:
        shares.append(long)
        return 1e6

    monkeypatch.setattr("cloze.train.pretrain.flops_a_token", cost)
    pretrain(data, tmp_path / "two", settings=replace(TWO, steps=1))
    pretrain(data, tmp_path / "one", settings=replace(TWO, steps=1, long_length=None, long_share=0.1))
    assert shares == [0.25, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"long_length": 128}, "long_length is 128; more than the length 128 was expected"),
        ({"long_share": 1.0}, "long_share is 1.0; a share between 0 and 1"),
        ({"boundary": True}, "boundary needs the masking span; it is token"),
        ({"masking": "entity"}, "entity masking needs a dictionary"),
        ({"accumulate": 33}, "accumulate is 33, more than the 32 sequences"),
        ({"accumulate": 0}, "accumulate is 0; at least 1"),
        ({"hours": 0.0}, "hours is 0.0; a positive number"),
        ({"static": -1}, "static is -1; a number of variants"),
        ({"mask_rate": 2.0}, "mask rate is 2.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PretrainSettings(**change)  # type: ignore[arg-type]


def test_tables_are_read_for_those_who_need_them(data: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    assert open_tables(data, tokenizer, PretrainSettings()) == WordTables()
    names = tmp_path / "entities.txt"
    names.write_text("silver river\n", encoding="utf-8")
    tables = open_tables(data, tokenizer, PretrainSettings(masking="entity", entities=names))
    assert tables.entities == (tuple(tokenizer.encode_ids(["silver river"])[0]),)
