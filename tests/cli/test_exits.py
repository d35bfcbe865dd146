"""Exit codes of a command for causes other than a user error."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.cli import models
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from tests.cli.conftest import Cloze, Way


def test_defect_is_one_line(run: Cloze, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(models, "_facts", fail)
    result = run("doctor")
    assert (result.code, result.out) == (1, "")
    message = "ZeroDivisionError: division by zero (a bug in cloze; --debug shows where)"
    assert result.complaint == message
    debugged = run("doctor", "--debug")
    assert debugged.code == 1
    assert debugged.err.startswith("Traceback")
    assert "in fail" in debugged.err
    assert debugged.err.splitlines()[-1] == f"cloze: error: {message}"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_no_memory_is_no_defect(run: Cloze, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(models, "_facts", fail)
    result = run("doctor")
    assert result.code == 2
    assert result.complaint.startswith("not enough memory")
    assert "are left (" in result.complaint
    assert result.complaint.endswith("; use a smaller model or shorter texts")


def test_a_limit_of_memory_below_that_of_the_libraries_is_refused(run: Cloze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (500 * 2**20, -1))
    result = run("doctor")
    assert result.code == 2
    assert result.complaint == (
        "ulimit -v is 512000 kB, but PyTorch and the other libraries alone map up to 921600 kB; raise the limit"
    )
    assert "map up to 1331200 kB" in run("pretrain", "data", "--out", "run").complaint


def test_interrupted_is_130(run: Cloze, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "_facts", interrupt)
    result = run("doctor")
    assert (result.code, result.complaint) == (130, "interrupted")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_training_goes_on_by_the_same_command(
    run: Cloze, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    at = PretrainingBatches.at

    def disturbed(batches: PretrainingBatches, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        if step == 12 and batches.seed == 0:  # exclude evaluation batches
            os.kill(os.getpid(), number)
        return at(batches, step, part, parts)

    words = ["pretrain", way.data, "--preset", "tiny", "--steps", 20, "--batch", 4, "--length", 32]
    monkeypatch.setattr(PretrainingBatches, "at", disturbed)
    stopped = run(*words, "--out", tmp_path / "run")
    assert stopped.code == code
    assert stopped.err.splitlines()[-1] == "cloze: note: stopped and saved at step 13; run the same command to resume"
    monkeypatch.undo()
    assert run(*words, "--out", tmp_path / "run").code == 0
    weights = [folder / "model" / "model.safetensors" for folder in (tmp_path / "run", way.pretrained)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_process_that_is_told_to_end_saves(way: Way, tmp_path: Path) -> None:
    code = "from cloze.cli import main; main()"
    words = ["pretrain", str(way.data), "--preset", "tiny", "--batch", "2", "--length", "16", "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("training: 1 of 10,000")
        process.terminate()
        *_, last = process.stderr.read().splitlines()
    assert process.returncode == 143
    stopped = re.fullmatch(r"cloze: note: stopped and saved at step (\d+); run the same command to resume", last)
    assert stopped is not None
    assert {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")} == {f"step-{int(stopped[1]):08d}"}


def test_reader_that_has_seen_enough_is_no_error(way: Way) -> None:
    lines = "the door\n" * 20_000
    code = f"from cloze.cli import main; main(['tokens', '--model', {str(way.vocabulary)!r}, '--json'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(lines)
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141  # the exit code of a process that is terminated by SIGPIPE
