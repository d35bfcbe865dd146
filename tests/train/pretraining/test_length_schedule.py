import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from cloze.checkpoint import load_folder
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError, DataError
from cloze.text import Tokenizer
from cloze.train.distributed import ProcessGroup
from cloze.train.pretraining.held_out import HeldOut, evaluate_held_out, open_held_out
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from cloze.train.pretraining.phases import LengthSchedule, open_tables
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.run import draw_curves
from cloze.train.settings import PretrainSettings
from tests.train.made import Listener

TWO = PretrainSettings(
    preset="tiny",
    steps=8,
    batch_size=8,
    max_length=16,
    long_length=32,
    long_share=0.25,
    evaluate_every=4,
    precision="fp32",
)


def open_phases(data: Path, settings: PretrainSettings) -> LengthSchedule:
    return LengthSchedule.open(data, Tokenizer.from_folder(data), settings, WordTables())


def test_long_sequences_come_at_the_end_and_an_update_keeps_its_tokens(data: Path) -> None:
    phases = open_phases(data, TWO)
    shapes = [phases.at(step, progress=step / 8).ids.shape for step in range(8)]
    assert all(rows == 8 and length <= 16 for rows, length in shapes[:6])
    assert all(rows == 4 and 16 < length <= 32 for rows, length in shapes[6:])


def test_without_a_second_phase_nothing_changes_at_the_end(data: Path) -> None:
    phases = open_phases(data, PretrainSettings(batch_size=8, max_length=16))
    assert np.array_equal(phases.at(3, progress=0.99).ids, phases.at(3).ids)


def test_what_would_end_the_second_phase_is_told_before_the_first(data: Path) -> None:
    # Sequences as long as the corpus: there are enough short ones, but not a single batch of long ones.
    long = replace(TWO, objective="none", long_length=30_000, batch_size=64)
    with pytest.raises(DataError, match=r"sequences of 30000 tokens, fewer than one batch"):
        open_phases(data, replace(long, accumulate=64)).check(1, 64)
    phases = open_phases(data, TWO)
    phases.check(4, 1)
    with pytest.raises(
        ConfigError, match="batch_size is 4 for sequences of 32 tokens, too small to divide among 5 processes with 1 "
    ):
        phases.check(5, 1)
    with pytest.raises(
        ConfigError,
        match=r"batch_size is 8 for sequences of 16 tokens, too small to divide among 3 processes .* at least 9",
    ):
        phases.check(3, 3)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(data, tmp_path_factory.mktemp("two") / "run", settings=TWO)


def test_the_model_is_saved_with_the_longer_length(finished: Path) -> None:
    assert Tokenizer.from_folder(finished / "model").max_length == 32


def open_unseen(data: Path, settings: PretrainSettings, listener: Listener) -> list[HeldOut]:
    return open_held_out(data, Tokenizer.from_folder(data), settings, WordTables(), ProcessGroup(), listener)


def test_held_out_text_is_read_in_both_lengths(data: Path) -> None:
    listener = Listener()
    short, long = open_unseen(data, TWO, listener)
    assert all(part.ids.shape[0] == 8 and part.ids.shape[1] <= 16 for part in short.parts)
    assert all(part.ids.shape[0] == 4 and 16 < part.ids.shape[1] <= 32 for part in long.parts)
    assert listener.said == []
    alone = replace(TWO, long_length=None, long_share=PretrainSettings.long_share)
    (only,) = open_unseen(data, alone, listener)
    assert [part.ids.tolist() for part in only.parts] == [part.ids.tolist() for part in short.parts]


def test_long_sequences_are_measured_under_names_of_their_own(data: Path, finished: Path) -> None:
    results = json.loads((finished / "eval_results.json").read_text(encoding="utf-8"))
    kinds = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "nsp_constant", "perplexity")
    losses = ("mlm_loss_per_word", "mlm_loss_per_character")
    expected = {f"{group}_{kind}" for group in ("held_out", "held_out_long") for kind in (*kinds, *losses)}
    assert {name for name in results if name.startswith("held_out")} == expected
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows if "held_out_long_mlm_loss" in row] == [4, 8]
    # Each figure equals the final model's loss on sequences of that length.
    objective = PretrainingObjective(load_folder(finished).model.eval(), ("mlm", "nsp"), torch.device("cpu"))
    with torch.inference_mode():
        again = evaluate_held_out(open_unseen(data, TWO, Listener()), objective)
    assert again == pytest.approx({name: results[name] for name in expected}, rel=1e-4)
    assert again["held_out_long_mlm_loss"] != again["held_out_mlm_loss"]


def test_the_card_says_what_was_measured_on_which_length(finished: Path) -> None:
    card = (finished / "model" / "README.md").read_text("utf-8")
    assert "Held-out documents, in sequences of 16 tokens (long: 32):\n" in card
    assert "- held_out_long_mlm_loss: " in card


def test_too_little_held_out_text_for_long_sequences_is_told_of(data: Path) -> None:
    listener = Listener()
    settings = replace(TWO, objective="none", long_length=30_000, batch_size=64, accumulate=2)
    (short,) = open_unseen(data, settings, listener)
    assert short.name == "held_out"
    assert listener.said == [
        f"{data}: too little text is held out for sequences of 30000 tokens; "
        "prepare it with a larger --held-out to evaluate on more"
    ]


def test_the_picture_has_a_curve_of_each_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, plot = list[str](), Axes.plot

    def noted(axes: Axes, *values: Any, **options: Any) -> Any:
        labels.append(options["label"])
        return plot(axes, *values, **options)

    monkeypatch.setattr(Axes, "plot", noted)
    row = {"step": 4, "mlm_loss": 2.0, "held_out_mlm_loss": 2.5}
    draw_curves([row], tmp_path / "curves.png")
    assert labels == ["mlm loss", "mlm loss, held out"]
    labels.clear()
    draw_curves([row | {"held_out_long_mlm_loss": 3.0}], tmp_path / "curves.png")
    assert labels == ["mlm loss", "mlm loss, held out", "mlm loss, held out, long"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"long_length": 128}, r"long_length is 128; expected more than max_length \(128\)"),
        ({"long_share": 1.0}, "long_share is 1.0; expected a fraction between 0 and 1"),
        ({"boundary": True}, "boundary needs the masking span, but masking is token"),
        ({"masking": "entity"}, "entity masking needs a dictionary"),
        ({"accumulate": 33}, "accumulate is 33, more than the 32 sequences"),
        ({"accumulate": 0}, "accumulate is 0; expected at least 1"),
        ({"hours": 0.0}, "hours is 0.0; expected a positive number"),
        ({"static": -1}, "static is -1; expected a number of variants"),
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
