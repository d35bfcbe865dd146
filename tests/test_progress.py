"""The plain progress bar of the public functions."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.progress import PlainLines, Silent, TextBar, choose_progress


def test_bar_overwrites_its_line_and_ends_it() -> None:
    stream = io.StringIO()
    bar = TextBar(stream)
    bar.advance("training", 0, 4)
    bar.advance("training", 2, 4, loss=0.5)
    bar.advance("training", 3, 4, loss=0.4)  # too soon after the previous one
    bar.say("the loss is still falling")
    bar.say("the loss is still falling")
    bar.advance("training", 4, 4, loss=0.3)
    bar.advance("evaluation", 7, None)
    lines = stream.getvalue().split("\n")
    assert lines[0].startswith("\rtraining " + "█" * 12 + "·" * 12 + " 2/4  loss 0.500  ")
    assert lines[1] == "the loss is still falling"
    assert lines[2].startswith("\rtraining " + "█" * 24 + " 4/4  loss 0.300  ")
    assert lines[3:] == ["\revaluation: 7"]


def test_lines_are_for_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = PlainLines()
    lines.say("4 epochs")
    lines.say("4 epochs")
    for done in range(1601):  # one step every eighth of a second
        lines.advance("training", done, 1600, loss=0.5, mlm_loss=0.5, tokens_per_second=1234.5)
        now[0] += 0.125
    lines.advance("training", 1, 10)  # another run starts at once, while the last line is recent
    lines.advance("reading", 7, None)
    now[0] += 20
    lines.advance("reading", 9, None)
    shown = stream.getvalue().splitlines()
    assert shown[:2] == ["4 epochs", "training: 1 of 1,600, 200 s left  loss 0.500  tokens/s 1,234"]
    assert shown[2].startswith("training: 81 of 1,600, 190 s left")
    assert shown[-2:] == ["training: 1,600 of 1,600  loss 0.500  tokens/s 1,234", "reading: 9"]
    assert len(shown) == 1 + 20 + 1 + 1


def test_a_script_in_a_pipe_prints_lines(tmp_path: Path) -> None:
    rows = [{"text": f"{word} day", "label": label} for word, label in (("fine", "good"), ("dull", "bad"))] * 20
    script = f"import cloze\ncloze.finetune('classify', {rows!r}, epochs=1, max_length=8, few=False)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == ""
    assert re.search(r"^training: 3 of 3  loss 0\.\d+", done.stderr, re.MULTILINE)
    assert re.search(r"^learning rate 4e-04, 1 epochs \(about 3 updates\)", done.stderr, re.MULTILINE)
    assert "\r" not in done.stderr


def test_bars_are_for_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert isinstance(choose_progress(), PlainLines)
    assert isinstance(choose_progress(True), TextBar)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert isinstance(choose_progress(), TextBar)
    assert isinstance(choose_progress(False), Silent)
    listener = Silent()
    assert choose_progress(listener) is listener
