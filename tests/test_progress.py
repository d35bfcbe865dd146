"""The plain bar of the public functions."""

import io
import sys

import pytest

from cloze.progress import Silent, TextBar, choose_progress


def test_bar_overwrites_its_line_and_ends_it() -> None:
    stream = io.StringIO()
    bar = TextBar(stream)
    bar.advance("training", 0, 4)
    bar.advance("training", 2, 4, loss=0.5)
    bar.advance("training", 3, 4, loss=0.4)  # too soon after the last
    bar.say("the loss is still falling")
    bar.say("the loss is still falling")
    bar.advance("training", 4, 4, loss=0.3)
    bar.advance("evaluation", 7, None)
    lines = stream.getvalue().split("\n")
    assert lines[0].startswith("\rtraining " + "█" * 12 + "·" * 12 + " 2/4  loss 0.500  ")
    assert lines[1] == "the loss is still falling"
    assert lines[2].startswith("\rtraining " + "█" * 24 + " 4/4  loss 0.300  ")
    assert lines[3:] == ["\revaluation: 7"]


def test_bars_are_for_terminals_and_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert isinstance(choose_progress(), Silent)
    assert isinstance(choose_progress(True), TextBar)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert isinstance(choose_progress(), TextBar)
    assert isinstance(choose_progress(False), Silent)
    listener = Silent()
    assert choose_progress(listener) is listener
