"""A training state survives disk failures: it is intact, or the previous one is used."""

import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.checkpoint import StateStore, TrainingState
from cloze.errors import CheckpointError, ClozeError

ASIDE = f".step-00000009.{'0' * 16}.cloze-old"
FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


class Listener:
    """A progress listener that stores messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        raise AssertionError("reading a state is no long work")

    def say(self, message: str) -> None:
        self.said.append(message)


def state(step: int) -> TrainingState:
    generator = torch.Generator().manual_seed(step)
    return TrainingState(
        step=step,
        model={"weight": torch.randn(4, 5, generator=generator), "bias": torch.randn(4, generator=generator)},
        optimizer={"0.exp_avg": torch.randn(4, 5, generator=generator), "0.step": torch.tensor(float(step))},
        figures={"best": 0.1 + 0.2, "losses": [2.5, 1.25], "note": "é"},
    )


def assert_same(found: TrainingState | None, expected: TrainingState) -> None:
    assert found is not None
    assert (found.step, found.figures) == (expected.step, expected.figures)
    for ours, theirs in ((found.model, expected.model), (found.optimizer, expected.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "checkpoints")


@pytest.fixture
def store_of_two(store: StateStore) -> StateStore:
    """A store with the checkpoints of steps 9 and 10."""
    store.save(state(9))
    store.save(state(10))
    return store


def names(store: StateStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_round_trip(store: StateStore) -> None:
    assert store.newest() is None
    store.save(state(7))
    assert_same(store.newest(), state(7))
    store.clear()
    assert store.newest() is None


def test_the_newest_two_are_kept(store_of_two: StateStore) -> None:
    assert names(store_of_two) == ["step-00000009", "step-00000010"]
    store_of_two.save(state(12))
    assert names(store_of_two) == ["step-00000010", "step-00000012"]
    assert_same(store_of_two.newest(), state(12))


def test_a_step_saved_again_keeps_both_checkpoints(store_of_two: StateStore) -> None:
    for store in (store_of_two, StateStore(store_of_two.folder)):  # in the same process, and in the next one
        store.save(state(10))
        assert names(store) == ["step-00000009", "step-00000010"]
    assert_same(store_of_two.newest(), state(10))


def test_the_same_step_can_be_saved_again(store: StateStore) -> None:
    store.save(state(9))
    again = TrainingState(9, state(3).model, state(3).optimizer)
    store.save(again)
    assert_same(store.newest(), again)


def test_newest_is_by_number(store: StateStore) -> None:
    store.save(state(99_999_999))
    store.save(state(100_000_000))  # one digit more than the padding of names
    assert_same(store.newest(), state(100_000_000))


@pytest.mark.parametrize("name", FILES)
def test_damage_falls_back(name: str, store_of_two: StateStore) -> None:
    path = store_of_two.folder / "step-00000010" / name
    good, source = path.read_bytes(), random.Random(5)
    flipped = [good[:place] + bytes([good[place] ^ 255]) + good[place + 1 :] for place in range(len(good))]
    cut = [good[:place] for place in range(len(good) - 1)]  # the last newline of a manifest is insignificant
    for bad in [*source.sample(flipped, 40), *source.sample(cut, 40)]:
        path.write_bytes(bad)
        listener = Listener()
        assert_same(store_of_two.newest(listener), state(9))
        (message,) = listener.said
        assert message.startswith(f"{store_of_two.folder}/step-00000010/")
        assert message.endswith("; falling back to the checkpoint before it")
    path.write_bytes(good)
    assert_same(store_of_two.newest(), state(10))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_falls_back(name: str, store_of_two: StateStore) -> None:
    (store_of_two.folder / "step-00000010" / name).unlink()
    assert_same(store_of_two.newest(), state(9))


def test_all_damaged_is_refused_and_left_as_it_is(store_of_two: StateStore) -> None:
    for folder in store_of_two.folder.iterdir():
        (folder / "manifest.json").write_text("{}", encoding="utf-8")
    listener = Listener()
    with pytest.raises(CheckpointError) as caught:
        store_of_two.newest(listener)
    files = [store_of_two.folder / f"step-000000{step}" / "model.safetensors" for step in ("10", "09")]
    assert str(caught.value) == (
        f"{files[0]}: does not match its manifest; {files[1]}: does not match its manifest; "
        "none of the run's checkpoints is intact: restore a copy of one, or start over with fresh=True (--fresh)"
    )
    assert listener.said == []
    assert names(store_of_two) == ["step-00000009", "step-00000010"]
    assert all(path.is_file() for path in files)


def test_the_only_one_damaged_is_refused(store: StateStore) -> None:
    store.save(state(9))
    (store.folder / "step-00000009" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000009/state\.json: does not match .* with fresh=True"):
        store.newest()


@pytest.mark.parametrize("step", [15, 20, 25])
def test_a_damaged_checkpoint_is_superseded(step: int, store_of_two: StateStore) -> None:
    """After resuming at step 9, the damaged checkpoint 20 is neither the newest nor the previous one."""
    shutil.move(store_of_two.folder / "step-00000010", store_of_two.folder / "step-00000020")
    (store_of_two.folder / "step-00000020" / "model.safetensors").write_bytes(b"")
    assert_same(store_of_two.newest(), state(9))
    store_of_two.save(state(step))
    assert names(store_of_two) == ["step-00000009", f"step-000000{step}"]
    assert_same(store_of_two.newest(), state(step))
    store_of_two.save(state(30))
    assert names(store_of_two) == [f"step-000000{step}", "step-00000030"]


def test_a_step_saved_again_exists_at_every_moment(store: StateStore, tmp_path: Path) -> None:
    """A step saved again exists at every moment, even if the process is killed between the two renames."""
    store.save(state(9))
    shutil.copytree(store.folder / "step-00000009", store.folder / f".step-00000009.{'1' * 16}.cloze-tmp")
    (store.folder / "step-00000009").rename(store.folder / ASIDE)
    assert_same(store.newest(), state(9))
    store.save(state(10))
    assert names(store) == [ASIDE, "step-00000010"]
    assert_same(store.newest(), state(10))
    store.save(state(11))
    assert names(store) == ["step-00000010", "step-00000011"]


def test_a_backup_does_not_hide_its_successor(store: StateStore) -> None:
    store.save(state(9))
    shutil.copytree(store.folder / "step-00000009", store.folder / ASIDE)
    again = TrainingState(9, state(3).model, state(3).optimizer)
    shutil.rmtree(store.folder / "step-00000009")
    StateStore(store.folder.parent / "other").save(again)
    (store.folder.parent / "other" / "step-00000009").rename(store.folder / "step-00000009")
    assert_same(store.newest(), again)
    store.save(state(10))
    assert names(store) == ["step-00000009", "step-00000010"]


def test_unfinished_ones_are_ignored(store: StateStore) -> None:
    store.save(state(9))
    for name in (f".step-00000010.{'1' * 16}.cloze-tmp", f".step-00000010.{'0' * 16}.cloze-old"):
        shutil.copytree(store.folder / "step-00000009", store.folder / name)
    listener = Listener()
    assert_same(store.newest(listener), state(9))
    assert listener.said == []
    store.save(state(10))  # removes temporary files at its path
    assert names(store) == ["step-00000009", "step-00000010"]


@pytest.mark.parametrize("allowed", [0, 100, 300])
def test_a_full_disk_leaves_those_before(
    allowed: int, full_disk: Callable[[int], AbstractContextManager[None]], store_of_two: StateStore
) -> None:
    with full_disk(allowed), pytest.raises(ClozeError, match=r"step-00000011: cannot be written .*File too large"):
        store_of_two.save(state(11))
    assert names(store_of_two) == ["step-00000009", "step-00000010"]
    assert_same(store_of_two.newest(), state(10))


def test_files_left_by_killed_processes_are_removed(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "checkpoints")
    (store.folder / f".step-00000003.{'1' * 16}.cloze-tmp").mkdir(parents=True)
    store.save(TrainingState(5, {}, {}))
    assert [path.name for path in store.folder.iterdir()] == ["step-00000005"]


def test_reads_the_figures_of_earlier_versions(store: StateStore) -> None:
    figures = {"meter": {"loss": [1.5, 2]}, "owed": True, "seconds": 3.0}
    store.save(replace(state(9), figures=figures))
    found = store.newest()
    assert found is not None
    assert found.figures == {"tracker": {"loss": [1.5, 2]}, "evaluation_due": True, "seconds": 3.0}
