"""Mixtures of objectives, phases of growing length and batch size, and the extension of a run before its decay."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.checkpoint import StateStore, load_folder
from cloze.corpus.audit import audit
from cloze.corpus.batches import PretrainingBatches
from cloze.corpus.settings import ExampleSettings, MaskSettings, Objective
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError
from cloze.model import Bert, preset
from cloze.text import Tokenizer
from cloze.train.optimization import MetricsTracker, Schedule
from cloze.train.pretraining.objectives import pretraining_heads
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from cloze.train.pretraining.phases import LengthSchedule, MixedBatches, open_batches
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PretrainSettings

MIXED = PretrainSettings(
    preset="tiny",
    steps=10,
    phases="16x8:0.5,32x4:0.5",
    mixture="none:0.4,relation:0.3,copy:0.3",
    schedule="wsd",
    precision="fp32",
    dropout=0.0,
    evaluate_every=5,
    save_every=3,
)


def open_objective(data: Path, objective: Objective, length: int = 32) -> PretrainingBatches:
    return PretrainingBatches(
        Corpus.open(data),
        Tokenizer.from_folder(data),
        batch_size=16,
        examples=ExampleSettings(objective, length),
        masks=MaskSettings(),
        seed=3,
    )


def test_phases_change_length_and_batch_size_at_their_shares(data: Path) -> None:
    settings = PretrainSettings(phases="16x8:0.25,24x6:0.5,32x4:0.25")
    schedule = LengthSchedule.open(data, Tokenizer.from_folder(data), settings, WordTables())
    shapes = [schedule.at(step, progress=step / 8).ids.shape for step in range(8)]
    assert [rows for rows, _ in shapes] == [8, 8, 6, 6, 6, 6, 4, 4]
    assert [max(16, length) > 16 for _, length in shapes] == [False, False, *[True] * 6]


def test_the_cycle_of_a_mixture_has_the_shares(data: Path) -> None:
    settings = PretrainSettings(mixture="none:0.5,nsp:0.3,copy:0.2", max_length=16, batch_size=8)
    mixed = open_batches(
        Corpus.open(data), Tokenizer.from_folder(data), settings, WordTables(), settings.length_phases()[0]
    )
    turns = [mixed.objective_at(step) for step in range(200)]
    assert Counter(turns) == {"none": 100, "nsp": 60, "copy": 40}
    assert Counter(turns[:10]) == {"none": 5, "nsp": 3, "copy": 2}, "the objectives are spread evenly"


def test_each_objective_of_a_mixture_reads_all_of_its_batches_in_order(data: Path) -> None:
    alone: dict[Objective, PretrainingBatches] = {
        "none": open_objective(data, "none"),
        "nsp": open_objective(data, "nsp"),
    }
    mixed = MixedBatches(alone, {"none": 0.5, "nsp": 0.5})
    seen: dict[str, list[bytes]] = {"none": [], "nsp": []}
    for step in range(6):
        batch = mixed.at(step)
        assert batch.objective == mixed.objective_at(step)
        seen[batch.objective].append(batch.ids.tobytes())
    for name, batches in alone.items():
        assert seen[name] == [batches.at(step).ids.tobytes() for step in range(3)]


def test_relations_pass_the_audit_and_have_all_three_labels(data: Path) -> None:
    batches = open_objective(data, "relation")
    counts = np.bincount(np.concatenate([batches.at(step).labels for step in range(20)]), minlength=3) / 320
    assert counts == pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=0.12)
    failed = [check for check in audit(batches, 20_000).checks if check.ok is False]
    assert failed == []


def test_audit_finds_a_wrong_relation(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = open_objective(data, "relation")
    batches.at(0)
    batches._plan.labels[:] = 2
    failed = {check.name for check in audit(batches, 2_000).checks if check.ok is False}
    assert "pairs with a wrong label" in failed


def test_copies_are_changed_copies_masked_on_one_side(data: Path) -> None:
    batches = open_objective(data, "copy")
    tokenizer = Tokenizer.from_folder(data)
    sides: Counter[int] = Counter()
    orders: Counter[bool] = Counter()
    for step in range(10):
        batch, sequences = batches.at(step), batches.read(batches.examples_at(step))
        width = batch.ids.shape[1]
        for row, length in enumerate(sequences.lengths):
            ids, segments = sequences.ids[row, :length], sequences.segments[row, :length]
            first, second = ids[segments == 0][1:-1], ids[segments == 1][:-1]
            assert ids[-1] == tokenizer.sep_id
            assert (sequences.ids[row, length:] == tokenizer.pad_id).all()
            assert not Counter(second.tolist()) - Counter(first.tolist()), "a copy has no token that A does not have"
            assert 0 < len(second) <= len(first)
            kept = iter(first.tolist())
            orders[all(token in kept for token in second.tolist())] += 1
            masked = {int(segments[place % width]) for place in batch.positions if place // width == row}
            assert len(masked) == 1, "only one side is masked"
            sides.update(masked)
    assert min(sides[0], sides[1]) > 40
    assert min(orders[True], orders[False]) > 20, "about half of the copies have moved words"


def test_a_part_of_a_copy_batch_equals_the_rows_of_the_whole(data: Path) -> None:
    batches = open_objective(data, "copy")
    parts = [batches.at(4, part, 4).ids for part in range(4)]
    assert np.array_equal(np.concatenate(parts), batches.at(4).ids)


def test_a_mixture_trains_the_heads_of_its_objectives(data: Path) -> None:
    assert pretraining_heads(MIXED) == ("mlm", "nsp", "relation")
    assert pretraining_heads(replace(MIXED, mixture="none:0.5,copy:0.5")) == ("mlm",)
    assert pretraining_heads(PretrainSettings()) == ("mlm", "nsp")


def test_relations_train_the_next_sentence_head_as_well(data: Path) -> None:
    torch.manual_seed(0)
    batches = open_objective(data, "relation")
    bert = Bert.fresh(preset("tiny", Tokenizer.from_folder(data).size), ("mlm", "nsp", "relation"), seed=0)
    objective = PretrainingObjective(bert, ("mlm", "nsp", "relation"), torch.device("cpu"))
    batch = batches.at(0)
    output = objective(batch, batch.counts)
    parts = [float(output.metrics[f"{name}_loss"].detach()) for name in ("mlm", "nsp", "relation")]
    assert float(output.loss.detach()) == pytest.approx(sum(parts), rel=1e-5)
    output.loss.backward()
    for head in ("nsp", "relation"):
        gradient: torch.Tensor = bert.get_parameter(f"heads.{head}.output.weight").grad  # type: ignore[assignment]
        assert float(gradient.abs().sum()) > 0


def test_wsd_is_constant_between_warm_up_and_decay() -> None:
    schedule = Schedule(1000, None, 0.1, 2.0, "wsd", 0.2)
    assert [schedule.rate(step, 0) for step in (100, 400, 800)] == pytest.approx([2.0, 2.0, 2.0])
    assert schedule.rate(50, 0) < 2.0
    assert schedule.rate(850, 0) == pytest.approx(1.0)  # 1 - sqrt(1/4)
    assert schedule.rate(1000, 0) == 0.0
    assert schedule.is_stable(800, 0)
    assert not schedule.is_stable(801, 0)
    assert not Schedule(1000, None, 0.1, 2.0).is_stable(500, 0)


def test_metrics_are_averaged_over_the_steps_that_have_them() -> None:
    tracker = MetricsTracker()
    tracker.add({"loss": 1.0, "nsp_loss": 0.5}, 10)
    tracker.add({"loss": 3.0}, 10)
    resumed = MetricsTracker()
    resumed.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    for one in (tracker, resumed):
        assert one.current()["loss"] == 2.0
        assert one.current()["nsp_loss"] == 0.5
    earlier = MetricsTracker()
    earlier.load_state_dict({"sums": {"loss": 4.0}, "count": 2, "seen": 20})
    assert earlier.current()["loss"] == 2.0


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(data, tmp_path_factory.mktemp("mixed") / "run", settings=MIXED)


def test_a_mixture_is_evaluated_by_objective(finished: Path) -> None:
    results = json.loads((finished / "eval_results.json").read_text("utf-8"))
    for name in ("mlm_loss", "nsp_accuracy", "relation_accuracy", "relation_constant"):
        assert f"held_out_{name}" in results
    card = (finished / "model" / "README.md").read_text("utf-8")
    assert "mixture of 40 % none, 30 % relation, 30 % copy" in card
    assert "8 sequences of 16 tokens, then 4 sequences of 32 tokens" in card
    assert "--phases 16x8:0.5,32x4:0.5 --schedule wsd" in card


def test_the_relation_head_is_saved_and_transformers_loads_the_rest(finished: Path) -> None:
    import transformers

    loaded = load_folder(finished / "model")
    assert set(loaded.model.head_names) == {"mlm", "nsp", "relation"}
    loading: Any = transformers.BertForPreTraining.from_pretrained
    theirs, notes = loading(finished / "model", output_loading_info=True)
    assert (notes["missing_keys"], notes["unexpected_keys"]) == (set(), set())
    assert torch.equal(theirs.cls.seq_relationship.weight, loaded.model.get_parameter("heads.nsp.output.weight"))


def test_the_stable_checkpoint_is_kept_and_extended(data: Path, finished: Path, tmp_path: Path) -> None:
    state = StateStore(finished / "checkpoints").stable()
    assert state is not None
    assert state.step == 8, "the last step before the decay"
    longer = replace(MIXED, steps=20, phases="32x4:1")
    out = pretrain(data, tmp_path / "longer", extend=finished, settings=longer)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [10, 20]
    assert StateStore(out / "checkpoints").stable().step == 16  # type: ignore[union-attr]
    assert (finished / "model").is_dir(), "the extended run is left as it is"


def test_an_extension_equals_a_longer_run(data: Path, tmp_path: Path) -> None:
    """The stable part does not depend on the length of the run, so that both have the same weights at the end."""
    settings = replace(MIXED, phases="16x8:1", warmup=0.0)
    short = pretrain(data, tmp_path / "short", settings=settings)
    extended = pretrain(data, tmp_path / "extended", extend=short, settings=replace(settings, steps=20))
    whole = pretrain(data, tmp_path / "whole", settings=replace(settings, steps=20))
    ours, theirs = (load_folder(run / "model").model.state_dict() for run in (extended, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_cannot_be_extended_is_refused(data: Path, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run of cloze pretrain"):
        pretrain(data, tmp_path / "a", extend=tmp_path, settings=MIXED)
    linear = pretrain(data, tmp_path / "linear", settings=replace(MIXED, schedule="linear", steps=2))
    with pytest.raises(ConfigError, match="has the schedule linear, whose learning rate falls from the start"):
        pretrain(data, tmp_path / "b", extend=linear, settings=MIXED)
    with pytest.raises(
        ConfigError, match=r"has learning_rate 0.0005, but this run has 0.001; an extension must keep it"
    ):
        pretrain(data, tmp_path / "c", extend=finished, settings=replace(MIXED, learning_rate=1e-3))
    with pytest.raises(ConfigError, match=r"its stable checkpoint is at step 8, after .* where the decay"):
        pretrain(data, tmp_path / "d", extend=finished, settings=replace(MIXED, steps=9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": "32x:1"}, r"phases: '32x:1' is not valid; expected LENGTHxBATCH:SHARE"),
        ({"phases": "32x8:0.5,64x8:0.4"}, r"phases: the shares in '32x8:0.5,64x8:0.4' add up to 0.9"),
        ({"phases": "32x8:1", "max_length": 64}, "phases is '32x8:1', and max_length is set as well"),
        ({"phases": "32x8:1", "accumulate": 9}, "accumulate is 9, more than the 8 sequences of a batch of 32 tokens"),
        ({"mixture": "none:0.5,nps:0.5"}, "mixture: unknown objective 'nps'; did you mean 'nsp'"),
        ({"mixture": "none:0.5,none:0.5"}, "mixture: none is named twice"),
        ({"mixture": "none:half"}, "mixture: 'none:half' is not valid; expected OBJECTIVE:SHARE"),
        ({"mixture": "none:0.7,copy:0.7"}, "mixture: the shares in .* add up to 1.4"),
        ({"mixture": "sop:0.5,nsp:0.5"}, "a model has a head for nsp or for sop, not for both"),
        ({"mixture": "none:0.5,copy:0.5", "objective": "sop"}, "objective is sop and mixture is"),
        ({"schedule": "wsd", "decay": 0.99}, "decay is 0.99; expected a fraction of the steps above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(PretrainSettings(), **change)  # type: ignore[arg-type]
