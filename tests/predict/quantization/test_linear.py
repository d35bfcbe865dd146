"""Timing measurements that select a kernel."""

import time

import pytest
import torch

from cloze.predict.quantization.linear import ROUNDS, best_seconds


def test_the_best_of_turns_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 3.0, 3.0, 4.0, *(10.0, 12.0, 12.0, 17.0) * (ROUNDS - 1)])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    turns: list[tuple[str, int]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = best_seconds([lambda: turns.append(("a", torch.get_num_threads())), lambda: turns.append(("b", 0))])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found == [2.0, 1.0]
    assert turns == [("a", 1), ("b", 0)] * ROUNDS


def test_threads_are_restored_after_a_failure() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            best_seconds([lambda: torch.ones(2, 3) @ torch.ones(2, 3)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
