import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cloze.checkpoint import base_files, save_folder
from cloze.errors import CheckpointError, ClozeError, ConfigError
from cloze.threads import request_threads
from cloze.train.run import BEST, Run
from tests.model.made import model_folder
from tests.train.made import Listener


def test_an_evaluation_that_is_owed_is_not_counted_twice(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})
    run.log(4, loss=2.0, seconds=1.0)
    run.log(4, dev_accuracy=0.5)
    run.log(5, loss=1.0, seconds=2.0)
    run.rewind(4)
    assert run.metrics() == [{"step": 4, "loss": 2.0, "seconds": 1.0}, {"step": 4, "dev_accuracy": 0.5}]
    run.rewind(4, evaluation_due=True)
    assert run.metrics() == [{"step": 4, "loss": 2.0, "seconds": 1.0}]


def test_only_differences_of_a_changed_corpus_are_reported(tmp_path: Path) -> None:
    texts = [[f"{number}.txt", "0123456789abcdef" * 4] for number in range(300)]
    recorded = {"steps": 3, "data": {"texts": texts, "seed": 0, "held_out": 0.01}}
    Run.open(tmp_path / "run", recorded)
    Run.open(tmp_path / "run", recorded)
    with pytest.raises(ConfigError) as caught:
        Run.open(tmp_path / "run", {"steps": 4, "data": {"texts": texts, "seed": 7, "held_out": 0.01}})
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: settings differ from those this run was started with: "
        "data: seed was 0 and is now 7; steps was 3 and is now 4; "
        "choose another out (--out), or start over with fresh=True (--fresh)"
    )
    with pytest.raises(ConfigError, match=r"data: texts was \[\['0.txt', .*\.\.\. and is now \[\]; choose") as caught:
        Run.open(tmp_path / "run", {"steps": 3, "data": {"texts": [], "seed": 0, "held_out": 0.01}})
    assert len(str(caught.value)) < 400


def test_the_model_that_a_run_starts_from_is_not_deleted(tmp_path: Path) -> None:
    first = Run.open(tmp_path / "run", {"model": None})
    first.model_folder.mkdir()
    for model in (first.folder, first.model_folder, tmp_path / "run" / ".." / "run"):
        with pytest.raises(ConfigError, match=r"run: holds the model .*, which the run would delete; choose another"):
            Run.open(first.folder, {"model": str(model)}, fresh=True)
    assert first.finished
    Run.open(first.folder, {"model": str(tmp_path)}, fresh=True)
    assert not first.finished


def test_a_running_training_is_locked(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})
    busy = r"run: another process is training this; wait for it to end$"
    with run.store.held():
        with pytest.raises(CheckpointError, match=busy), Run(tmp_path / "run").store.held():
            pass
        with pytest.raises(CheckpointError, match=busy):
            Run.open(tmp_path / "run", {"steps": 3}, fresh=True)
    assert Run.open(tmp_path / "run", {"steps": 3}, fresh=True).resume_note == ", without fresh=True (--fresh),"
    assert Run.open(tmp_path / "run", {"steps": 3}).resume_note == ""


def test_the_first_difference_of_two_long_lists_is_reported(tmp_path: Path) -> None:
    texts = [[f"{number}.txt", str(number) * 64] for number in range(5)]
    Run.open(tmp_path / "run", {"texts": texts})
    changed = [*texts[:3], ["3.txt", "f" * 64], texts[4]]
    with pytest.raises(
        ConfigError, match=f"this run was started with: texts.3..1. was '{'3' * 64}' and is now '{'f' * 64}'; choose"
    ):
        Run.open(tmp_path / "run", {"texts": changed})


def test_settings_unknown_to_older_runs_are_ignored(tmp_path: Path) -> None:
    Run.open(tmp_path / "run", {"steps": 3})
    Run.open(tmp_path / "run", {"steps": 3, "longest_answer": 30, "content": "abc"})
    with pytest.raises(ConfigError, match="stride was None and is now 64; choose another out"):
        Run.open(tmp_path / "run", {"steps": 3, "stride": 64})


def test_a_finished_run_succeeds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(tmp_path / "run", {})
    (run.folder / BEST).write_bytes(b"weights")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, f"{path} {missing_ok}")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        run.clear()
    assert (run.folder / BEST).exists()
    run.clear()
    assert not (run.folder / BEST).exists()


# Holds the lock of a run, like a training process.
HOLDER = """
import sys
from pathlib import Path
from cloze.train.run import Run
with Run.open(Path(sys.argv[1]), {"steps": 3}):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_has_opened_is_not_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for fresh in (False, True):
            with pytest.raises(ClozeError, match="run: another process is writing to run; wait for it to end"):
                Run.open(folder, {"steps": 3 + fresh}, fresh=fresh)
        process.kill()
    assert Run.open(folder, {"steps": 3}).folder == folder


def test_a_changed_base_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_folder(model_folder(), base)
    before = base_files(base)
    assert set(before) == {"config.json", "model.safetensors", "modules.json", "sentence_bert_config.json"} | {
        *("1_Pooling/config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
    }
    Run.open(tmp_path / "run", {"model": str(base), "base": before})
    for name in before:
        content = (base / name).read_bytes()
        (base / name).write_bytes(content + b" ")
        with pytest.raises(ConfigError, match=rf"started with: base: {name} was '\w+' and is now '\w+'; choose"):
            Run.open(tmp_path / "run", {"model": str(base), "base": base_files(base)})
        (base / name).write_bytes(content)
    (base / "README.md").write_text("another card", encoding="utf-8")
    assert base_files(base) == before


def test_runs_of_earlier_versions_resume_with_a_note(tmp_path: Path) -> None:
    Run.open(tmp_path / "run", {"model": "base"}).close()
    progress = Listener()
    run = Run.open(tmp_path / "run", {"model": "base", "base": {"model.safetensors": "abc"}})
    assert not run.report_finished(progress)
    assert progress.said == [
        f"{tmp_path / 'run'}: started by an earlier version, which did not record the files of base; "
        "whether they are the same is not known"
    ]


def test_another_number_of_threads_is_reported(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        Run.open(tmp_path / "run", {}).close()
        assert Run.open(tmp_path / "run", {}).notes == []
        torch.set_num_threads(2)
        (note,) = Run.open(tmp_path / "run", {}).notes
    finally:
        torch.set_num_threads(threads)
    assert "started with 1 threads and resumed with 2: the last digits of the numbers may differ" in note


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Set two threads without a request; yield the list of thread numbers that trials report as fastest."""
    found: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("cloze.threads.fastest_threads", lambda most, trial: found.pop(0))  # noqa: ARG005
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    request_threads(None)
    yield found
    request_threads(None)
    torch.set_num_threads(before)


def recorded_threads(run: Run) -> int:
    return int(json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["threads"])


def test_a_run_keeps_the_number_of_threads_that_was_fastest_at_its_start(tmp_path: Path, fastest: list[int]) -> None:
    fastest += [1, 2, 1]
    progress = Listener()
    with Run.open(tmp_path / "run", {}) as run:
        assert (recorded_threads(run), torch.get_num_threads()) == (1, 1)
        assert not run.report_finished(progress)
    assert progress.said == ["other processes use this machine: 1 of 2 threads are fastest now; --threads overrides"]
    assert torch.get_num_threads() == 2
    with Run.open(tmp_path / "run", {}) as run:
        assert (recorded_threads(run), torch.get_num_threads()) == (1, 1)
        assert run.notes == [
            "1 of 2 threads, as this run was started; 2 would be faster now, with other last digits: --threads 2"
        ]
    with Run.open(tmp_path / "run", {}) as run:
        assert (run.notes, torch.get_num_threads()) == ([], 1)


def test_requested_threads_take_precedence(tmp_path: Path, fastest: list[int]) -> None:
    request_threads(2)
    with Run.open(tmp_path / "run", {}) as run:
        assert (recorded_threads(run), torch.get_num_threads()) == (2, 2)
    request_threads(1)
    with Run.open(tmp_path / "run", {}) as run:
        (note,) = run.notes
        assert "started with 2 threads and resumed with 1" in note
        assert torch.get_num_threads() == 1
    assert fastest == []


def test_a_finished_run_measures_nothing(tmp_path: Path, fastest: list[int]) -> None:
    fastest += [2]
    with Run.open(tmp_path / "run", {}) as run:
        run.model_folder.mkdir()
    with Run.open(tmp_path / "run", {}) as run:
        assert run.finished


def test_measurements_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})
    run.check_measured(run.measured())
    run.log(1, loss=2.0)
    recorded = run.measured()
    run.log(2, loss=1.0)
    run.check_measured(recorded)
    run.check_measured(None)
    path = run.folder / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("2.0", "0.1"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"metrics.jsonl: has changed since the last checkpoint"):
        run.check_measured(recorded)
